"""Whether a network has robustness to keep: one look with a few steps of an attack."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from gdws.attacks import PGD
from gdws.calibration.method import ATTACK, AUTO, Method
from gdws.calibration.sensitivity import attacked
from gdws.core.checks import checked_logits, unpack_batch
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, full_precision, placement
from gdws.core.inputs import Inputs

LOOKED_AT = 100
"""Calibration images that are attacked to find out."""
FEWEST = 0.1
"""Of the predictions, that must survive the attack in a network that is worth calibrating under attack."""

Kind = TypeVar("Kind", bound=Method)


def settle_attack(model: nn.Module, images: Inputs, method: Kind) -> Kind:
    """The method with its attack decided: for "auto" the usual one if the network has robustness to keep, otherwise none.

    A network without any misclassifies all attacked images. Calibrated on them it would keep what it does there, at the
    expense of what it does on natural images.
    """
    if not method.settled_objective.attackable:
        if method.attack not in (AUTO, None):
            raise GdwsError(
                f"the objective {method.settled_objective.name!r} got the attack {method.attack}: expected attack=None, as the "
                "attacks are on classifiers"
            )
        return replace(method, attack=None)
    if not isinstance(images, Tensor):
        if method.attack is not None:
            raise GdwsError("a classifier of several inputs got an attack: expected attack=None (gdws.Calibrated(attack=None))")
        return method
    if method.attack is not None:
        unpack_batch(images)
    if method.attack != AUTO:
        return method
    return replace(method, attack=ATTACK if survives(model, images[:LOOKED_AT], ATTACK, FEWEST) else None)


def survives(model: nn.Module, images: Tensor, attack: PGD, share: float) -> bool:
    """Whether at least this share of the decisions on images (N, C, H, W) are the same all through an attack.

    A look at a robust network ends as soon as so many are; one at any other goes on with the images that are left.
    """
    x, attack = images.to(*placement(model)), replace(attack, early_exit=True)
    same = 0
    with full_precision(), evaluating(model):
        for part in x.split(25):
            with torch.no_grad():
                before = checked_logits(model, part).argmax(1)
            after = attacked(model, part, before, attack, torch.Generator().manual_seed(0))
            with torch.no_grad():
                same += int((model(after).argmax(1) == before).sum())
            if same >= share * len(images):
                return True
    return False
