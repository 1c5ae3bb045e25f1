"""How a compression is made: the rare settings of `calibrate`, `plan` and `compress`, in one record for each method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from gdws.attacks import PGD
from gdws.core.checks import is_count
from gdws.core.errors import GdwsError
from gdws.objectives import OBJECTIVES, Objective

ATTACK = PGD(steps=4)
"""The attack on the calibration images. Its start and four steps reach across the ball; with the seven of adversarial training,
networks calibrated on them are no better, and half of the time is theirs."""
AUTO: Literal["auto"] = "auto"
"""An attack or an objective that is left to a look at the network: ATTACK where it has robustness to keep, and what its
outputs speak for."""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """How a compressed network is repaired.

    steps        of the optimizer, Adam; the rate falls to zero along a cosine.
    seconds      to go on for, in the place of `steps`. What comes of it then depends on the machine.
    batch        samples in each.
    rate         largest step, as a share of the size of each tensor's values.
    activations  weight of what the replaced layers give, relative to the outputs.
    attack       made on the compressed network first, toward other classes than the original's; None: samples as they are.

    >>> import gdws
    >>> gdws.Repair(steps=100).batch
    8
    """

    steps: int = 500
    seconds: float | None = None
    batch: int = 8
    rate: float = 5e-3
    activations: float = 1.0
    attack: PGD | None = None

    def __post_init__(self) -> None:
        if not (is_count(self.steps, 1) and is_count(self.batch, 1)):
            raise GdwsError(f"{self}: expected at least one step and one sample in a batch")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise GdwsError(f"{self}: expected a finite number of seconds above 0, or None to count steps")
        if not (0 < self.rate < 1 and 0 <= self.activations < float("inf")):
            raise GdwsError(f"{self}: expected a rate from 0 to 1 and a weight of at least 0")


@dataclass(frozen=True, kw_only=True)
class Method:
    """The settings that all methods have in common.

    objective   what must be kept of the outputs: "classes", "pixels", "values", a gdws.objectives.Own, or "auto", which goes by
                their shapes (gdws.objectives.fitting).
    attack      made first on the calibration images, and on those that Drop holds back. None calibrates clean, for a network
                that is not meant to be robust. "auto" looks first (gdws.calibration.robustness).
    exclude     shell patterns of convolutions to leave dense.
    keep_first  leave the first convolution dense, as the paper does.
    keep_1x1    leave 1x1 convolutions dense, as the paper does.
    """

    name: ClassVar[str]
    objective: str | Objective = AUTO
    attack: PGD | Literal["auto"] | None = AUTO
    exclude: Sequence[str] = ()
    keep_first: bool = True
    keep_1x1: bool = True

    def __post_init__(self) -> None:
        if not (self.attack is None or self.attack == AUTO or isinstance(self.attack, PGD)):
            raise GdwsError(f"attack is {self.attack!r}: expected a gdws.attacks.PGD, {AUTO!r} or None")
        if not isinstance(self.objective, Objective) and self.objective not in (AUTO, *OBJECTIVES):
            raise GdwsError(
                f"the objective is {self.objective!r}: expected {AUTO}, {', '.join(OBJECTIVES)} or a gdws.objectives.Own"
            )
        if isinstance(self.exclude, str):
            raise GdwsError(f"exclude is {self.exclude!r}: expected a list of patterns, such as [{self.exclude!r}]")

    @property
    def settled_objective(self) -> Objective:
        """The objective, where it is not left to a look at the network."""
        assert isinstance(self.objective, Objective), "gdws.calibration.collect.settle comes first"
        return self.objective

    @property
    def settled_attack(self) -> PGD | None:
        """The attack, where it is not left to a look at the network."""
        assert not isinstance(self.attack, str), "gdws.calibration.robustness.settle_attack comes first"
        return self.attack


@dataclass(frozen=True, kw_only=True)
class Calibrated(Method):
    """The calibrated method, the default: least predicted loss in the metric of the data.

    One exact allocation over all layers chooses a structure and a size for each; gdws.apply then refits the layers.

    structures  what each layer may become: "gdws", "vertical", "horizontal", "project", "separable", several of these, or
                "auto" for the best of all (gdws.structures).
    objective   what must be kept of the outputs; by default what their shapes speak for.
    attack      made first on the calibration images, and on those that Drop holds back; None for a network that is not meant
                to be robust.
    exclude     shell patterns of convolutions to leave dense, such as "layer4.*".
    keep_first  leave the first convolution dense, as the paper does.
    keep_1x1    leave 1x1 convolutions dense, as the paper does.
    repair      tune the result on the calibration images, without labels (gdws.Repair); for gdws.compress alone.

    An unknown structure or an unused pattern raises GdwsError when the method is used.

    >>> import gdws
    >>> gdws.Calibrated(structures="gdws", exclude=["layer4.*"]).attack
    'auto'
    """

    name: ClassVar[str] = "calibrated"
    structures: str | Sequence[str] = "auto"
    repair: Repair | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.repair is None or isinstance(self.repair, Repair)):
            raise GdwsError(f"repair is {self.repair!r:.40}: expected a gdws.Repair or None")


@dataclass(frozen=True, kw_only=True)
class Paper(Method):
    """Algorithm 3 of the paper: LEGO with one beta for all layers, and alpha from equation (8).

    For a Macs or Params budget the least beta that meets it is found exactly. Layers become GDWS or stay dense.

    exact       compute alpha class by class, one backward pass for each. By default random signs estimate it in one pass.
    objective   what must be kept of the outputs; by default what their shapes speak for.
    attack      made first on the calibration images, and on those that Drop holds back; None for a network that is not meant
                to be robust.
    exclude     shell patterns of convolutions to leave dense, such as "layer4.*".
    keep_first  leave the first convolution dense, as the paper does.
    keep_1x1    leave 1x1 convolutions dense, as the paper does.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> plan = gdws.plan(model, images, gdws.Macs(0.5), gdws.Paper(attack=None, exclude=["layer3.*"]))
    >>> plan.macs <= 0.5
    True
    """

    name: ClassVar[str] = "paper"
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class Uniform(Method):
    """GDWS-U of the paper: MEGO without weights, the same fraction in every layer.

    It needs no calibration: one image is enough, for the sizes of the feature maps. Drop needs more, to hold some back.

    objective   what must be kept of the outputs; by default what their shapes speak for.
    attack      made on the images that the result is checked on; "auto" and None make none.
    exclude     shell patterns of convolutions to leave dense, such as "layer4.*".
    keep_first  leave the first convolution dense, as the paper does.
    keep_1x1    leave 1x1 convolutions dense, as the paper does.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(1)
    >>> gdws.plan(model, images, gdws.Params(0.5), gdws.Uniform()).parameters <= 0.5
    True
    """

    name: ClassVar[str] = "uniform"


METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (Calibrated, Paper, Uniform)}


def method_of(method: str | Method) -> Method:
    """A method, or the one of this name with its usual settings."""
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise GdwsError(f"method is {method!r}: expected one of {', '.join(METHODS)}")
    return METHODS[method]()
