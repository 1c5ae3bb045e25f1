"""What a case is, and what counts as its outcome."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from gdws import cli
from gdws.cli import compression
from gdws.compression import report
from gdws.core.errors import GdwsError

GOOD = ("refused", "right")
SECONDS = 30.0
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\u202e]")
"""What a stranger's text must not bring to a terminal: a progress bar itself may go back to the start of its line."""
EXHAUSTED = re.compile(r"allocat\w* \d|Unable to allocate|not enough memory|MemoryError|out of memory|bad_alloc", re.IGNORECASE)


class Wrong(AssertionError):
    """gdws went on and should not have, or what it gave is not what the bytes and numbers mean."""


@dataclass
class Case:
    """What a case is given: its own randomness and an empty folder, which is the working directory.

    key: what tells it from other cases of its family; cases of one key are one case.
    """

    family: str
    index: int
    random: Random
    folder: Path
    key: str = ""
    told: str = ""

    @property
    def name(self) -> str:
        return f"{self.family}/{self.index}"

    def tell(self, told: str) -> None:
        """What it does, in words; kept where it is found after a hang or a crash too."""
        self.told = told
        (self.folder.parent / "told").write_text(told)


@dataclass(frozen=True)
class Family:
    """Cases of one kind: `attempt` does the one of a number, and raises what is wrong.

    count    distinct cases at full length.
    short    of them in the short campaign, which is a test.
    seconds  that one of them may take.
    """

    name: str
    count: int
    attempt: Callable[[Case], None] = field(repr=False)
    short: int = 0
    seconds: float = SECONDS


@dataclass(frozen=True)
class Outcome:
    name: str
    kind: str
    """refused, right, or what went wrong: traceback, wrong, memory, hang, crash."""
    key: str = ""
    told: str = ""
    where: str = ""
    memory: int = 0
    """The most bytes that its process had; unknown where it died."""


def judged(family: Family, case: Case) -> Outcome:
    """Run one case in this process."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            family.attempt(case)
    except GdwsError as error:
        # What a file says of its sizes is to be checked before memory is asked for.
        exhausted = family.name.startswith("mutants") and EXHAUSTED.search(str(error))
        return _outcome(case, "memory" if exhausted else "refused", error)
    except Wrong as error:
        return _outcome(case, "wrong", error)
    except MemoryError as error:
        return _outcome(case, "memory", error)
    except BaseException as error:
        return _outcome(case, "memory" if EXHAUSTED.search(str(error)) else "traceback", error)
    return Outcome(case.name, "right", case.key, case.told)


def _outcome(case: Case, kind: str, error: BaseException) -> Outcome:
    if kind == "refused":
        return Outcome(case.name, kind, case.key, f"{case.told} -> {error}"[:600])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/gdws/" in frame.filename]
    where = f"{frames[-1].filename.rpartition('/gdws/')[2]}:{frames[-1].name}" if frames else ""
    text = f"{case.told} -> {type(error).__name__}: {error}"[:600]
    return Outcome(case.name, kind, case.key, text, where)


class Refused(GdwsError):
    """The command line refused in one sentence."""


def command(*words: object) -> str:
    """`gdws` with these words, in this process: its standard output. Raises Refused, or Wrong where it did not behave."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["gdws", *map(str, words)]
    report.ENGINE, report.REPEATS, compression.HELD = "eager", 1, 4
    status: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        status = stop.code or 0
    finally:
        sys.argv = before
    check_streams(out.getvalue(), err.getvalue(), status)
    return out.getvalue()


def check_streams(out: str, err: str, status: object) -> None:
    """A command ends with 0, or with 2 and one sentence; no control characters reach the terminal in either case."""
    if found := CONTROL.search(out + err):
        raise Wrong(
            f"control character {found[0]!r} on the terminal: {(out + err)[max(0, found.start() - 40) : found.end() + 40]!r}"
        )
    if "Traceback (most recent call last)" in out + err:
        raise Wrong(f"a traceback on the terminal: {err[-300:]!r}")
    if status == 0:
        return
    lines = [line for line in err.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("gdws: ")]
    if status != 2 or not lines or not (len(own) == len(lines) or lines[0].startswith(("Usage: ", "╭─ Error"))):
        raise Wrong(f"ended with status {status} and said {err[-400:]!r}: expected 2 and one sentence")
    raise Refused(lines[-1])


def refuses(work: Callable[[], object], told: str) -> None:
    """What must be refused. Raises GdwsError where it is, Wrong where it is accepted."""
    found = work()
    raise Wrong(f"{told} was accepted and gave {str(found)[:200]}")


def same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise Wrong(f"{what} is {str(found)[:150]}: expected {str(expected)[:150]}")


def words(arguments: Sequence[object]) -> str:
    return " ".join(ascii(str(argument))[1:-1] for argument in arguments)[:300]
