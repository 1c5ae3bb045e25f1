"""Attacks by name."""

from __future__ import annotations

from gdws.attacks.pgd import PGD
from gdws.errors import GdwsError

PRESETS = {"pgd-20": (PGD(),), "paper-cifar10": (PGD(steps=100),)}


def named(name: str) -> tuple[PGD, ...]:
    """The attacks that a preset stands for."""
    if name not in PRESETS:
        raise GdwsError(f"there is no attack {name!r}: expected {', '.join(PRESETS)}")
    return PRESETS[name]
