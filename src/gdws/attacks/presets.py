"""Attacks by name, after the paper's tables.

PGD and MSD stop an image once it is broken. The paper prints no step sizes for its evaluation: here eps/4 for l-inf alone, as
in its training, and for the union those of Maini et al.'s public evaluation, which it follows. The steps of its authors'
public script are in gdws.reproduce.scales.
"""

from __future__ import annotations

from gdws.attacks.autoattack import AutoAttack
from gdws.attacks.base import Attack
from gdws.attacks.classics import BIM, FGSM, DeepFool
from gdws.attacks.msd import MSD
from gdws.attacks.pgd import PGD
from gdws.core.errors import GdwsError

PRESETS: dict[str, tuple[Attack, ...]] = {
    "pgd-20": (PGD(early_exit=True),),
    "paper-cifar10": (PGD(steps=100, early_exit=True),),
    "paper-imagenet": (PGD(eps=4 / 255, step=1 / 255, steps=50, early_exit=True),),
    "paper-union": (
        PGD(norm="linf", eps=0.03, step=0.003, steps=100, restarts=10, early_exit=True),
        PGD(norm="l2", eps=0.5, step=0.01, steps=500, restarts=10, early_exit=True),
        PGD(norm="l1", eps=12.0, step=1.0, steps=100, restarts=10, early_exit=True),
        MSD(early_exit=True),
    ),
    "autoattack": (AutoAttack(),),
    "fgsm": (FGSM(),),
    "bim": (BIM(),),
    "deepfool": (DeepFool(),),
}
"""The presets: their names, and the attacks of each in the order in which they are run."""


def preset(name: str) -> tuple[Attack, ...]:
    """The attacks of a preset, in the order in which they are run.

    name  "pgd-20", "paper-cifar10", "paper-imagenet", "paper-union", "autoattack", "fgsm", "bim" or "deepfool".

    Returns a tuple of attacks, for gdws.compare. Raises GdwsError when there is no preset of this name.

    >>> from gdws import attacks
    >>> for attack in attacks.preset("paper-cifar10"):
    ...     print(attack)
    PGD-100 (l-inf, eps 8/255, step 2/255)
    """
    if name not in PRESETS:
        raise GdwsError(f"unknown attack {name!r}: expected one of {', '.join(PRESETS)}")
    return PRESETS[name]
