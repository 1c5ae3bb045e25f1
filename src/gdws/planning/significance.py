"""Statistics of correct and wrong predictions: how sure a percentage is, and whether two networks differ on the same images.

Two networks judged on the same n images are compared by the images that they classify differently (McNemar 1947): of these
`lost` were correct before only and `gained` after only. When neither network is better, each of the lost + gained is a fair
coin.

    clopper_pearson   of a share: exact
    wilson            of a share: shorter, right on average
    PairedChange      of a change of accuracy: `interval` belongs to McNemar's test and takes the number of changed images for
                      given; `score_interval` does not, so it says how large a loss may be where few images changed
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from torch import Tensor

from gdws.core.errors import GdwsError

CONFIDENCE = 0.95


def wilson(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: every p whose normal score test accepts right / total. Fractions."""
    if not 0 <= right <= total or total == 0:
        raise GdwsError(f"{right} of {total} images are right: expected a share of at least one image")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, weight = right / total, z * z / total
    center = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / total + weight / total / 4) / (1 + weight)
    return max(0.0, center - half), min(1.0, center + half)


def binomial_tail(successes: int, total: int, p: float) -> float:
    """P(X >= successes) of a binomial X with `total` draws of probability p, summed exactly."""
    if successes <= 0 or p >= 1:
        return 1.0 if successes <= total else 0.0
    if successes > total or p <= 0:
        return 0.0
    factorials = _log_factorials(total)
    k = np.arange(successes, total + 1)
    logs = factorials[total] - factorials[k] - factorials[total - k] + k * math.log(p) + (total - k) * math.log1p(-p)
    return min(1.0, math.fsum(np.exp(logs)))


def clopper_pearson(successes: int, total: int) -> tuple[float, float]:
    """The exact 95 % interval of a binomial share: every p under which neither tail is rarer than 2.5 %. Fractions."""
    if total == 0:
        return 0.0, 1.0
    alpha = (1 - CONFIDENCE) / 2
    low = _solve(lambda p: binomial_tail(successes, total, p) >= alpha) if successes > 0 else 0.0
    high = _solve(lambda p: binomial_tail(total - successes, total, 1 - p) < alpha) if successes < total else 1.0
    return low, high


@dataclass(frozen=True)
class PairedChange:
    """Two networks on the same images.

    both     images that both classify correctly.
    lost     correct in the first only.
    gained   correct in the second only.
    neither  correct in neither.
    """

    both: int
    lost: int
    gained: int
    neither: int

    @property
    def total(self) -> int:
        """Number of images."""
        return self.both + self.lost + self.gained + self.neither

    @property
    def points(self) -> float:
        """Change of the accuracy, in percentage points."""
        return 100 * (self.gained - self.lost) / self.total

    @property
    def p_value(self) -> float:
        """Exact McNemar, two-sided: how often a fair coin would split the changed images at least as unevenly."""
        changed = self.lost + self.gained
        return min(1.0, 2 * binomial_tail(max(self.lost, self.gained), changed, 0.5))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `points` given how many images changed: the exact interval of the share gained / (lost + gained).

        It leaves out 0 exactly when p_value < 0.05. Where no image changed, the bound is that of the share that changes at all.
        """
        changed, total = self.lost + self.gained, self.total
        if changed == 0:
            _, most = clopper_pearson(0, total)
            return -100 * most, 100 * most
        low, high = clopper_pearson(self.gained, changed)
        return 100 * (2 * low - 1) * changed / total, 100 * (2 * high - 1) * changed / total

    @property
    def score_interval(self) -> tuple[float, float]:
        """95 % interval of `points`, however many images might have changed.

        Tango's (Statistics in Medicine 17, 1998): every change that a score test accepts, as Wilson's is for a share.
        """
        return -100 * _largest_loss(self.lost, self.gained, self.total), 100 * _largest_loss(self.gained, self.lost, self.total)


def images_to_bound(points: float) -> int:
    """How many images it takes that their 95 % interval stays below so many points when not one of them changed."""
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-points / 100))


def paired_change(before: Tensor, after: Tensor) -> PairedChange:
    """Compare two bool vectors (N,), right or wrong for each image."""
    if before.shape != after.shape or before.ndim != 1 or len(before) == 0:
        raise GdwsError(
            f"predictions have shapes {tuple(before.shape)} and {tuple(after.shape)}: expected the same (N,), N > 0"
        )
    both, changed = int((before & after).sum()), before ^ after
    lost, gained = int((changed & before).sum()), int((changed & after).sum())
    return PairedChange(both, lost, gained, len(before) - both - lost - gained)


def _largest_loss(lost: int, gained: int, total: int) -> float:
    """The largest share that may be lost on balance: Tango's score test of any larger one rejects these counts."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

    def is_rejected(loss: float) -> bool:
        # The likeliest share that is gained if so much is lost on balance solves a q^2 + b q + c = 0.
        a, b, c = 2 * total, (2 * total - lost + gained) * loss - lost - gained, -gained * loss * (1 - loss)
        share_gained = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
        variance = max(0.0, 2 * share_gained + loss * (1 - loss))
        return lost - gained - total * loss < -z * math.sqrt(total * variance)

    return 2 * _solve(lambda p: is_rejected(2 * p - 1)) - 1


def _solve(above: Callable[[float], bool]) -> float:
    """The p in [0, 1] where a condition starts to hold, to the last bit."""
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if above(middle):
            high = middle
        else:
            low = middle
    return high


@cache
def _log_factorials(total: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
