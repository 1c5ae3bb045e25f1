"""Attacks: frozen records of settings that make adversarial images.

All are called in the same way: attack(model, images, labels, generator). PGD, MSD and AutoAttack measure robustness. FGSM,
BIM and DeepFool are weaker and come from foolbox. `preset` gives the attacks of the paper's tables by name.

>>> from gdws import attacks, data, models
>>> images, labels = next(iter(data.load("demo", "test").take(4)))
>>> attacked = attacks.PGD(steps=2)(models.embedded(), images, labels)
>>> bool((attacked - images).abs().max() <= 8 / 255 + 1e-6)
True
"""

from gdws.attacks.autoattack import AutoAttack
from gdws.attacks.base import Attack
from gdws.attacks.classics import BIM, FGSM, DeepFool
from gdws.attacks.msd import MSD
from gdws.attacks.pgd import PGD
from gdws.attacks.presets import preset

__all__ = ["BIM", "FGSM", "MSD", "PGD", "Attack", "AutoAttack", "DeepFool", "preset"]
