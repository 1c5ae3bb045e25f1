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
    """Which images a model decides rightly: natural (N,), and attacked (N,), None without an attack. Bools."""

    natural: Tensor
    attacked: Tensor | None

    @property
    def natural_percent(self) -> float:
        return percent(self.natural)

    @property
    def robust_percent(self) -> float:
        return math.nan if self.attacked is None else percent(self.attacked)


def evaluate(model: nn.Module, batches: Batches, attack: Attack | None = None, seed: int = 0) -> Accuracy:
    """Decide every image, and again after the attack. True float32 throughout.

    An image that is wrong without an attack counts as wrong with it. Random starts come from generators of their own.
    """
    found = compare({"model": model}, batches, [] if attack is None else [attack], seed)
    return Accuracy(found.under("model", NATURAL), None if attack is None else found.under("model", WORST))
