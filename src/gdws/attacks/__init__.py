"""Attacks, one to a file. Each is a frozen record of its settings, called as attack(model, images, labels, generator)."""

from gdws.attacks.pgd import PGD

__all__ = ["PGD"]
