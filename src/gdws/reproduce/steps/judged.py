"""Natural accuracy and accuracies under attack, image by image."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdws.attacks import Attack
from gdws.core.execution import evaluating, full_precision, placement
from gdws.core.progress import track
from gdws.data import Dataset
from gdws.evaluation.compare import compare, random_starts, without_early_exit
from gdws.evaluation.comparison import NATURAL, WORST, interval, percent
from gdws.reproduce.place import NetworkStep, Place, Step
from gdws.reproduce.scales import Columns

TOP = 5
AUTOATTACK, DEEPFOOL, HALF = 1200, 250, 0.6
"""Passes of an image: of AutoAttack and DeepFool, about; and the part that attacks with early exit take of theirs."""


@dataclass(frozen=True)
class Judged(Step):
    """A network under the attacks of an evaluation. images: a hash of the data.

    Every network of one data set is judged by the same images in the same batches, and random starts depend on the seed, the
    attack and the batch alone: decisions of two networks are paired image by image, whichever step made them.
    """

    network: NetworkStep
    evaluation: str
    attacks: Columns
    count: int
    batch: int
    images: str
    seed: int

    @property
    def title(self) -> str:
        return f"{self.network.title}.{self.evaluation}"

    @property
    def architecture(self) -> str:
        return self.network.architecture

    def run(self, place: Place) -> dict[str, Any]:
        begun, model = time.monotonic(), self.network.network(place)
        test = place.split(self.network.data, "test", self.count).take(None, self.batch)
        checkpoint, tf32 = place.folder(self) / "decisions.jsonl", place.device.type == "cuda"
        resume = checkpoint.exists()
        attacks = [attack for _, attack in self.attacks]
        found = compare(
            {"it": model}, test, attacks, self.seed, transfer=False, checkpoint=checkpoint, resume=resume, tf32=tf32
        )
        columns = {"natural": found.under("it", NATURAL)}
        columns |= {name: found.under("it", str(attack)) for name, attack in self.attacks}
        if self.evaluation == "union":
            columns["union"] = found.under("it", WORST)
        if self.evaluation == "imagenet":
            columns |= _top_five(model, test, self.attacks[0][1], self.seed)
        made = {"images": found.images, "batch": self.batch, "attacks": {name: str(attack) for name, attack in self.attacks}}
        made["crafted in"] = "TF32, judged in float32" if tf32 else "float32"
        return {
            "columns": {name: _column(right) for name, right in columns.items()},
            **made,
            "seconds": time.monotonic() - begun,
        }

    def work(self, place: Place) -> float:
        return min(self.count, len(place.split(self.network.data, "test"))) * (
            1 + sum(_passes(each) for _, each in self.attacks)
        )


def unpack(column: dict[str, Any], count: int) -> Tensor:
    """Which images were decided rightly, bools (N,), of a column of a record."""
    return torch.from_numpy(np.unpackbits(np.frombuffer(bytes.fromhex(column["right"]), np.uint8))[:count]).bool()


def _column(right: Tensor) -> dict[str, Any]:
    return {"percent": percent(right), "interval": interval(right), "right": np.packbits(right.numpy()).tobytes().hex()}


def _passes(attack: Attack) -> float:
    steps = getattr(attack, "steps", None) or (AUTOATTACK if "AutoAttack" in str(attack) else 1)
    steps = DEEPFOOL if "DeepFool" in str(attack) else steps
    return steps * getattr(attack, "restarts", 1) * (HALF if getattr(attack, "early_exit", False) else 1)


def _top_five(model: torch.nn.Module, test: Dataset, attack: Attack, seed: int) -> dict[str, Tensor]:
    """Whether the class is among the five likeliest, of images as they are and after all steps of the attack."""
    attack, (device, _) = without_early_exit(attack), placement(model)
    natural, robust = list[Tensor](), list[Tensor]()
    with full_precision(), evaluating(model), torch.no_grad():
        for number, (images, labels) in enumerate(track(test, "top five")):
            x, y = images.to(device), labels.to(device)
            for found, tried in ((natural, x), (robust, attack(model, x, y, random_starts(attack, seed, number)))):
                best = model(tried).topk(min(TOP, int(model(x[:1]).shape[1])), dim=1).indices
                found.append((best == y[:, None]).any(1).cpu())
    right = torch.cat(natural)
    return {"top-5 natural": right, "top-5 robust": right & torch.cat(robust)}
