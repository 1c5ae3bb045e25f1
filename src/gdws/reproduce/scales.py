"""How large everything is: `smoke` tries it all in seconds, `fast` trains for tens of epochs, `paper` does as the paper did.

The paper prints no step size for its evaluation. Its authors' public script judges by the last of 100 steps of 1/255 from one
random start, and `paper` does so. `fast` takes the same steps and counts an image as wrong as soon as one of them is: that is
never weaker, and about twice as fast. It judges the first 2,000 images where `paper` judges all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import nn

from gdws.attacks import BIM, FGSM, MSD, PGD, Attack, AutoAttack, DeepFool
from gdws.core.errors import GdwsError
from gdws.deploy.benchmark import PAPER
from gdws.models import zoo
from gdws.reproduce.paper import BaseRow
from gdws.training import Recipe, pruning_for, recipe_for
from gdws.training.pruning import Admm
from gdws.training.pruning.method import Method
from gdws.training.pruning.recipes import NearbyPGD

Columns = tuple[tuple[str, Attack], ...]
"""What an evaluation finds beside natural accuracy: names of columns, and their attacks."""
CALIBRATION = {"": PGD(steps=7), "imagenet": PGD(eps=4 / 255, step=1 / 255, steps=4)}
"""How the paper attacks the images that it calibrates on, by data; "" for all others."""
NORMS = ("linf", "l2", "l1")
_PUBLISHED = Recipe(batch=128, rate=0.1, schedule="cosine", nesterov=False, weight_decay=1e-4, average=0)
RECIPES = {
    "robnet": replace(_PUBLISHED, epochs=100),
    "hydra": replace(_PUBLISHED, epochs=100, loss="trades", attack=NearbyPGD(eps=0.031, step=0.0078, steps=10)),
    "admm": replace(_PUBLISHED, epochs=200, attack=PGD(steps=10)),
}
"""Those of the paper's rivals, for their bases."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is.

    attacks              of each evaluation.
    images               that are judged at most, by evaluation or data; "" for all others.
    batch                of them, at most.
    calibration          images that networks are calibrated on, by data, and how they are attacked (calibration_attacks).
    passes               warm-up and timed passes of single images.
    in_engines           whether networks are timed in an engine too.
    companions           networks beside whose last row the calibrated method is put, and our recipe; None for every row of all.
    trained_on           training images; None for all.
    taught               epochs by which networks of the calibrated method are tuned; those of the paper have ten, as there.
    pruning              recipe of gdws.training by which networks are pruned.
    """

    name: str
    attacks: dict[str, Columns]
    images: dict[str, int] = field(default_factory=dict)
    batch: int = 10_000
    calibration: dict[str, int] = field(default_factory=lambda: {"": 1000, "imagenet": 5000})
    calibration_attacks: dict[str, PGD] = field(default_factory=lambda: CALIBRATION)
    passes: tuple[int, int] = PAPER
    in_engines: bool = True
    companions: tuple[str, ...] | None = None
    trained_on: int | None = None
    taught: int = 10
    pruning: str = "fast"

    def images_of(self, evaluation: str, data: str) -> int:
        """How many test images are judged."""
        return self.images.get(evaluation, self.images.get(data, self.images[""]))

    def calibrated_on(self, data: str) -> tuple[int, PGD]:
        """How many training images a network is calibrated on, and how they are attacked."""
        attack = self.calibration_attacks.get(data, self.calibration_attacks[""])
        return self.calibration.get(data, self.calibration[""]), attack

    def has_company(self, source: str, is_last: bool) -> bool:
        """Whether the calibrated method is put beside a row of a network, and our recipe beside the paper's."""
        return self.companions is None or (is_last and source in self.companions)

    @property
    def is_smoke(self) -> bool:
        return self.name == "smoke"

    def build(self, network: str, classes: int) -> nn.Module:
        """A network of the zoo with fresh weights; in a smoke test a small one stands for all."""
        return small_network(classes).eval() if self.is_smoke else zoo.build(network, classes)

    def recipe(self, row: BaseRow, name: str, device: str, seed: int) -> Recipe:
        """By which a base is trained."""
        if self.is_smoke:
            return Recipe(epochs=1, batch=20, rate=0.05, attack=PGD(steps=1), average=0, seed=seed)
        if name in RECIPES:
            made = replace(RECIPES[name], seed=seed, precision="bfloat16" if device == "cuda" else "float32")
        else:
            made = recipe_for(f"{row.data}:", device, name, seed=seed)
        if self.name == "paper":
            return made
        epochs = row.epochs[name]
        attack = replace(made.attack, steps=10) if isinstance(made.attack, MSD) else made.attack
        return replace(made, epochs=epochs, warmup=made.warmup * epochs // made.epochs, attack=attack)

    def pruned(self, method: str, keep: float, data: str, device: str, seed: int) -> Method:
        """How HYDRA or ADMM prunes a base."""
        if not self.is_smoke:
            return pruning_for(method, f"{data}:", device, keep=keep, recipe=self.pruning, seed=seed)
        made = pruning_for(method, "demo", keep=keep, prune_epochs=1, epochs=1, batch=20, steps=1, seed=seed)
        return replace(made, periods=1) if isinstance(made, Admm) else made

    def tuning(self, data: str, device: str, seed: int, taught: bool) -> Recipe:
        """How the paper tunes its networks on labels, or we those of the calibrated method, which the original teaches."""
        made = replace(recipe_for(f"{data}:", device, "tune", seed=seed), epochs=self.taught if taught else 10)
        return replace(made, epochs=1, batch=20, attack=PGD(steps=1)) if self.is_smoke else made


def small_network(classes: int) -> nn.Module:
    """A network that stands for all others where only the way is tried."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*block(3, 8, 2), *block(8, 16, 2), *block(16, 16, 1), *block(16, 16, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))


def _attacks(early_exit: bool, restarts: int) -> dict[str, Columns]:
    union = {"linf": (0.03, 0.003, 100), "l2": (0.5, 0.01, 500), "l1": (12.0, 1.0, 100)}
    return {
        "pgd": (("robust", PGD(steps=100, step=1 / 255, early_exit=early_exit)),),
        "imagenet": (("robust", PGD(eps=4 / 255, step=1 / 255, steps=50, early_exit=early_exit)),),
        "union": tuple(
            (norm, PGD(norm=norm, eps=eps, step=step, steps=steps, restarts=restarts, early_exit=True))
            for norm, (eps, step, steps) in union.items()
        ),
        "classic": (("fgsm", FGSM()), ("bim", BIM()), ("deepfool", DeepFool())),
        "autoattack": (("autoattack", AutoAttack()),),
        "none": (),
    }


SCALES: dict[str, Callable[[], Scale]] = {
    "smoke": lambda: Scale(
        name="smoke",
        attacks={
            "pgd": (("robust", PGD(steps=1)),),
            "imagenet": (("robust", PGD(steps=1)),),
            "union": tuple((norm, PGD(norm=norm, eps=0.5, step=0.25, steps=1)) for norm in NORMS),
            "classic": (("fgsm", FGSM()), ("bim", BIM(steps=1)), ("deepfool", DeepFool(steps=1))),
            "autoattack": (("autoattack", AutoAttack(version="custom", parts=("apgd-ce",))),),
            "none": (),
        },
        images={"": 10, "autoattack": 4},
        batch=5,
        calibration={"": 4},
        calibration_attacks={"": PGD(steps=1)},
        passes=(1, 3),
        in_engines=False,
        companions=("cifar10-vgg16", "cifar10-hydra-vgg16.hydra-0.1"),
        trained_on=40,
    ),
    "fast": lambda: Scale(
        name="fast",
        attacks=_attacks(early_exit=True, restarts=2),
        images={"": 2000, "autoattack": 10_000, "union": 500},
        passes=(20, 100),
        taught=4,
    ),
    "paper": lambda: Scale(
        name="paper",
        attacks=_attacks(early_exit=False, restarts=10),
        images={"": 10_000, "svhn": 26_032, "imagenet": 50_000, "union": 1000},
        pruning="paper",
    ),
}


def scale(name: str) -> Scale:
    """The scale of this name. Raises GdwsError when there is none."""
    if name not in SCALES:
        raise GdwsError(f"the scale is {name!r}: expected one of {', '.join(SCALES)}")
    return SCALES[name]()
