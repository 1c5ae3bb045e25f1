"""All families of cases."""

from __future__ import annotations

from chaos import calls, commands, contention, disk, kills, mutants
from chaos.case import Family

PARTS = ("inputs", "mutants", "kills", "contention", "disk")


def families() -> list[Family]:
    return [
        *commands.families(),
        *calls.families(),
        *mutants.families(),
        *kills.families(),
        *contention.families(),
        *disk.families(),
    ]
