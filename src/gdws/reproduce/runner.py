"""Do the steps, each once: any number of processes that share nothing but a folder.

A step is taken by a lock that its process holds. Whoever dies lets go of it, so nothing needs to be cleaned up: the next one
takes the step again and goes on from its checkpoint. A step is done when its record is there, whole. Steps that measure time
wait until nothing else runs in the folder.

`work_off` is what one process does. A cluster's scheduler would start it, by the command with the same --out, on every machine
that sees the folder; nothing else is needed, and nothing more is built.
"""

from __future__ import annotations

import gc
import multiprocessing
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from gdws.core.errors import GdwsError
from gdws.core.files import ensure_folder, write_atomically
from gdws.core.progress import Display, shown
from gdws.reproduce.place import UNREACHED, NetworkStep, Place, Step

MOST_WORKERS = 64
WAIT, QUIET = 0.2, 10.0
"""Seconds until a process that found nothing to do looks again, and between two lines of a log."""


class TimeIsUp(GdwsError):
    """The minutes that were given are over. What was begun goes on from its last checkpoint."""


class Log:
    """A display that writes a line now and then, and ends the work when its time is up, between two batches.

    inside: another display, which is told everything.
    """

    def __init__(self, path: Path, deadline: float, inside: Display | None) -> None:
        self.path, self.deadline, self.inside = path, deadline, inside
        self.loops: list[list[Any]] = []
        self.said = time.monotonic()

    def start(self, label: str, total: int | None) -> None:
        self.check()
        self.loops.append([label, 0, total])
        if self.inside is not None:
            self.inside.start(label, total)

    def advance(self, note: str) -> None:
        self.loops[-1][1] += 1
        if self.inside is not None:
            self.inside.advance(note)
        if time.monotonic() - self.said > QUIET:
            self.say("; ".join(f"{label} {done}/{total}" for label, done, total in self.loops) + f" {note}")
        self.check()

    def stop(self) -> None:
        self.loops.pop()
        if self.inside is not None:
            self.inside.stop()

    def check(self) -> None:
        if time.time() > self.deadline:
            raise TimeIsUp("the time is up: expected to be resumed")

    def say(self, text: str) -> None:
        self.said = time.monotonic()
        with self.path.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}\n")


def run_steps(
    place: Place, steps: Sequence[Step], *, workers: int = 1, deadline: float = float("inf"), display: Display | None = None
) -> None:
    """Do what is not done. Several workers are processes, each on the next GPU, which share the threads of this one.

    deadline: by time.time(); raises TimeIsUp then, if something is left. What fails is written down and left out, with all that
    needs it (`failures`).
    """
    for step in steps:
        (place.folder(step) / "error.txt").unlink(missing_ok=True)
    _make_again(place, steps)
    for folder in (place.out / "locks", place.out / "logs", place.out / "steps"):
        ensure_folder(folder)
    if workers == 1:
        work_off(place, steps, 0, 1, deadline, display)
    else:
        context, threads = multiprocessing.get_context("spawn"), max(1, torch.get_num_threads() // workers)
        given = [(threads, _placed(place, number), steps, number, workers, deadline) for number in range(workers)]
        processes = [context.Process(target=_work_off_alone, args=arguments) for arguments in given]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    if time.time() > deadline and left(place, steps):
        raise TimeIsUp(f"the time is up, and {len(left(place, steps))} steps are left: expected the same command with --resume")


def _make_again(place: Place, steps: Sequence[Step]) -> None:
    """Forget the records of networks that are not there and that something still needs."""
    wanted = [step for step in steps if not is_done(place, step)]
    seen = set[str]()
    while wanted:
        for needed in wanted.pop().needs:
            if needed.key in seen:
                continue
            seen.add(needed.key)
            wanted.append(needed)
            if isinstance(needed, NetworkStep) and is_done(place, needed) and not needed.is_there(place):
                (place.folder(needed) / "record.json").unlink()


def _work_off_alone(threads: int, place: Place, steps: Sequence[Step], number: int, workers: int, deadline: float) -> None:
    """In a process of its own."""
    torch.set_num_threads(threads)
    work_off(place, steps, number, workers, deadline)


def work_off(
    place: Place, steps: Sequence[Step], number: int, workers: int, deadline: float, display: Display | None = None
) -> None:
    """Take steps, the first first, until none is left or the time is up. number: of this worker, among those of a machine."""
    parent, log = multiprocessing.parent_process(), Log(place.out / "logs" / f"worker-{number}.log", deadline, display)
    while open_steps := left(place, steps):
        if time.time() > deadline or (parent is not None and not parent.is_alive()):
            return
        ready = (step for step in open_steps if all(is_done(place, needed) for needed in step.needs))
        if not any(_take(place, step, number, workers, log) for step in ready):
            time.sleep(WAIT)


def is_done(place: Place, step: Step) -> bool:
    return (place.folder(step) / "record.json").exists()


def failures(place: Place, steps: Sequence[Step]) -> dict[str, str]:
    """What failed, by its key: the last line of why."""
    errors = ((step, place.folder(step) / "error.txt") for step in steps)
    return {step.key: error.read_text().strip().splitlines()[-1] for step, error in errors if error.exists()}


def left(place: Place, steps: Sequence[Step]) -> list[Step]:
    """What is neither done nor failed nor needs what failed."""
    found, lost = list[Step](), set[str]()
    for step in steps:
        if is_done(place, step):
            continue
        if (place.folder(step) / "error.txt").exists() or any(needed.key in lost for needed in step.needs):
            lost.add(step.key)
        else:
            found.append(step)
    return found


def _take(place: Place, step: Step, number: int, workers: int, log: Log) -> bool:
    """Do a step, unless another process has it. Whether it was done here."""
    lock = FileLock(place.out / "locks" / f"{step.key}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    try:
        if is_done(place, step):
            return True
        try:
            with _among(place.out / "locks", number, workers, alone=step.measures_time):
                _do(place, step, log)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            with _among(place.out / "locks", number, workers, alone=True):
                _do(place, step, log, last=True)
    except TimeIsUp:
        pass  # who asks for the next step sees it, too
    finally:
        lock.release()
    return True


@contextmanager
def _among(locks: Path, number: int, workers: int, alone: bool) -> Iterator[None]:
    """While others work; or alone, when those that work have ended. The turn keeps new ones from beginning meanwhile."""
    with ExitStack() as held:
        with FileLock(locks / "turn"):
            for place in range(workers) if alone else [number]:
                held.enter_context(FileLock(locks / f"worker-{place}"))
        yield


def _do(place: Place, step: Step, log: Log, last: bool = False) -> None:
    folder, begun = place.folder(step), time.monotonic()
    ensure_folder(folder)
    log.say(f"{step.key}: begun")
    missing = next((found[UNREACHED] for needed in step.needs if UNREACHED in (found := place.found(needed))), None)
    try:
        if missing is not None:
            place.keep(step, {UNREACHED: missing})
            return
        with shown(log):
            found = step.run(place)
        place.keep(step, found | _circumstances(place, time.monotonic() - begun))
        shutil.rmtree(folder / "run", ignore_errors=True)  # the checkpoint of what is done
        log.say(f"{step.key}: done in {time.monotonic() - begun:.1f} s")
    except TimeIsUp:
        raise
    except torch.OutOfMemoryError:
        if not last:
            raise
        write_atomically(folder / "error.txt", traceback.format_exc())
    except Exception as error:
        told = f"gdws: {error}" if isinstance(error, GdwsError) else traceback.format_exc()
        write_atomically(folder / "error.txt", told)
        log.say(f"{step.key}: failed, {told.strip().splitlines()[-1]}")
    finally:
        if place.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def _circumstances(place: Place, seconds: float) -> dict[str, Any]:
    device = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else "CPU"
    made = {"machine": device, "torch": str(torch.__version__), "commit": place.commit, "command": place.command}
    return {"seed": place.seed, **made, "seconds in all": seconds, "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}


def _placed(place: Place, number: int) -> Place:
    """The place of a worker: the GPUs are handed out in turn."""
    if place.device.type != "cuda" or place.device.index is not None:
        return place
    return replace(place, device=torch.device("cuda", number % torch.cuda.device_count()))
