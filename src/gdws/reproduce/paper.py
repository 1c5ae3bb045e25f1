"""What the paper prints, as records: its tables and figures, and the networks that they are about (paper.toml)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from gdws.core.errors import GdwsError
from gdws.core.reading.schema import build

LEADERBOARD = "leaderboard"
MAIN = (*(f"table{number}" for number in range(1, 12)), "figure1", "figure4", "figure5")
"""What `all` stands for: every table and figure with results. The leaderboard is not the paper's."""


@dataclass(frozen=True)
class Table:
    """label: the paper's; evaluation: which attacks its networks are judged under (gdws.reproduce.scales)."""

    label: str
    title: str
    evaluation: str


@dataclass(frozen=True)
class Row:
    """The paper's method on a network: `paper` and, after fine-tuning, `tuned` are the printed numbers."""

    tables: tuple[str, ...]
    paper: dict[str, float]
    tuned: dict[str, float] = field(default_factory=dict)
    size: str = ""


@dataclass(frozen=True)
class PrunedRow:
    """A network that HYDRA or ADMM made of a base, and the paper's method on that. file: weights that are taken if there."""

    method: str
    keep: float
    tables: tuple[str, ...]
    paper: dict[str, float]
    gdws: tuple[Row, ...] = ()
    file: str = ""
    size: str = ""


@dataclass(frozen=True)
class Removed:
    """What stands on the leaderboard: a base by this recipe, and it without these shares of its weights."""

    recipe: str = ""
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class BaseRow:
    """A base: see paper.toml."""

    name: str
    title: str
    network: str
    data: str
    recipe: str
    tables: tuple[str, ...]
    paper: dict[str, float]
    ours: str = ""
    epochs: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    batch: int = 500
    gdws: tuple[Row, ...] = ()
    pruned: tuple[PrunedRow, ...] = ()
    leaderboard: Removed = Removed()

    def named(self, recipe: str) -> str:
        """The base by one of its recipes."""
        return self.name if recipe == self.recipe else f"{self.name}-ours"


@dataclass(frozen=True)
class Entry:
    """A public entry beside which the leaderboard stands. rows: share of weights removed, natural and AutoAttack in percent."""

    title: str
    network: str
    rows: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Paper:
    """All of paper.toml."""

    table: dict[str, Table]
    base: tuple[BaseRow, ...]
    entry: tuple[Entry, ...]


@cache
def paper() -> Paper:
    """The paper's tables and figures."""
    text = (resources.files("gdws.reproduce") / "paper.toml").read_text()
    found: Paper = build(Paper, tomllib.loads(text), "paper.toml is not as it should be")
    return found


def chosen_tables(names: list[str]) -> tuple[str, ...]:
    """The tables and figures that these names stand for, in the paper's order. Raises GdwsError for an unknown one."""
    known = tuple(paper().table)
    unknown = [name for name in names if name not in (*known, "all")]
    if unknown:
        raise GdwsError(f"there is no {unknown[0]!r} to reproduce: expected all, {', '.join(known)}")
    wanted = {*names} | ({*MAIN} if "all" in names or not names else set())
    return tuple(name for name in known if name in wanted)
