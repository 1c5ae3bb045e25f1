"""Learning rates over a training. `time` counts epochs, with fractions: 0 is the first step, `epochs` is past the last."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol


class Schedule(Protocol):
    def rate(self, time: float) -> float: ...


@dataclass(frozen=True)
class OneCycle:
    """Up in a straight line from a tenth of the peak, and down in a straight line to nothing."""

    peak: float
    epochs: float
    rise: float = 0.25  # the part of the time that goes up; 0 only falls

    def rate(self, time: float) -> float:
        done = time / self.epochs
        if done < self.rise:
            return self.peak * (0.1 + 0.9 * done / self.rise)
        return self.peak * max(0.0, (1 - done) / (1 - self.rise))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the peak down to nothing."""

    peak: float
    epochs: float

    def rate(self, time: float) -> float:
        return self.peak * (1 + math.cos(math.pi * min(time / self.epochs, 1))) / 2


@dataclass(frozen=True)
class Pieces:
    """In straight lines from nothing to the peak at 0.4 of the time, to a twentieth of it at 0.8, and to nothing."""

    peak: float
    epochs: float

    def rate(self, time: float) -> float:
        done = min(time / self.epochs, 1.0)
        corners = ((0.0, 0.0), (0.4, 1.0), (0.8, 0.05), (1.0, 0.0))
        (start, low), (end, high) = next(pair for pair in pairwise(corners) if done <= pair[1][0])
        return self.peak * (low + (high - low) * (done - start) / (end - start))


@dataclass(frozen=True)
class Steps:
    """Divided by ten at each of the milestones, which are shares of the time."""

    peak: float
    epochs: float
    milestones: tuple[float, ...] = (0.5, 0.75)  # the paper's: epochs 100 and 150 of 200

    def rate(self, time: float) -> float:
        return self.peak * 0.1 ** sum(time >= self.epochs * milestone for milestone in self.milestones)


SCHEDULES: dict[str, Callable[[float, float], Schedule]] = {
    "one-cycle": OneCycle,
    "steps": Steps,
    "steps-early": partial(Steps, milestones=(0.4, 0.75)),
    "thirds": partial(Steps, milestones=(1 / 3, 2 / 3)),
    "cosine": Cosine,
    "pieces": Pieces,
}
