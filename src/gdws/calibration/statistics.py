"""What the calibration images say of a network: a value that is collected once and good for any budget.

Memory: 4 (C K^2)^2 bytes for the patch moment of each layer (85 MB for 512 channels and 3x3 kernels, 0.4 GB for all of
ResNet-18), and the calibration images twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gdws.attacks import PGD
from gdws.calibration.method import Calibrated
from gdws.core.hashing import image_hashes
from gdws.structures.base import Curve, Metric
from gdws.structures.metric import GRADIENT_RIDGE, MOMENT_RIDGE, add_ridge


@dataclass(frozen=True)
class LayerStatistics:
    """Of one convolution with `groups` groups, float32.

    moment    (groups, CK, CK)  patches, each weighted by the squared length of the output gradient at its pixel
    gradient  (groups, M, M)    half of that of the output gradients, summed over the pixels of an image
    alpha     (C,)              the paper's channel weights, equation (8)
    """

    moment: Tensor
    gradient: Tensor
    alpha: Tensor

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
    """What `gdws.calibrate` collects.

    images and attacked (N, C, H, W) on the CPU; by layer name its statistics and, by structure, a curve for each group of the
    convolution. method: the settings that they were collected with, and that a plan made of them has unless told otherwise.
    temperature: of the decisions in the metric (gdws.calibration.softening).
    """

    images: Tensor
    attacked: Tensor
    layers: dict[str, LayerStatistics]
    curves: dict[str, dict[str, list[Curve]]]
    method: Calibrated
    seed: int
    temperature: float = 1.0

    @property
    def attack(self) -> PGD | None:
        return self.method.settled_attack

    def image_hashes(self) -> tuple[str, ...]:
        return image_hashes(self.images)
