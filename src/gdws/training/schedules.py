"""Learning rates over a training. `time` counts epochs, with fractions: 0 is the first step, `epochs` is past the last."""

from __future__ import annotations

from dataclasses import dataclass


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
class Steps:
    """Divided by ten at half and at three quarters of the time, as in the paper: epochs 100 and 150 of 200."""

    peak: float
    epochs: float

    def rate(self, time: float) -> float:
        return self.peak * 0.1 ** sum(time >= self.epochs * milestone for milestone in (0.5, 0.75))


SCHEDULES: dict[str, type[OneCycle] | type[Steps]] = {"one-cycle": OneCycle, "steps": Steps}
