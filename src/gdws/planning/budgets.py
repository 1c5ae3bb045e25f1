"""What a user asks of a compression: how much may be left, or how much may be lost."""

from __future__ import annotations

import reprlib
import sys
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Protocol

from gdws.core.errors import GdwsError
from gdws.core.sites import Site
from gdws.planning import cost
from gdws.structures.base import Structure


class Prices(Protocol):
    """What a layer costs, in whatever unit a budget is counted in."""

    def dense(self, site: Site) -> float:
        """As it is."""
        ...

    def of(self, structure: Structure, site: Site, size: int) -> float:
        """In a structure of this size."""
        ...


class _MultiplyAdds:
    def dense(self, site: Site) -> int:
        return cost.dense_macs(site)

    def of(self, structure: Structure, site: Site, size: int) -> int:
        return structure.macs(site, size)


class _Weights:
    def dense(self, site: Site) -> int:
        return cost.dense_parameters(site)

    def of(self, structure: Structure, site: Site, size: int) -> int:
        return structure.parameters(site.conv, size)


@dataclass(frozen=True)
class Budget:
    """What is asked of a compression: one number, and what it bounds.

    value        the number.
    prices       how layers are counted against it, where a plan alone tells what it costs; None otherwise.
    is_measured  whether it is of time, which is measured where the network will run.
    is_searched  whether compressed networks have to be tried to know what fits.
    """

    value: float
    prices: ClassVar[Prices | None] = None
    is_measured: ClassVar[bool] = False
    is_searched: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.value, Real):
            raise GdwsError(f"{type(self).__name__} got {reprlib.repr(self.value)}: expected a number")
        if not -sys.float_info.max <= self.value <= sys.float_info.max and isinstance(self.value, int):
            raise GdwsError(
                f"{type(self).__name__} got an integer of {self.value.bit_length()} bits: expected a smaller number"
            )
        self._check()

    def _check(self) -> None:
        kinds = ", ".join(KINDS)
        raise GdwsError(f"{self}: expected one of {kinds}")

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.value:g})"


class _Fraction(Budget):
    def _check(self) -> None:
        if not 0 < self.value <= 1:
            raise GdwsError(f"{self}: expected a fraction above 0 and at most 1")


class Macs(_Fraction):
    """Leave at most this fraction of the multiply-adds of the convolutions that may be replaced.

    value  the fraction, above 0 and at most 1; else it raises GdwsError.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> gdws.plan(model, images, gdws.Macs(0.5), "uniform").macs <= 0.5
    True
    """

    prices = _MultiplyAdds()


class Params(_Fraction):
    """Leave at most this fraction of the weights of the convolutions that may be replaced.

    value  the fraction, above 0 and at most 1; else it raises GdwsError.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> gdws.plan(model, images, gdws.Params(0.5), "uniform").parameters <= 0.5
    True
    """

    prices = _Weights()


class Latency(_Fraction):
    """Take at most this fraction of the time of the whole network, dense and in the fastest engine.

    value  the fraction, above 0 and at most 1; else it raises GdwsError.

    Times are measured where the network will run (gdws.Target). It needs the method "calibrated".

    >>> import gdws
    >>> gdws.Latency(0.5).share == gdws.Speedup(2).share
    True
    """

    is_measured = True

    @property
    def share(self) -> float:
        """The fraction of the time, as of Speedup."""
        return self.value


class Speedup(Budget):
    """Be at least this many times faster than the whole network, dense and in the fastest engine.

    value  a finite number of at least 1; else it raises GdwsError.

    Times are measured where the network will run (gdws.Target). It needs the method "calibrated".

    >>> import gdws
    >>> gdws.Speedup(2).share
    0.5
    """

    is_measured = True

    def _check(self) -> None:
        if not 1 <= self.value < float("inf"):
            raise GdwsError(f"{self}: expected a finite number of at least 1")

    @property
    def share(self) -> float:
        """The same as a fraction of the time."""
        return 1 / self.value


class Beta(Budget):
    """The paper's budget: let every layer's weighted squared error be at most this. It needs the method "paper".

    value  bound on the squared error, finite and at least 0; else it raises GdwsError.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> plan = gdws.plan(model, images, gdws.Beta(0.01), gdws.Paper(attack=None))
    >>> max(layer.loss for layer in plan.layers) <= 0.01
    True
    """

    def _check(self) -> None:
        if not 0 <= self.value < float("inf"):
            raise GdwsError(f"{self}: expected a finite number >= 0 (it bounds the squared error)")


class Drop(Budget):
    """Find the smallest network that loses at most this many points on images that it was not calibrated on (95 % interval).

    value  in percentage points, above 0 and below 100; else it raises GdwsError.

    Points of accuracy where the images have labels, of agreement with the original where not, and where the calibration images
    are attacked, of what the original withstood. Of outputs that are not classes, percent of their distance to the original's;
    of a measure of your own (check=), its unit. Several networks are made; the upper end of a 95 % interval of each one's loss
    counts (most_lost of gdws.planning.fidelity_records). The images are those of check=, or a fifth of the calibration images,
    which tell too little where the network has memorized them. Too few of them are refused: Drop(1) takes at least 368.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> check = gdws.data.load("demo", "test").take(50)
    >>> gdws.plan(model, images, gdws.Drop(20), gdws.Uniform(attack=None), check=check).macs < 1
    True
    """

    is_searched = True

    def _check(self) -> None:
        if not 0 < self.value < 100:
            raise GdwsError(f"{self}: expected points above 0 and below 100")


KINDS: dict[str, type[Budget]] = {kind.__name__: kind for kind in (Macs, Params, Latency, Speedup, Beta, Drop)}


def check_budget(budget: object) -> None:
    """Refuse what is no budget, such as a bare number or a kind without one."""
    if not isinstance(budget, Budget):
        raise GdwsError(f"the budget is {reprlib.repr(budget)}: expected one of {', '.join(KINDS)}, such as Macs(0.5)")
