"""How a compression is decided: the rare settings of `calibrate`, `plan` and `compress`, in one record for each method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from gdws.attacks import PGD
from gdws.errors import GdwsError

ATTACK = PGD(steps=7)
"""The attack on the calibration images: what adversarial training uses."""
AUTO: Literal["auto"] = "auto"
"""Attack the calibration images with ATTACK where the network has robustness to keep."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """What all methods have in common.

    attack      made first on the calibration images, and on those that Drop holds back. None calibrates clean, for a network
                that is not meant to be robust. "auto" looks first (gdws.calibration.robustness).
    exclude     shell patterns of convolutions to leave dense.
    keep_first  leave the first convolution dense, as the paper does.
    keep_1x1    leave 1x1 convolutions dense, as the paper does.
    """

    name: ClassVar[str]
    attack: PGD | Literal["auto"] | None = AUTO
    exclude: Sequence[str] = ()
    keep_first: bool = True
    keep_1x1: bool = True

    @property
    def settled_attack(self) -> PGD | None:
        """The attack, where it is not left to a look at the network."""
        assert not isinstance(self.attack, str), "gdws.calibration.robustness.settle_attack comes first"
        return self.attack


@dataclass(frozen=True, kw_only=True)
class Calibrated(Method):
    """Least predicted loss in the metric of the data: one exact allocation over all layers, refit when applied.

    structures  what each layer may become: "gdws", "separable", ... or "auto" for the best of all (gdws.structures).
    """

    name: ClassVar[str] = "calibrated"
    structures: str | Sequence[str] = "auto"


@dataclass(frozen=True, kw_only=True)
class Paper(Method):
    """Algorithm 3 of the paper: LEGO with one beta for all layers, and alpha from equation (8).

    For a Macs or Params budget the least beta that meets it is found exactly.
    """

    name: ClassVar[str] = "paper"


@dataclass(frozen=True, kw_only=True)
class Uniform(Method):
    """GDWS-U of the paper: MEGO without weights, the same fraction in every layer. It needs no calibration."""

    name: ClassVar[str] = "uniform"


METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (Calibrated, Paper, Uniform)}


def method_of(method: str | Method) -> Method:
    """A method, or the one of this name with its usual settings."""
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise GdwsError(f"method is {method!r}: expected one of {', '.join(METHODS)}")
    return METHODS[method]()
