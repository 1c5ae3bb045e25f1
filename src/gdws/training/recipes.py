"""How a network is trained, as one record that can be kept with it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gdws.attacks import MSD, PGD
from gdws.core.checks import check_seed, is_count
from gdws.core.errors import GdwsError
from gdws.training.losses import Loss, Robust, Trades
from gdws.training.schedules import SCHEDULES

LOSSES: dict[str, type[Loss]] = {"robust": Robust, "trades": Trades}
PRECISIONS = ("float32", "bfloat16")
KEEP = ("best", "last")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained: SGD with momentum 0.9 on attacked images.

    epochs        passes over the images.
    batch         images a step, of all processes together.
    rate          the highest learning rate.
    schedule      how the rate changes: "one-cycle" (up for a quarter of the time, then down to nothing), "cosine" (down to
                  nothing), "pieces" (up until 0.4 of the time, down to a twentieth at 0.8, then to nothing), or divided by ten
                  twice: "steps" (at half and at three quarters), "steps-early" (at 0.4 and 0.75) or "thirds".
    nesterov      Nesterov's momentum, or the plain one.
    weight_decay  of all parameters.
    attack        how the images are attacked; without early exit.
    warmup        epochs in which its radius grows to what it is. Attacked at full strength from the first step, some networks
                  learn to give all images the same class and never leave that (SVHN: Andriushchenko and Flammarion 2020).
    loss          "robust" (cross-entropy on the attacked images) or "trades".
    flip          mirror images at random, besides the random crops. Digits should not be.
    average       every step moves the averaged weights by 1 - average toward the trained ones; they are the result. 0 takes
                  the trained ones.
    precision     of the passes: "float32" or "bfloat16". Weights and validation are float32 always.
    held          images of the training split that are held back from training and judged after every epoch; at most a fifth.
    keep          which epoch is the result: "best", that which does best on the held images (Rice et al. 2020), or "last", for
                  networks that may have been trained on them before.
    patience      end after so many epochs without a higher robust accuracy; None goes through all.
    seed          of everything random.

    Raises GdwsError when a name is unknown or a number out of its range.

    >>> import gdws
    >>> gdws.Recipe(epochs=10, attack=gdws.attacks.PGD(steps=3)).rate
    0.2
    """

    epochs: int = 30
    batch: int = 256
    rate: float = 0.2
    schedule: str = "one-cycle"
    nesterov: bool = True
    weight_decay: float = 5e-4
    attack: PGD | MSD = field(default_factory=lambda: PGD(steps=7))
    warmup: int = 0
    loss: str = "robust"
    flip: bool = True
    average: float = 0.999
    precision: str = "float32"
    held: int = 1000
    keep: str = "best"
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        known = {"schedule": tuple(SCHEDULES), "loss": tuple(LOSSES), "precision": PRECISIONS, "keep": KEEP}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise GdwsError(f"{name} is {getattr(self, name)!r}: expected one of {', '.join(choices)}")
        check_seed(self.seed)
        counts = all(is_count(number, 1) for number in (self.epochs, self.batch, self.held))
        if not counts or not 0 < self.rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise GdwsError(
                f"a recipe has epochs={self.epochs}, batch={self.batch}, held={self.held}, rate={self.rate}, "
                f"weight_decay={self.weight_decay}: expected whole numbers from 1, a rate > 0 and a decay >= 0"
            )
        if not 0 <= self.average < 1 or not (self.patience is None or is_count(self.patience, 1)):
            raise GdwsError(
                f"a recipe has average={self.average}, patience={self.patience}: expected 0 <= average < 1 and a patience "
                "of at least 1 epoch"
            )
        if not is_count(self.warmup) or self.warmup >= self.epochs:
            raise GdwsError(f"a recipe has warmup={self.warmup} of {self.epochs} epochs: expected fewer, and at least 0")
        if self.keep == "last" and self.patience is not None:
            raise GdwsError(f"a recipe has keep='last' and patience={self.patience}: expected patience with keep='best' only")
        if self.attack.early_exit:
            raise GdwsError(f"training attacks with {self.attack} and early exit: expected all its steps on all images")

    def attack_in(self, epoch: int) -> PGD | MSD:
        """The attack of an `epoch`, which count from 0: in the warm-up, of a smaller radius."""
        return self.attack if epoch >= self.warmup else self.attack.scaled((epoch + 1) / (self.warmup + 1))

    def record(self) -> dict[str, Any]:
        """The recipe as a dictionary for JSON."""
        return asdict(self) | {"attack": {"kind": type(self.attack).__name__, **asdict(self.attack)}}


RECIPES = {
    "fast": Recipe(),
    "fast-svhn": Recipe(batch=128, rate=0.05, warmup=10, flip=False),
    "paper-cifar10": Recipe(epochs=200, batch=128, rate=0.1, schedule="steps", average=0),
    "paper-lightweight": Recipe(epochs=200, batch=128, rate=0.1, schedule="steps", weight_decay=2e-4, average=0),
    "paper-svhn": Recipe(epochs=200, batch=128, rate=0.01, schedule="steps", average=0, flip=False),
    "union": Recipe(
        epochs=50,
        batch=128,
        rate=0.1,
        schedule="pieces",
        nesterov=False,
        attack=MSD(eps=(0.03, 0.3, 12.0), steps=50),
        average=0,
    ),
    "tune": Recipe(epochs=10, batch=128, rate=0.05, keep="last"),
}
"""Every recipe by its name (docs/reference/presets.md).

`fast` and `fast-svhn` are this project's; the paper's, after its appendix; `union` for its table 6, after Maini et
al.; `tune`, ten epochs for compressed networks.
"""


def recipe_for(
    data_name: str,
    device: str = "cpu",
    name: str | None = None,
    *,
    eps: float | None = None,
    steps: int | None = None,
    **changes: Any,
) -> Recipe:
    """A recipe as it suits data and a device, with some of its fields changed.

    data_name  as in gdws.data.load. Digits (svhn:DIR) are not mirrored, and have a recipe of their own by default.
    device     "cuda" lets the passes be bfloat16.
    name       of the recipe; by default "fast", or "fast-svhn" for svhn:DIR.
    eps        the radius of the attack, whose step becomes a fourth of it; 0 trains without attack.
    steps      the number of steps of the attack.
    changes    other fields of Recipe; None leaves a field as it is.

    With other epochs, the warm-up keeps its share of them. Returns a Recipe. Raises GdwsError when there is no recipe of this
    name, a field would be out of its range, or eps is given for an attack with several radii.

    >>> from gdws import training
    >>> training.recipe_for("svhn:folder", "cuda", epochs=15).warmup
    5
    """
    base = recipe(name if name is not None else "fast-svhn" if _are_digits(data_name) else "fast")
    return suited(base, data_name, device, eps=eps, steps=steps, **changes)


def suited(
    base: Recipe, data_name: str, device: str, *, eps: float | None = None, steps: int | None = None, **changes: Any
) -> Recipe:
    """A recipe as it suits data and a device, with some of its fields changed. Arguments: `recipe_for`."""
    chosen = {field: value for field, value in changes.items() if value is not None}
    attack = base.attack
    if eps is not None:
        if not isinstance(attack, PGD):
            raise GdwsError(f"eps is {eps:g} with {attack}: expected it with a recipe whose attack has one radius")
        attack = replace(attack, eps=eps, step=eps / 4) if eps else replace(attack, eps=0.0, steps=0)
    if steps is not None:
        attack = replace(attack, steps=steps)
    if "epochs" in chosen:
        chosen["warmup"] = base.warmup * chosen["epochs"] // base.epochs
    if device == "cuda":
        chosen.setdefault("precision", "bfloat16")
    if _are_digits(data_name):
        chosen.setdefault("flip", False)  # a mirrored digit is none
    return replace(base, attack=attack, **chosen)


def _are_digits(data_name: str) -> bool:
    return data_name.startswith("svhn:")


def recipe(name: str) -> Recipe:
    """The training recipe of this name.

    name  "fast", "fast-svhn", "paper-cifar10", "paper-lightweight", "paper-svhn", "union" or "tune".

    Returns a Recipe; dataclasses.replace changes fields of it. Raises GdwsError when there is no recipe of this name.

    >>> from gdws import training
    >>> training.recipe("paper-cifar10").epochs
    200
    """
    if name not in RECIPES:
        raise GdwsError(f"unknown recipe {name!r}: expected one of {', '.join(RECIPES)}")
    return RECIPES[name]
