"""All families of cases."""

from __future__ import annotations

from chaos import calls, commands, contention, disk, kills, mutants, numeric
from chaos.case import Family

PARTS = ("inputs", "mutants", "kills", "numeric", "contention", "disk")


def families() -> list[Family]:
    """Those that take long come last, so that the workers end together."""
    parts = (numeric, mutants, calls, commands, disk, contention, kills)
    return [family for part in parts for family in part.families()]
