"""What the calibration images say of a network: a value that is collected once and good for any budget.

Memory: 4 (C K^2)^2 bytes for the patch moment of each layer (85 MB for 512 channels and 3x3 kernels, 0.4 GB for all of
ResNet-18), and the calibration images twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gdws.attacks import PGD
from gdws.calibration.method import Calibrated
from gdws.core.hashing import sample_hashes
from gdws.core.inputs import Inputs
from gdws.objectives import Objective
from gdws.structures.base import Curve, Metric
from gdws.structures.metric import GRADIENT_RIDGE, MOMENT_RIDGE, add_ridge


@dataclass(frozen=True)
class LayerStatistics:
    """What the calibration images say of one convolution with `groups` groups, in float32.

    moment    (groups, CK, CK)  patches, each weighted by the squared length of the output gradient at its pixel
    gradient  (groups, M, M)    half of that of the output gradients, summed over the pixels of an image
    """

    moment: Tensor
    gradient: Tensor

    def metrics(self) -> list[Metric]:
        """S and F of each group, conditioned, in float64."""
        return [
            (
                add_ridge(moment, MOMENT_RIDGE),
                add_ridge(gradient, GRADIENT_RIDGE),
            )
            for moment, gradient in zip(self.moment, self.gradient, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What `gdws.calibrate` collects about a network: good for any budget.

    images       the calibration images (N, C, H, W), or what else the network is called with (gdws.Arguments), on the CPU.
    attacked     the same after the method's attack.
    layers       by layer name: its two moments (gdws.calibration.statistics.LayerStatistics).
    curves       by layer name and structure: a gdws.structures.Curve for each group of the convolution.
    method       the settings that they were collected with, attack and objective decided. gdws.plan uses them too, unless it is
                 given others.
    seed         of everything random.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> method = gdws.Calibrated(structures="vertical", attack=None, exclude=["layer[23].*"])
    >>> statistics = gdws.calibrate(model, images, method)
    >>> sorted(statistics.layers)
    ['layer1.0.conv1', 'layer1.0.conv2', 'layer1.1.conv1', 'layer1.1.conv2']
    """

    images: Inputs
    attacked: Inputs
    layers: dict[str, LayerStatistics]
    curves: dict[str, dict[str, list[Curve]]]
    method: Calibrated
    seed: int

    @property
    def objective(self) -> Objective:
        """What must be kept, with what was learned from the outputs."""
        return self.method.settled_objective

    @property
    def attack(self) -> PGD | None:
        """The attack that the images were attacked with; None if they were not."""
        return self.method.settled_attack

    def sample_hashes(self) -> tuple[str, ...]:
        """A short hash of each calibration image, to tell whether other images are among them."""
        return sample_hashes(self.images)
