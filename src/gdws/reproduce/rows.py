"""Which steps the chosen tables and figures need: every row of the paper, and what stands beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec

from gdws.core.reading.limits import read_file
from gdws.models.names import classes_of
from gdws.reproduce.paper import LEADERBOARD, BaseRow, PrunedRow, Row, paper
from gdws.reproduce.place import NetworkStep, Place, Step
from gdws.reproduce.steps.base import Base
from gdws.reproduce.steps.compressed import Calibration, Compressed
from gdws.reproduce.steps.judged import Judged
from gdws.reproduce.steps.pruned import Pruned
from gdws.reproduce.steps.speed import Timed
from gdws.reproduce.steps.tuned import Tuned

BESIDE = ("parameters", "macs", "speed")
"""What the calibrated method has in common with the row that it stands beside."""


@dataclass(frozen=True)
class Line:
    """A network and what is to be known of it: one record.

    method     "base", "hydra", "admm", "paper", "uniform" or "auto".
    match      what an auto or uniform network has in common with the network `beside`, another line.
    ours       whether its base is of this project's recipe and not of the paper's.
    reference  the network that it is compared with: what it was made of.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    method: str
    network: NetworkStep
    judged: dict[str, Judged]
    timed: Timed
    paper: dict[str, float] = field(default_factory=dict)
    size: str = ""
    match: str = ""
    tuned: bool = False
    ours: bool = False
    beside: str = ""
    reference: Line | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.judged.values(), self.timed)

    @property
    def rank(self) -> tuple[bool, bool, bool]:
        """What is done first: the paper's bases before ours, what is not trained before what is, the paper's rows first."""
        return self.ours, self.tuned, self.method in ("auto", "uniform")


def lines(place: Place, tables: Sequence[str]) -> tuple[list[Line], list[str]]:
    """The lines of these tables and figures, in the paper's order; and sentences on what cannot be made, and why."""
    made, missing = list[Line](), list[str]()
    for row in paper().base:
        recipes = _recipes(place, row, tables)
        if not recipes:
            continue
        if row.data not in place.data:
            missing.append(f"{row.name} needs {row.data}: expected --data with it")
            continue
        if row.pruned and find_spec("torch_pruning") is None:
            missing.append(f"what is pruned of {row.name} needs torch-pruning: expected `pip install gdws[pruning]`")
            row = replace(row, pruned=())
        for recipe, shown in recipes.items():
            base = _base(place, row, recipe)
            if base is None:
                missing.append(f"{row.name} needs the weights {row.files[recipe]}: expected them in a folder of --weights")
            else:
                made += _Lines(place, shown, row, base, ours=recipe != row.recipe).all()
    return made, missing


def steps_of(chosen: Sequence[Line]) -> list[Step]:
    """Every step once, after all that it needs, in the order in which they should be done."""
    found = dict[str, Step]()

    def add(step: Step) -> None:
        for needed in step.needs:
            add(needed)
        found.setdefault(step.key, step)

    for line in sorted(chosen, key=lambda line: line.rank):
        for step in line.steps:
            add(step)
    return list(found.values())


class _Lines:
    """The lines of one base."""

    def __init__(self, place: Place, tables: Sequence[str], row: BaseRow, base: Base, ours: bool) -> None:
        self.place, self.tables, self.row, self.base, self.ours = place, tables, row, base, ours
        self.first = self._line(row.title, (*row.tables, LEADERBOARD), "base", base, row.paper, _below(row))

    def all(self) -> Iterator[Line]:
        wanted = {*self.tables}
        yield self.first
        yield from self._compressed(self.first, self.row.gdws)
        for row in () if self.ours else self.row.pruned:
            if not wanted & {*row.tables, *_below(row)}:
                continue
            pruned = self._pruned(row)
            title = f"{self.row.title} ({row.method.upper()}, p = {100 * (1 - row.keep):.0f} %)"
            line = self._line(
                title, row.tables, row.method, pruned, row.paper, _below(row), size=row.size, reference=self.first
            )
            yield line
            yield from self._compressed(line, row.gdws)
        if LEADERBOARD in wanted:
            yield from self._leaderboard()

    def _compressed(self, source: Line, rows: Sequence[Row]) -> Iterator[Line]:
        chosen = [row for row in rows if {*row.tables} & {*self.tables}]
        for number, row in enumerate(chosen):
            made = Compressed(source.network, "paper", "size", self.place.seed, row.paper["mb"])
            title = f"{source.title} + GDWS"
            line = self._line(title, row.tables, "paper", made, row.paper, size=row.size, reference=source)
            yield line
            if row.tuned:
                yield self._tuned(line, row.tuned, taught=False)
            if not self.ours and self.place.scale.has_company(source.name, is_last=number + 1 == len(chosen)):
                yield from self._beside(line, row, made, source)

    def _beside(self, line: Line, row: Row, made: Compressed, source: Line) -> Iterator[Line]:
        """The calibrated method, untuned and tuned; where the paper compares the two, GDWS-U."""
        statistics = Calibration(source.network, self.place.seed)
        tables = tuple(name for name in row.tables if name != "figure5")
        for match in BESIDE:
            network = replace(made, method="auto", match=match, value=0.0, like=made, statistics=statistics)
            auto = self._line("auto", tables, "auto", network, match=match, beside=line.name, reference=source)
            yield auto
            yield self._tuned(auto, {}, taught=True)
        if "figure4" in row.tables and "figure4" in self.tables:
            network = replace(made, method="uniform", match="macs", value=0.0, like=made)
            yield self._line("GDWS-U", ("figure4",), "uniform", network, match="macs", beside=line.name, reference=source)

    def _leaderboard(self) -> Iterator[Line]:
        statistics = Calibration(self.base, self.place.seed)
        for removed in self.row.leaderboard.shares:
            network = Compressed(self.base, "auto", "removed", self.place.seed, removed, statistics=statistics)
            title = f"{self.row.title}, {100 * removed:.0f} % fewer weights"
            line = self._line(title, (LEADERBOARD,), "auto", network, match="removed", reference=self.first)
            yield line
            yield self._tuned(line, {}, taught=True)

    def _tuned(self, line: Line, numbers: dict[str, float], taught: bool) -> Line:
        assert isinstance(line.network, Compressed)
        scale, device = self.place.scale, self.place.device.type
        recipe = scale.tuning(self.row.data, device, self.place.seed, taught)
        network = Tuned(line.network, recipe, taught, scale.trained_on)
        again = partial(self._line, f"{line.title}, tuned", line.tables, line.method, network, numbers)
        return again(match=line.match, beside=line.beside or line.name, tuned=True, reference=line.reference)

    def _line(
        self,
        title: str,
        tables: tuple[str, ...],
        method: str,
        network: NetworkStep,
        numbers: dict[str, float] | None = None,
        below: Sequence[str] = (),
        **more: object,
    ) -> Line:
        """below: tables with what is made of it, and is compared with it."""
        scale, known = self.place.scale, paper().table
        used = tuple(name for name in tables if name in self.tables)
        evaluations = dict.fromkeys(known[name].evaluation for name in (*used, *below) if name in self.tables)
        judged = {
            name: Judged(
                network=network,
                evaluation=name,
                attacks=scale.attacks[name],
                count=scale.images_of(name, self.row.data),
                batch=min(self.row.batch, scale.batch),
                images=self.place.identity(self.row.data),
                seed=self.place.seed,
            )
            for name in evaluations
            if scale.attacks[name]
        }
        timed = Timed(network, scale.passes, scale.in_engines)
        line = Line(network.title, title, used, method, network, judged, timed, numbers or {}, ours=self.ours)
        return replace(line, **more)  # type: ignore[arg-type]

    def _pruned(self, row: PrunedRow) -> Pruned:
        file = self.place.weights_file(row.file)
        found = "" if file is None else _file_hash(self.place, row.file)
        kept = "" if file is None else row.file
        scale, device = self.place.scale, self.place.device.type
        return Pruned(self.base, scale.pruned(row.method, row.keep, self.row.data, device, self.place.seed), kept, found)


def _below(row: BaseRow | PrunedRow) -> list[str]:
    """The tables with what is made of a network."""
    found = [name for part in row.gdws for name in part.tables]
    for pruned in row.pruned if isinstance(row, BaseRow) else ():
        found += [*pruned.tables, *_below(pruned)]
    return found


def _recipes(place: Place, row: BaseRow, tables: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The recipes by which a base is trained, each with the tables that need it."""
    wanted = {*row.tables, *_below(row)}
    usual = tuple(name for name in tables if name in wanted)
    has_ours = row.ours and place.scale.has_company(row.name, is_last=True)
    found = dict.fromkeys((row.recipe, row.ours) if has_ours else (row.recipe,), usual) if usual else {}
    if LEADERBOARD in tables and row.leaderboard.shares:
        found[row.leaderboard.recipe] = (*found.get(row.leaderboard.recipe, ()), LEADERBOARD)
    return found


def _base(place: Place, row: BaseRow, recipe: str) -> Base | None:
    """The base of a row by one of its recipes; None where it could only come from a file that is not there."""
    file, scale = row.files.get(recipe, ""), place.scale
    found = place.weights_file(file)
    if found is None and not recipe and not scale.is_smoke:
        return None
    made = None if found is not None else scale.recipe(row, recipe, place.device.type, place.seed)
    return Base(
        name=row.named(recipe),
        architecture_name=row.network,
        data_name=row.data,
        images=place.identity(row.data),
        classes=classes_of(place.split(row.data, "train")),
        recipe=made,
        file="" if found is None else file,
        weights="" if found is None else _file_hash(place, file),
        trained_on=scale.trained_on,
    )


def _file_hash(place: Place, name: str) -> str:
    path = place.weights_file(name)
    assert path is not None
    return hashlib.blake2b(read_file(path), digest_size=8).hexdigest()
