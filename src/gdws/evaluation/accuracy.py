"""Natural and robust accuracy of one network."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from gdws.attacks import Attack
from gdws.core.checks import Batches
from gdws.evaluation.compare import compare
from gdws.evaluation.comparison import NATURAL, WORST, percent


@dataclass(frozen=True)
class Accuracy:
    """Which images a model classifies correctly.

    natural   bools (N,).
    attacked  bools (N,), after the attack; None without one.
    """

    natural: Tensor
    attacked: Tensor | None

    @property
    def natural_percent(self) -> float:
        """Percentage of the images that are correct."""
        return percent(self.natural)

    @property
    def robust_percent(self) -> float:
        """Percentage of the images that are correct without the attack and with it; NaN without one."""
        return math.nan if self.attacked is None else percent(self.attacked)


def evaluate(model: nn.Module, batches: Batches, attack: Attack | None = None, seed: int = 0) -> Accuracy:
    """Measure the natural and robust accuracy of one network.

    model    takes images (B, C, H, W) in [0, 1], normalizes inside, and returns logits (B, classes).
    batches  (images, labels) as a Dataset or a DataLoader gives them.
    attack   of gdws.attacks; None for natural accuracy alone.
    seed     of the attack's random starts.

    All in true float32. An image that is wrong without an attack counts as wrong with it.

    Returns gdws.evaluation.accuracy.Accuracy: the bools .natural and .attacked (N,), .natural_percent and .robust_percent.
    Raises GdwsError when there are no images or labels, when images are not in [0, 1] or the model was calibrated on some of
    them, or when the model does not return finite logits or cannot be attacked.

    >>> import gdws
    >>> test = gdws.data.load("demo", "test").take(8)
    >>> found = gdws.evaluate(gdws.models.embedded(), test, gdws.attacks.PGD(steps=2))
    >>> found.robust_percent <= found.natural_percent
    True
    """
    found = compare({"model": model}, batches, [] if attack is None else [attack], seed)
    return Accuracy(found.under("model", NATURAL), None if attack is None else found.under("model", WORST))
