"""What a user asks of a compression: how much may be left, or how much may be lost."""

from __future__ import annotations

from dataclasses import dataclass

from gdws.errors import GdwsError


@dataclass(frozen=True)
class Budget:
    """One number and what it bounds."""

    value: float

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


class Params(_Fraction):
    """At most this fraction of the weights of the convolutions that may be replaced."""


class Latency(_Fraction):
    """At most this fraction of the time that the whole network takes, dense and in the fastest engine, measured."""

    @property
    def share(self) -> float:
        return self.value


class Speedup(Budget):
    """At least this many times faster than the whole network, dense and in the fastest engine, measured."""

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
    """The smallest network whose decisions differ from the original's on at most this many points of held-back images."""

    def _check(self) -> None:
        if not 0 < self.value < 100:
            raise GdwsError(f"{self}: expected points of agreement above 0 and below 100")


KINDS: dict[str, type[Budget]] = {kind.__name__: kind for kind in (Macs, Params, Latency, Speedup, Beta, Drop)}
