"""A queue of tasks that several processes on one machine work off, unattended: a file for each result, as soon as it is known.

    python benchmarks/unattended.py OUT     # how far the queue of this folder is (benchmarks/paper_rows.py makes one)

OUT/NAME.json        what the task NAME returned. A task that has one is not done again
OUT/NAME.error.txt   why it failed; it is tried again when the queue is started anew
OUT/claims/NAME      the process that has taken it, and when
OUT/logs/            what the processes say
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gdws.core.files import write_atomically
from gdws.core.progress import shown

DEATHS, ATTEMPTS = 20, 3
"""Processes that are replaced when they died, and how often a task is begun that finds no memory on the GPU."""


@dataclass(frozen=True)
class Task:
    """What `run` returns becomes NAME.json. needs: tasks before it, which stand before it in the queue too; files: data that it
    waits for; seconds: it is not begun later than so long before the deadline."""

    name: str
    run: Callable[[], dict[str, Any]]
    needs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    seconds: float = 0


class LogLines:
    """Progress as lines of a log, one in ten seconds."""

    def __init__(self) -> None:
        self.loops: list[list[Any]] = []
        self.said = time.monotonic()

    def start(self, label: str, total: int | None) -> None:
        self.loops.append([label, 0, total])

    def advance(self, note: str) -> None:
        self.loops[-1][1] += 1
        if time.monotonic() - self.said > 10:
            self.said = time.monotonic()
            say("; ".join(f"{label} {done}/{total}" for label, done, total in self.loops) + f" {note}")

    def stop(self) -> None:
        self.loops.pop()


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def supervise(out: Path, count: int) -> None:
    """Run this program `count` times with --worker BEGAN, and again if one dies. What that had claimed has failed."""
    for folder in ("claims", "logs"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for stale in (*(out / "claims").iterdir(), *out.glob("*.error.txt")):
        stale.unlink()
    began, deaths = time.time(), 0

    def worker(number: int) -> subprocess.Popen[bytes]:
        with (out / "logs" / f"worker-{number}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *sys.argv, "--worker", str(began)], stdout=log, stderr=subprocess.STDOUT)

    workers = {number: worker(number) for number in range(count)}
    while workers:
        time.sleep(0.5)
        for number, process in list(workers.items()):
            if process.poll() is None:
                continue
            del workers[number]
            for name, owner, _ in claims(out):
                if owner == str(process.pid):
                    result_files(out, name)[1].write_text(f"worker {number} ended with {process.returncode}: see its log\n")
            deaths += process.returncode != 0
            if process.returncode != 0 and deaths <= DEATHS:
                workers[number] = worker(number)
    say(f"the queue ended after {time.time() - began:.0f} s, {deaths} processes died")


def work_off(out: Path, tasks: Sequence[Task], there: Callable[[str], bool], deadline: float) -> None:
    """Take tasks, the first first, until none is left or the time is up. there: whether a file has come."""
    attempts: dict[str, int] = {}
    while (left := deadline - time.time()) > 0:
        done = {path.name.removesuffix(".json") for path in out.glob("*.json")}
        coming = set[str]()  # what may still be done
        for task in tasks:
            failed = result_files(out, task.name)[1].exists()
            if task.name not in done and not failed and set(task.needs) <= done | coming:
                coming.add(task.name)
        if not coming:
            break
        open_tasks = [task for task in tasks if task.name in coming and done.issuperset(task.needs) and task.seconds <= left]
        ready = (task for task in open_tasks if all(map(there, task.files)))
        chosen = next((task for task in ready if claim(out, task.name)), None)
        if chosen is None:
            time.sleep(1)
        else:
            attempts[chosen.name] = attempts.get(chosen.name, 0) + 1
            run_task(out, chosen, last=attempts[chosen.name] == ATTEMPTS)
    say("no more work")


def run_task(out: Path, task: Task, last: bool) -> None:
    """Run a task and write its record, or what went wrong. One that finds no memory is given back, but not at last."""
    say(f"{task.name}: begun")
    begun, (record, error) = time.monotonic(), result_files(out, task.name)
    try:
        with shown(LogLines()):
            found = {"name": task.name} | task.run()
        write_atomically(record, json.dumps(found, indent=1))
        said = ", ".join(f"{kind} {found[kind]['percent']:.2f}" for kind in ("natural", "robust") if kind in found) or "done"
    except Exception as failure:
        said = f"failed: {type(failure).__name__}: {failure}"
        if isinstance(failure, torch.cuda.OutOfMemoryError) and not last:
            (out / "claims" / task.name).unlink()
        else:
            write_atomically(error, traceback.format_exc())
    say(f"{task.name}: {said} ({time.monotonic() - begun:.0f} s)")
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a device that no longer answers ends this process, and another takes its place
        torch.cuda.empty_cache()


def claim(out: Path, name: str) -> bool:
    """Whether this process is the first to take the task."""
    try:
        with (out / "claims" / name).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def claims(out: Path) -> Iterator[tuple[str, str, float]]:
    """Task, process and time of those that have been taken and have not ended."""
    for path in sorted((out / "claims").glob("*")):
        if any(file.exists() for file in result_files(out, path.name)):
            continue
        try:
            yield path.name, path.read_text(), path.stat().st_mtime
        except FileNotFoundError:  # it was given back meanwhile
            continue


def result_files(out: Path, name: str) -> tuple[Path, Path]:
    """The record of a task, and of its failure."""
    return out / f"{name}.json", out / f"{name}.error.txt"


def status(out: Path) -> Iterator[str]:
    """Lines: how many tasks ended, what runs and for how long, what each process said last, what failed."""
    failures = sorted(out.glob("*.error.txt"))
    yield f"{len(list(out.glob('*.json')))} records, {len(failures)} failures"
    for name, _, since in claims(out):
        yield f"runs: {name}, {time.time() - since:.0f} s"
    for log in sorted((out / "logs").glob("*.log")):
        yield f"{log.name}: {_last_line(log)}"
    for failure in failures:
        yield f"failed: {failure.name.removesuffix('.error.txt')}: {_last_line(failure)}"


def _last_line(file: Path) -> str:
    return next(iter(file.read_text(errors="replace").strip().splitlines()[-1:]), "")[:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the queue")
    for line in status(parser.parse_args().out):
        print(line)


if __name__ == "__main__":
    main()
