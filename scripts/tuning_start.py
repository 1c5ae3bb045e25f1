"""The first steps of tuning towards a teacher, with one part taken out at a time: docs/training.md's table.

    python scripts/tuning_start.py FOLDER --teacher zoo:preactresnet18 --weights FILE --data DATA [--rate 0.005] [--steps 60]

FOLDER is a compressed network. Every variant takes the same --steps steps (PGD-3, batches of 32, a one-cycle schedule of that
length) and is then compared with the teacher: KL divergence on natural images and on those attacked by PGD-3, of the first --n
of the test split. A network that is near its teacher should not leave it on the way to something better.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from gdws import data, models
from gdws.attacks import PGD
from gdws.data import Dataset
from gdws.ranks import ALONE
from gdws.training import Recipe
from gdws.training.learner import Learner
from gdws.training.objectives import Taught, divergence
from gdws.training.tuning import balance, movable

ATTACK = PGD(steps=3, step=4 / 255)
BATCH = 32


class WithStatistics(Taught):
    trains_statistics: ClassVar[bool] = True


class AttackedOnly(Taught):
    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return super().losses(model, attacked, attacked, labels)


@dataclass(frozen=True)
class Variant:
    objective: type[Taught] = Taught
    balanced: bool = True


VARIANTS = {
    "as it is": Variant(),
    "factors not balanced": Variant(balanced=False),
    "a batch's own statistics": Variant(WithStatistics),
    "neither": Variant(WithStatistics, balanced=False),
    "attacked images only": Variant(AttackedOnly),
}


@torch.no_grad()
def distance(model: nn.Module, teacher: nn.Module, test: Dataset) -> str:
    sums = torch.zeros(2)
    for number, (images, labels) in enumerate(test):
        attacked = ATTACK(model, images, labels, torch.Generator().manual_seed(number))
        sums += torch.stack([divergence(teacher(x), model(x)).sum() for x in (images, attacked)])
    natural, robust = (sums / len(test.labels)).tolist()
    return f"{natural:.4f} / {robust:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=tuple(VARIANTS))
    options = parser.parse_args()
    teacher = models.resolve(options.teacher, options.weights).eval().requires_grad_(False)
    train = data.load(options.data, "train").take(options.steps * BATCH)
    test = data.load(options.data, "test").take(options.n, 50)
    print(f"| before | {distance(models.resolve(options.folder).eval(), teacher, test)} |", flush=True)
    for name in options.variants:
        variant, model = VARIANTS[name], movable(models.resolve(options.folder))
        if variant.balanced:
            balance(model)
        recipe = Recipe(epochs=1, batch=BATCH, rate=options.rate, attack=ATTACK)
        learner = Learner(model, train, recipe, variant.objective(teacher), ALONE)
        for step in range(options.steps):
            learner.step(0, step)
        print(f"| {name} | {distance(learner.averaged, teacher, test)} |", flush=True)


if __name__ == "__main__":
    main()
