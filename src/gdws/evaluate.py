"""Natural and robust accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdws.attacks import PGD
from gdws.contract import Batches, checked_logits, evaluating, full_precision, placement, unpack
from gdws.errors import GdwsError
from gdws.progress import note, track


@dataclass(frozen=True)
class Accuracy:
    """Which images a model decides rightly: natural (N,), and attacked (N,), None without an attack. Bools."""

    natural: Tensor
    attacked: Tensor | None

    @property
    def natural_percent(self) -> float:
        return _percent(self.natural)

    @property
    def robust_percent(self) -> float:
        return math.nan if self.attacked is None else _percent(self.attacked)


def evaluate(model: nn.Module, batches: Batches, attack: PGD | None = None, seed: int = 0) -> Accuracy:
    """Decide every image, and every rightly decided image again after the attack. True float32 throughout.

    An image that is wrong without an attack counts as wrong with it. Random starts come from a generator of their own.
    """
    device, dtype = placement(model)
    generator = torch.Generator().manual_seed(seed)
    natural, robust = [], []
    with full_precision(), evaluating(model):
        for batch in track(batches, "natural accuracy" if attack is None else str(attack)):
            images, labels = unpack(batch)
            if labels is None:
                raise GdwsError("the data has no labels: expected (images, labels) to score a model on")
            images, labels = images.to(device, dtype), labels.to(device)
            with torch.no_grad():
                right = checked_logits(model, images, labels).argmax(1) == labels
            natural.append(right.cpu())
            if attack is not None:
                survived = torch.zeros_like(right)
                if bool(right.any()):
                    adversarial = attack(model, images[right], labels[right], generator)
                    with torch.no_grad():
                        survived[right] = model(adversarial).argmax(1) == labels[right]
                robust.append(survived.cpu())
                note(f"robust so far {_percent(torch.cat(robust)):.1f} %")
    if not natural:
        raise GdwsError("the evaluation data is empty: expected at least one batch")
    return Accuracy(torch.cat(natural), torch.cat(robust) if robust else None)


def _percent(right: Tensor) -> float:
    return 100 * float(right.float().mean())
