"""Attacks, one to a file. Each is a frozen record of its settings, called as attack(model, images, labels, generator)."""

from gdws.attacks.autoattack import AutoAttack
from gdws.attacks.base import Attack
from gdws.attacks.classics import BIM, FGSM, DeepFool
from gdws.attacks.msd import MSD
from gdws.attacks.pgd import PGD
from gdws.attacks.presets import preset

__all__ = ["BIM", "FGSM", "MSD", "PGD", "Attack", "AutoAttack", "DeepFool", "preset"]
