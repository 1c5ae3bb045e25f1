"""Eight threads, and two processes, on the same networks, folders, checkpoints and caches."""

from __future__ import annotations

import functools
import os
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import gdws
from chaos import kills, material, tiny
from chaos.case import Case, Family, Wrong, same
from chaos.meaning import bits
from gdws import data
from gdws.attacks import PGD
from gdws.core.errors import GdwsError

THREADS = 8


def families() -> list[Family]:
    return [
        Family(f"contention/{name}", count, functools.partial(_attempt, work), int(name in SHORT), seconds=90)
        for name, (work, count) in WORKS.items()
    ]


def _attempt(work: Callable[[Case], None], case: Case) -> None:
    case.key = case.name
    case.tell(work.__name__)
    try:
        work(case)
    except GdwsError as error:
        raise Wrong(f"what was left behind was refused: {error}") from error
    for hidden in case.folder.rglob(".*.*"):
        if not hidden.name.endswith(".lock"):
            raise Wrong(f"{hidden.relative_to(case.folder)} was left behind")


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What each thread came to, or the GdwsError that it was refused with. They begin at once."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait()
        try:
            return work(number)
        except GdwsError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def _agree(found: Sequence[Any], expected: Any, what: str) -> None:
    """All that were not refused, and one at least, came to the same."""
    done = [each for each in found if not isinstance(each, GdwsError)]
    if not done:
        raise Wrong(f"{what}: all were refused, {found[0]}")
    for each in done:
        same(each, expected, what)


def _planned(model: torch.nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    plan = gdws.plan(model, [material.images()], gdws.Macs(0.5), gdws.Calibrated(structures="gdws", attack=PGD(steps=2)))
    return [(layer.name, layer.ranks) for layer in plan.layers]


@functools.cache
def _plan_alone() -> list[tuple[str, tuple[int, ...]]]:
    return _planned(tiny.net())


def plan_one_network(case: Case) -> None:
    """Threads plan one network while it serves others."""
    model, over, served = tiny.net(), threading.Event(), list[Any]()
    images = material.images()[:4]
    with torch.no_grad():
        wanted = model(images)

    def serve() -> None:
        while not over.is_set():
            try:
                with torch.no_grad():
                    if not torch.equal(model(images), wanted):
                        served.append("other logits")
            except Exception as error:
                served.append(f"{type(error).__name__}: {error}")

    server = threading.Thread(target=serve)
    server.start()
    try:
        found = in_threads(lambda _: _planned(model), case.random.choice((2, 4, THREADS)))
    finally:
        over.set()
        server.join()
    same(served[:1], [], "what was served meanwhile")
    for each in found:
        same(each, _plan_alone(), "a thread's plan")


def compress_one_network(case: Case) -> None:
    model = tiny.net()
    wanted = material.logits(gdws.compress(tiny.net(), [material.images()], gdws.Macs(0.5), "paper"))
    for found in in_threads(lambda _: material.logits(gdws.compress(model, [material.images()], gdws.Macs(0.5), "paper"))):
        if isinstance(found, GdwsError) or not torch.equal(found, wanted):
            raise Wrong("a thread compressed to another network")


def evaluate_one_network(case: Case) -> None:
    model, batches = tiny.net().train(), material.pictures().take(None, 6)
    wanted = gdws.evaluate(tiny.net(), batches, PGD(steps=2)).attacked.tolist()
    for found in in_threads(lambda _: gdws.evaluate(model, batches, PGD(steps=2)).attacked.tolist()):
        same(found, wanted, "a thread's evaluation")


def read_one_folder(case: Case) -> None:
    wanted = material.logits(gdws.load(material.ROOT / "fast"))

    def read(_: int) -> tuple[bool, bool, int]:
        own = gdws.load(material.ROOT / "fast", material.network())
        named = gdws.models.resolve(str(material.ROOT / "fast"), base=material.NET)
        close = [torch.allclose(material.logits(each), wanted, atol=1e-4) for each in (own, named)]
        return *close, len(data.load(f"npz:{material.ROOT}/packed.npz", "test"))

    _agree(in_threads(read), (True, True, 24), "what was read")


def save_into_one_folder(case: Case) -> None:
    networks = [tiny.net(), tiny.other()]
    _agree(in_threads(lambda n: gdws.save(networks[n % 2], "out", force=True, export=False)), None, "saving")
    found = material.logits(gdws.load("out", tiny.net()))
    if not any(torch.equal(found, material.logits(network)) for network in networks):
        raise Wrong("the network that was saved is neither")


def permissions(case: Case) -> None:
    """No file is open to more than the umask says, neither gdws's nor others'."""
    before = os.umask(0o027)
    try:

        def write(number: int) -> None:
            if number % 2:
                for turn in range(10):
                    gdws.save(tiny.net(), f"saved{number}-{turn}", export=False)
            else:
                for turn in range(2000):
                    Path(f"other{number}-{turn}").touch()

        _agree(in_threads(write), None, "writing")
        same(os.umask(0o027), 0o027, "the umask")
    finally:
        os.umask(before)
    for path in case.folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        same(oct(mode), oct(0o750 if path.is_dir() else 0o640), f"the mode of {path.name}")


def export_one_network(case: Case) -> None:
    model, images = tiny.net(), material.images()[:4]
    _agree(in_threads(lambda n: gdws.to_onnx(model, f"{n % 2}.onnx", images), 4), None, "exporting")
    for path in case.folder.glob("*.onnx"):
        run = gdws.compile(path, "onnxruntime", example=images, threads=1)
        if not torch.allclose(run(images), material.logits(tiny.net()), atol=1e-4):
            raise Wrong("a thread's file decides otherwise")


def train_in_threads(case: Case) -> None:
    found = in_threads(lambda _: kills.train(), 3)
    _check_training(found)


def _check_training(found: Sequence[Any]) -> None:
    done = [each for each in found if not isinstance(each, GdwsError)]
    if not done:
        raise Wrong(f"all trainings were refused: {found[0]}")
    wanted = kills.trained()
    for each in done:
        same({name: bits(value) for name, value in each.model.state_dict().items()} == wanted, True, "equality of the weights")
    kills._check_trained()


def calibrate_with_one_cache(case: Case) -> None:
    _agree(in_threads(lambda _: _planned_with(Path("cache"))), _planned_with(None), "the plan by the cache")


def _planned_with(cache: Path | None) -> Any:
    statistics = gdws.calibrate(material.network(), [material.images()], material.METHOD, cache=cache)
    return gdws.plan(material.network(), statistics, gdws.Macs(0.5))


def in_processes(work: Callable[[], object], case: Case, count: int = 2) -> list[int]:
    """Exit codes of processes that do the same at about the same time: 0, or 2 for a sentence."""
    delays = [case.random.random() * 0.3 for _ in range(count)]

    def begin(number: int) -> int:
        threading.Event().wait(delays[number])
        return kills.in_child(work)

    with ThreadPoolExecutor(count) as pool:
        codes = list(pool.map(begin, range(count)))
    if not set(codes) <= {0, 2} or 0 not in codes:
        errors = [path.read_text() for path in case.folder.glob("error-*")]
        raise Wrong(f"two processes ended with {codes}: {errors}")
    for path in case.folder.glob("error-*"):
        path.unlink()
    return codes


def two_compressions(case: Case) -> None:
    codes = in_processes(kills.compress, case)
    if codes == [0, 0]:
        raise Wrong("two compressions were written into one folder, and one is lost")
    kills._check_compressed()


def _train_anew() -> None:
    gdws.train(tiny.net(), material.pictures(), kills.RECIPE, Path("out"))


def two_trainings(case: Case) -> None:
    codes = in_processes(_train_anew, case)
    if codes == [0, 0]:
        raise Wrong("two trainings were written into one folder, and one is lost")
    kills._check_trained()


def two_resumed_trainings(case: Case) -> None:
    in_processes(kills.train, case)
    kills._check_trained()


def two_evaluations(case: Case) -> None:
    in_processes(kills.evaluate, case)
    kills._check_evaluated()


def _save_often() -> None:
    for _ in range(20):
        for network in (tiny.net(), tiny.other()):
            gdws.save(network, "out", force=True, export=False)


def two_savers(case: Case) -> None:
    in_processes(_save_often, case)
    kills._check_saved()


def two_caches(case: Case) -> None:
    in_processes(functools.partial(_planned_with, Path("cache")), case)
    same(_planned_with(Path("cache")), _planned_with(None), "the plan by the cache")


def two_exports(case: Case) -> None:
    in_processes(kills.export, case)
    kills._check_exported()


SHORT = ("plan", "evaluate", "read", "save", "permissions", "cache", "two trainings", "two evaluations", "two savers")
WORKS: dict[str, tuple[Callable[[Case], None], int]] = {
    "plan": (plan_one_network, 6),
    "compress": (compress_one_network, 4),
    "evaluate": (evaluate_one_network, 4),
    "read": (read_one_folder, 4),
    "save": (save_into_one_folder, 6),
    "permissions": (permissions, 4),
    "export": (export_one_network, 3),
    "train": (train_in_threads, 3),
    "cache": (calibrate_with_one_cache, 4),
    "two compressions": (two_compressions, 4),
    "two trainings": (two_trainings, 6),
    "two resumed trainings": (two_resumed_trainings, 6),
    "two evaluations": (two_evaluations, 6),
    "two savers": (two_savers, 6),
    "two caches": (two_caches, 6),
    "two exports": (two_exports, 3),
}
