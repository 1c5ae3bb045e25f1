"""All families of cases."""

from __future__ import annotations

from chaos import mutants
from chaos.case import Family

PARTS = ("mutants",)


def families() -> list[Family]:
    return [*mutants.families()]
