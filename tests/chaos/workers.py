"""Cases in processes of their own, each within a time and a memory limit; a crash or a hang costs one case.

Workers are forked from a process that has imported everything, so that a new one takes milliseconds.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

from chaos.case import GOOD, Case, Family, Outcome, judged

LIMIT = 4 * 10**9
"""Bytes that a process may have: what it had when it started, and what a case adds."""
HEADROOM = 2 * 2**30
"""Address space that is reserved and not used."""
RETIRE = 2**30
"""A worker that has grown by so much is replaced."""
TICK = 0.25
PATIENCE = 5
"""A case has hung that took its seconds of the CPU, or as often as this by the clock: the machine may be busy."""


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    folder: Path
    running: tuple[Family, int] | None = None
    elapsed: float = 0.0
    before: float = 0.0
    """Seconds of the CPU before the case."""

    def hangs(self) -> bool:
        assert self.running is not None
        seconds = self.running[0].seconds
        if self.elapsed <= seconds:
            return False
        return self.elapsed > PATIENCE * seconds or _cpu_seconds(self.process.pid) - self.before > seconds


def case_of(family: Family, index: int, seed: int, folder: Path) -> Case:
    return Case(family.name, index, Random(f"{seed}/{family.name}/{index}"), folder)


def run_alone(family: Family, index: int, seed: int, folder: Path) -> Outcome:
    """One case in this process, without limits."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    return judged(family, case_of(family, index, seed, folder))


def run_all(
    families: Sequence[tuple[Family, int]], seed: int, folder: Path, processes: int, deadline: float | None = None
) -> Iterator[Outcome]:
    """So many distinct cases of every family; what repeats an earlier case of its family is told too, with its key.

    A family that has no more distinct cases ends after three times as many attempts.
    """
    left = [_Supply(family, count) for family, count in families]
    kinds = [family for family, _ in families]
    workers = [_start(kinds, seed, folder / f"worker{number}") for number in range(processes)]
    last = time.monotonic()
    try:
        while True:
            for worker in workers:
                supply = next((supply for supply in left if supply.wants()), None)
                if worker.running is None and supply is not None and (deadline is None or time.monotonic() < deadline):
                    worker.running, worker.elapsed = (supply.family, supply.begin()), 0.0
                    worker.before = _cpu_seconds(worker.process.pid)
                    worker.pipe.send((kinds.index(supply.family), worker.running[1]))
            busy = [worker for worker in workers if worker.running is not None]
            if not busy:
                return
            ready = wait([worker.pipe for worker in busy], TICK)
            now = time.monotonic()
            passed, last = min(now - last, 2 * TICK), now  # a campaign that is stopped for a while has not hung
            for number, worker in enumerate(workers):
                if worker.running is None:
                    continue
                worker.elapsed += passed
                if worker.pipe in ready:
                    outcome, spent = _received(worker)
                elif worker.hangs():
                    outcome, spent = _hung(worker), True
                else:
                    continue
                next(supply for supply in left if supply.family is worker.running[0]).end(outcome)
                worker.running = None
                if spent:
                    _stop(worker)
                    workers[number] = _start(kinds, seed, worker.folder)
                yield outcome
    finally:
        for worker in workers:
            _stop(worker)


class _Supply:
    """The cases of a family: how many are wanted, begun and distinct."""

    def __init__(self, family: Family, wanted: int) -> None:
        self.family, self.wanted, self.begun, self.open = family, wanted, 0, 0
        self.keys = set[str]()

    def wants(self) -> bool:
        return len(self.keys) + self.open < self.wanted and self.begun < 3 * self.wanted + 10

    def begin(self) -> int:
        self.begun, self.open = self.begun + 1, self.open + 1
        return self.begun - 1

    def end(self, outcome: Outcome) -> None:
        self.open -= 1
        self.keys.add(outcome.key or outcome.name)


def _start(families: Sequence[Family], seed: int, folder: Path) -> _Worker:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    process = context.Process(target=_serve, args=(theirs, families, seed, folder))
    process.start()
    theirs.close()
    return _Worker(process, ours, folder)


def _stop(worker: _Worker) -> None:
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()
    worker.pipe.close()


def _received(worker: _Worker) -> tuple[Outcome, bool]:
    """The outcome, and whether the worker has to be replaced."""
    assert worker.running is not None
    family, index = worker.running
    try:
        answer: tuple[Outcome, bool] = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        told = f"{_told(worker)} -> exit code {worker.process.exitcode}"
        return Outcome(f"{family.name}/{index}", "crash", "", told, _trace(worker)), True
    return answer


def _hung(worker: _Worker) -> Outcome:
    """What a worker does beyond its time, before it is killed."""
    assert worker.running is not None
    family, index = worker.running
    os.kill(worker.process.pid, signal.SIGUSR1)
    time.sleep(0.3)
    worker.process.kill()
    worker.process.join()
    return Outcome(f"{family.name}/{index}", "hang", "", f"{_told(worker)} -> longer than {family.seconds:g} s", _trace(worker))


def _told(worker: _Worker) -> str:
    file = worker.folder / "told"
    return file.read_text() if file.exists() else ""


def _trace(worker: _Worker) -> str:
    """The innermost line of gdws in what faulthandler wrote."""
    file = worker.folder / "trace"
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    own = next((line for line in lines if "/src/gdws/" in line), "")
    return own.rpartition("/gdws/")[2].replace('", line', ":")


def _serve(pipe: Connection, families: Sequence[Family], seed: int, folder: Path) -> None:
    """A worker: cases in, outcomes out."""
    with (folder / "said").open("wb") as said:  # what native code prints
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    faulthandler.enable((folder / "trace").open("w"))
    faulthandler.register(signal.SIGUSR1, (folder / "trace").open("a"))
    os.nice(5)
    base = _status("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + LIMIT + HEADROOM,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    own = folder / "case"
    while True:
        try:
            position, index = pipe.recv()
        except EOFError:
            return
        family = families[position]
        shutil.rmtree(own, ignore_errors=True)
        (folder / "told").unlink(missing_ok=True)
        own.mkdir()
        os.chdir(own)
        _forget_peak()
        before = _status("VmRSS")
        outcome = judged(family, case_of(family, index, seed, own))
        outcome = replace(outcome, memory=base + _status("VmHWM") - before)
        if outcome.memory > LIMIT and outcome.kind in GOOD:
            outcome = replace(outcome, kind="memory", told=f"{outcome.memory / 1e9:.1f} GB; {outcome.told}")
        os.chdir(folder)
        pipe.send((outcome, _status("VmRSS") > base + RETIRE))


def _status(field: str) -> int:
    """Bytes, of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(field)


def _cpu_seconds(process: int) -> float:
    """Of a process and of its children that have ended; none, where it has ended itself."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _forget_peak() -> None:
    """VmHWM counts from now on."""
    Path("/proc/self/clear_refs").write_text("5")
