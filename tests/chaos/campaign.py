"""All families of cases."""

from __future__ import annotations

from chaos import calls, commands, mutants
from chaos.case import Family

PARTS = ("inputs", "mutants")


def families() -> list[Family]:
    return [*commands.families(), *calls.families(), *mutants.families()]
