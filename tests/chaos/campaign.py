"""All families of cases."""

from __future__ import annotations

from chaos import contention, disk, kills
from chaos.case import Family
from chaos.inputs import calls, large, lines
from chaos.mutants import kinds
from chaos.numeric import works

PARTS = ("inputs", "mutants", "kills", "numeric", "contention", "disk")


def families() -> list[Family]:
    """Those that take long come last, so that the workers end together."""
    parts = (works, kinds, calls, lines, large, disk, contention, kills)
    return [family for part in parts for family in part.families()]
