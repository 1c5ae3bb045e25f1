"""What a compression cost on data that it was not made with: a record for each kind of output."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gdws.core.errors import GdwsError
from gdws.core.reading.schema import Count, Size
from gdws.planning.significance import PairedChange, clopper_pearson

HELD_OUT, TRAINING, HELD_BACK = "held-out", "other training", "held-back calibration"
"""Where the images come from on which a network is compared with its original: the user gave them as unseen; they were left
over from the data that the calibration images are of; or they were taken out of the calibration images themselves."""
BY_HEART = 0.995
"""Networks that classify this share of their training images correctly have memorized them."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """What a compressed network cost, on images that it was not calibrated on. Counts of images.

    source           HELD_OUT, TRAINING or HELD_BACK
    images           compared
    agreed           of these, given the same class by both networks
    change           correct before and after; None without labels
    attacked         images that were attacked too, on the original; 0 without an attack
    attacked_agreed  of these, given the same class by both networks
    attacked_lost    of these, withstood by the original alone. What is withstood by the compressed network alone is no gain:
                     the attack was not made on it.
    """

    source: str
    images: Size
    agreed: Count
    change: PairedChange | None = None
    attacked: Count = 0
    attacked_agreed: Count = 0
    attacked_lost: Count = 0

    def __post_init__(self) -> None:
        decided = (self.images,) if self.change is None else tuple(vars(self.change).values())
        counted = sum(decided)
        if counted != self.images or min(decided) < 0 or max(self.agreed, self.attacked) > counted:
            raise GdwsError(
                f"{counted} images counted, {self.agreed} agree, {self.attacked} attacked: expected {self.images} at most"
            )
        if max(self.attacked_agreed, self.attacked_lost) > self.attacked:
            raise GdwsError(
                f"{self.attacked_lost} of {self.attacked} attacked images are lost: expected no more than there are"
            )

    @property
    def agreement(self) -> float:
        """Percentage of the images that both networks give the same class."""
        return 100 * self.agreed / self.images

    @property
    def agreement_interval(self) -> tuple[float, float]:
        """95 %, exact."""
        return _percent(self.agreed, self.images)

    @property
    def attacked_agreement(self) -> float | None:
        return 100 * self.attacked_agreed / self.attacked if self.attacked else None

    @property
    def attacked_interval(self) -> tuple[float, float] | None:
        return _percent(self.attacked_agreed, self.attacked) if self.attacked else None

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Percentage correct before and after."""
        if self.change is None:
            return None
        both, total = self.change.both, self.change.total
        return 100 * (both + self.change.lost) / total, 100 * (both + self.change.gained) / total

    @property
    def most_lost(self) -> float:
        """The upper end of the 95 % interval of what was lost, in points: of accuracy, or of agreement without labels; and of
        what was withstood before, where images were attacked."""
        clean = 100 - self.agreement_interval[0] if self.change is None else -self.change.score_interval[0]
        return max(clean, _percent(self.attacked_lost, self.attacked)[1]) if self.attacked else clean

    @property
    def warning(self) -> str:
        """What speaks against these numbers: the original seems to have memorized the images. Empty if nothing does."""
        if self.source == HELD_OUT or self.accuracy is None or self.accuracy[0] < 100 * BY_HEART:
            return ""
        return (
            f"the original classifies {self.accuracy[0]:.1f} % of {self.images} {self.source} images correctly: it seems to "
            "have memorized them, and they say little of others; give held-out images with check=, --check"
        )

    def __str__(self) -> str:
        """Accuracy where there are labels, agreement where not, each with its interval."""
        attacked = ""
        if self.attacked_interval is not None:
            attacked = (
                f"; of {self.attacked} attacked images {self.attacked_agreement:.1f} % are classified as by the original "
                f"({_range(self.attacked_interval)})"
            )
        if self.change is None or self.accuracy is None:
            told = f"{self.agreement:.1f} % of {self.images} {self.source} images are classified as by the original"
            return f"{told} ({_range(self.agreement_interval)}){attacked}"
        before, after = self.accuracy
        told = f"accuracy {before:.1f} % before, {after:.1f} % after on {self.images} {self.source} images"
        return f"{told}: {after - before:+.1f} points ({_range(self.change.score_interval, '+.1f')}){attacked}"

    def record(self) -> dict[str, Any]:
        """As JSON, with what follows from the counts. Percent and points."""
        return asdict(self) | {
            "agreement": self.agreement,
            "agreement_interval": self.agreement_interval,
            "attacked_agreement": self.attacked_agreement,
            "attacked_interval": self.attacked_interval,
            "accuracy": self.accuracy,
            "points": None if self.change is None else self.change.points,
            "points_interval": None if self.change is None else self.change.score_interval,
        }


@dataclass(frozen=True, kw_only=True)
class OutputChange:
    """How far the outputs of a compressed network are from the original's, where they are no classes.

    objective  by which distances are measured (gdws.objectives)
    unit       what a distance in percent is of
    source     HELD_OUT, TRAINING or HELD_BACK
    samples    compared
    distance   the mean over the samples: a share, or the root of the mean relative squared error
    low, high  its 95 % interval
    noise      PSNR in dB of the compressed network's output against the original's, where that is one picture: its peak is the
               largest minus the smallest value of the original's outputs, or 1 where these are in [0, 1]; else None
    """

    objective: str
    unit: str
    source: str
    samples: Size
    distance: float
    low: float
    high: float
    noise: float | None = None

    @property
    def most_lost(self) -> float:
        """The upper end of the interval, in percent."""
        return 100 * self.high

    @property
    def warning(self) -> str:
        """What speaks against the number: nothing."""
        return ""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def __str__(self) -> str:
        noise = "" if self.noise is None else f"; PSNR {self.noise:.1f} dB against the original's outputs"
        return (
            f"{100 * self.distance:.2f} % {self.unit}, on {self.samples} {self.source} samples "
            f"({_range((100 * self.low, 100 * self.high), '.2f')}){noise}"
        )


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """What a measure of the user's own says of both networks.

    name    of its function
    before  of the original
    after   of the compressed network; more is better
    """

    name: str
    before: float
    after: float

    @property
    def most_lost(self) -> float:
        """How much less it is, in its own unit. One number has no interval."""
        return self.before - self.after

    @property
    def warning(self) -> str:
        """What speaks against the numbers: nothing."""
        return ""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name} {self.before:.4g} before, {self.after:.4g} after: {self.after - self.before:+.3g}"


AnyFidelity = Fidelity | OutputChange | MetricChange


def _percent(count: int, total: int) -> tuple[float, float]:
    low, high = clopper_pearson(count, total)
    return 100 * low, 100 * high


def _range(interval: tuple[float, float], form: str = ".1f") -> str:
    low, high = interval
    return f"95 % interval {low:{form}} to {high:{form}}"
