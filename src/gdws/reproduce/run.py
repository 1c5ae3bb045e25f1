"""A reproduction from its first to its last: what there is to do, how long it takes, the steps, records and pages."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gdws.core.checks import is_count
from gdws.core.errors import GdwsError
from gdws.core.files import Kind, ensure_folder, write_atomically
from gdws.core.progress import Display, shown
from gdws.core.reading.limits import read_file
from gdws.core.reading.schema import Count, from_json
from gdws.reproduce.estimate import estimate
from gdws.reproduce.pages import write_pages
from gdws.reproduce.paper import chosen_tables
from gdws.reproduce.place import Place, Step, smoke_data
from gdws.reproduce.records import write_record
from gdws.reproduce.rows import Line, lines, steps_of
from gdws.reproduce.runner import MOST_WORKERS, TimeIsUp, failures, is_done, run_steps
from gdws.reproduce.scales import scale

FORMAT, MARK = "gdws reproduction 1", "reproduction.json"
DATA = {"cifar10": "cifar10", "svhn": "svhn", "imagefolder": "imagenet"}
"""What names of data stand for in paper.toml."""
COMMIT = "GDWS_COMMIT"
"""The variable with the commit of code that is no checkout."""


@dataclass(frozen=True)
class _Mark:
    """What all runs into one folder have in common."""

    format: str
    scale: str
    seed: Count


@dataclass(frozen=True)
class Outlook:
    """What there is to do: each step with the seconds that it takes here; and rows that cannot be made, and why."""

    steps: tuple[tuple[Step, float], ...]
    missing: tuple[str, ...]
    rows: int
    done: int


@dataclass(frozen=True)
class Outcome:
    """rows: names of the records that were written; failed: why, by the step."""

    rows: tuple[str, ...]
    failed: dict[str, str]
    seconds: float


def reproduce(
    tables: Sequence[str],
    out: Path,
    *,
    scale_name: str = "fast",
    data: Sequence[str] = (),
    weights: Sequence[Path] = (),
    minutes: float | None = None,
    resume: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    command: str = "",
    display: Display | None = None,
    outlook: Callable[[Outlook], None] = lambda _: None,
) -> Outcome:
    """Make rows of the paper's tables and figures, and the pages that show them.

    tables      names of gdws.reproduce.paper, or "all".
    out         folder for artifacts, records (rows/) and pages.
    scale_name  "smoke", "fast" or "paper" (gdws.reproduce.scales).
    data        "cifar10:DIR", "svhn:DIR", "imagefolder:DIR" of ImageNet. A smoke test needs none.
    weights     folders that may hold files of weights that paper.toml names.
    minutes     after which the work ends, wherever it is.
    resume      go on in a folder with a reproduction of this scale.
    workers     processes; by default one for each GPU.
    device      where networks are trained and judged.
    seed        of everything random.
    command     for the records.
    display     shows progress, of a single worker.
    outlook     is told what there is to do, and how long it takes, before it begins.

    Raises GdwsError for what is unknown, and gdws.reproduce.runner.TimeIsUp when the minutes are over, after the pages are
    written.
    """
    begun = time.time()
    chosen, size = chosen_tables(list(tables)), scale(scale_name)
    if minutes is not None and not 0 < minutes < 1e6:
        raise GdwsError(f"minutes are {minutes:g}: expected a number above 0")
    absent = next((folder for folder in weights if not folder.is_dir()), None)
    if absent is not None:
        raise GdwsError(f"there is no folder {absent}: expected one with files of weights")
    place = Place(out, size, {}, tuple(weights), torch.device(device), seed, _commit(), command)
    count = workers or (torch.cuda.device_count() if place.device.type == "cuda" and place.device.index is None else 1)
    if not is_count(count, 1) or count > MOST_WORKERS:
        raise GdwsError(f"workers are {count}: expected from 1 to {MOST_WORKERS}")
    given = _named(data)
    _mark(out, _Mark(FORMAT, scale_name, seed), resume)
    place = replace(place, data=smoke_data(out) | given if size.is_smoke else given)
    wanted, missing = lines(place, chosen)
    steps = steps_of(wanted)
    ahead = [step for step in steps if not is_done(place, step)]
    with nullcontext() if display is None else shown(display):
        seconds = estimate(place, ahead)
    todo = tuple(zip(ahead, seconds, strict=True))
    outlook(Outlook(todo, tuple(missing), len(wanted), len(steps) - len(ahead)))
    deadline = float("inf") if minutes is None else begun + 60 * minutes
    late: TimeIsUp | None = None
    try:
        run_steps(place, steps, workers=count, deadline=deadline, display=display)
    except TimeIsUp as error:
        late = error
    rows = _write(place, wanted, chosen)
    if late is not None:
        raise late
    return Outcome(rows, failures(place, steps), time.time() - begun)


def _write(place: Place, wanted: Sequence[Line], tables: Sequence[str]) -> tuple[str, ...]:
    """The records of what is known, and the pages."""
    ensure_folder(place.out / "rows")
    made = tuple(line.name for line in wanted if write_record(place, line) is not None)
    write_pages(place.out, place.out / "rows", tables)
    return made


def _named(data: Sequence[str]) -> dict[str, str]:
    """Names of data by what they stand for."""
    found = {}
    for name in data:
        kind, _, folder = name.partition(":")
        if kind not in DATA or not folder:
            raise GdwsError(f"data is {name!r}: expected cifar10:DIR, svhn:DIR or imagefolder:DIR")
        found[DATA[kind]] = name
    return found


def _mark(out: Path, mark: _Mark, resume: bool) -> None:
    """Make the folder one of this reproduction, or see that it is."""
    ensure_folder(out)
    path = out / MARK
    if path.exists():
        found: _Mark = from_json(_Mark, read_file(path), f"{path} is not of a reproduction")
        if not resume:
            raise GdwsError(f"{out} holds a reproduction: expected another folder, or to continue that one (--resume)")
        if found != mark:
            told = f"scale {found.scale}, seed {found.seed}"
            raise GdwsError(f"{out} holds a reproduction of {told}: expected that again, or another folder")
        return
    strangers = [entry.name for entry in out.iterdir()]
    if strangers:
        raise GdwsError(f"{out} holds {strangers[0]}, which is no reproduction's: expected another folder")
    write_atomically(path, json.dumps(vars(mark), indent=1), Kind.RECORD)


def _commit() -> str:
    """Of the code, if it is a checkout or somebody said so."""
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
