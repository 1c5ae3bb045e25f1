"""What a user asks of a compression: how much may be left, or how much may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from gdws.core import cost
from gdws.core.sites import Site
from gdws.errors import GdwsError
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
    """One number and what it bounds.

    prices       how layers are counted against it, where a plan alone tells what it costs; None otherwise.
    is_measured  whether it is of time, which is measured where the network will run.
    is_searched  whether compressed networks have to be tried to know what fits.
    """

    value: float
    prices: ClassVar[Prices | None] = None
    is_measured: ClassVar[bool] = False
    is_searched: ClassVar[bool] = False

    def __post_init__(self) -> None:
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
    """At most this fraction of the multiply-adds of the convolutions that may be replaced."""

    prices = _MultiplyAdds()


class Params(_Fraction):
    """At most this fraction of the weights of the convolutions that may be replaced."""

    prices = _Weights()


class Latency(_Fraction):
    """At most this fraction of the time that the whole network takes, dense and in the fastest engine, measured."""

    is_measured = True

    @property
    def share(self) -> float:
        return self.value


class Speedup(Budget):
    """At least this many times faster than the whole network, dense and in the fastest engine, measured."""

    is_measured = True

    def _check(self) -> None:
        if not 1 <= self.value < float("inf"):
            raise GdwsError(f"{self}: expected a finite number of at least 1")

    @property
    def share(self) -> float:
        """The same as a fraction of the time."""
        return 1 / self.value


class Beta(Budget):
    """The paper's budget: every layer's weighted *squared* error is at most this."""

    def _check(self) -> None:
        if not 0 <= self.value < float("inf"):
            raise GdwsError(f"{self}: expected a finite number >= 0 (it bounds the squared error)")


class Drop(Budget):
    """The smallest network that loses at most this many points, with 95 % confidence, on images that it was not calibrated on.

    Of accuracy where they have labels, of agreement with the original where not: gdws.planning.plan.Fidelity.most_lost.
    """

    is_searched = True

    def _check(self) -> None:
        if not 0 < self.value < 100:
            raise GdwsError(f"{self}: expected points above 0 and below 100")


KINDS: dict[str, type[Budget]] = {kind.__name__: kind for kind in (Macs, Params, Latency, Speedup, Beta, Drop)}
