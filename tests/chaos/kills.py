"""Every long command killed at a random moment: what bears a final name is whole, and going on comes to the same."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

import gdws
from chaos import material, tiny
from chaos.case import Case, Family, Wrong, command, same
from chaos.meaning import bits
from gdws.attacks import PGD
from gdws.core.errors import GdwsError

LONGEST = 120.0


@dataclass(frozen=True)
class Long:
    """Something that takes its time in the working folder.

    work     is killed. It may go on for ever, if `seconds` is given.
    check    what is there after the kill, and after going on.
    """

    work: Callable[[], object]
    check: Callable[[], None]
    seconds: float | None = None


def families() -> list[Family]:
    return [
        Family(f"kills/{name}", COUNTS[name], functools.partial(_attempt, long), SHORT[name], LONGEST)
        for name, long in LONGS.items()
    ]


def _attempt(long: Long, case: Case) -> None:
    case.key = case.name
    # Writing comes last: half of the kills fall into the last third.
    moment = 1 - case.random.random() / case.random.choice((1, 3))
    moment *= long.seconds or duration(long.work)
    case.tell(f"killed after {moment:.3f} s")
    in_child(long.work, moment)
    try:
        long.check()
    except GdwsError as error:
        raise Wrong(f"going on was refused: {error}") from error
    for hidden in case.folder.rglob(".*"):
        raise Wrong(f"{hidden.relative_to(case.folder)} stays for ever")


def in_child(work: Callable[[], object], moment: float | None = None) -> int:
    """Run it in a process of its own, which is killed at a moment if that is given: its exit code."""
    child = get_context("fork").Process(target=_silently, args=(work,))
    child.start()
    child.join(moment)
    if child.is_alive():
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    return int(child.exitcode)


def _silently(work: Callable[[], object]) -> None:
    try:
        work()
    except GdwsError as error:
        Path(f"error-{os.getpid()}").write_text(str(error))
        os._exit(2)
    os._exit(0)


@functools.cache
def duration(work: Callable[[], object]) -> float:
    """Seconds that it takes to its end."""
    here, place = os.getcwd(), Path("whole")
    place.mkdir(exist_ok=True)
    os.chdir(place)
    begun = time.monotonic()
    code = in_child(work)
    os.chdir(here)
    _remove(place)
    if code:
        raise Wrong(f"{work.__name__} ended with {code}: expected it to work where it is not killed")
    return time.monotonic() - begun


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)


COMPRESS = ("compress", material.NET, "--out", "out", "--structures", "gdws", "--images", "8", "--eps", "0", "--cache", "cache")


def compress() -> None:
    command(*COMPRESS, "--data", f"npz:{material.ROOT}/stored.npz")


@functools.cache
def compressed() -> tuple[bytes, torch.Tensor]:
    in_child(functools.partial(_compress_into, material.ROOT / f"compressed-{os.getpid()}"))
    folder = material.ROOT / f"compressed-{os.getpid()}" / "out"
    return (folder / "model.safetensors").read_bytes(), material.logits(gdws.load(folder))


def _compress_into(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    compress()


def _check_compressed() -> None:
    weights, logits = compressed()
    for again in (False, True):
        if again and not Path("out").exists():
            compress()
        if again:
            command(*COMPRESS, "--data", f"npz:{material.ROOT}/stored.npz", "--force")
        if Path("out").exists():
            same((Path("out") / "model.safetensors").read_bytes() == weights, True, "equality of the weights")
            for loaded in (gdws.load("out"), gdws.load("out", material.network())):
                if not torch.allclose(material.logits(loaded), logits, atol=1e-4):
                    raise Wrong("the network that was saved decides otherwise")


RECIPE = gdws.Recipe(epochs=4, batch=10, rate=0.01, held=5, attack=PGD(steps=1))


def train() -> gdws.training.Trained:
    return gdws.train(tiny.net(), material.pictures(), RECIPE, Path("out"), resume=True, checkpoint_seconds=0)


@functools.cache
def trained() -> dict[str, bytes]:
    folder = material.ROOT / f"trained-{os.getpid()}"
    made = gdws.train(tiny.net(), material.pictures(), RECIPE, folder)
    return {name: bits(value) for name, value in made.model.state_dict().items()}


def _check_trained() -> None:
    """The weights so far are whole, and the training goes on to the same end."""
    if Path("out/model.safetensors").exists():
        gdws.models.resolve(material.NET, Path("out/model.safetensors"))
    same(
        {name: bits(value) for name, value in train().model.state_dict().items()} == trained(), True, "equality of the weights"
    )
    lines = [json.loads(line)["epoch"] for line in Path("out/log.jsonl").read_text().splitlines()]
    same(lines, [1, 2, 3, 4], "the log's epochs")


def evaluate() -> dict[object, list[bool]]:
    batches = material.pictures(64).take(None, 4)
    networks = {"base": tiny.net(), "other": tiny.other()}
    found = gdws.compare(networks, batches, [PGD(steps=8)], checkpoint=Path("log.jsonl"), resume=True)
    return {trial: right.tolist() for trial, right in found.right.items()}


@functools.cache
def evaluated() -> dict[object, list[bool]]:
    found = gdws.compare({"base": tiny.net(), "other": tiny.other()}, material.pictures(64).take(None, 4), [PGD(steps=8)])
    return {trial: right.tolist() for trial, right in found.right.items()}


def _check_evaluated() -> None:
    same(evaluate(), evaluated(), "the resumed evaluation")


EXPORT = ("export", "--base", material.NET, "--out", "x.onnx", "--n", "4", "--eps", "0")


def export() -> None:
    command(*EXPORT, "--data", f"npz:{material.ROOT}/stored.npz", f"{material.ROOT}/fast", "--force")


def _check_exported() -> None:
    for again in (False, True):
        if again:
            export()
        if Path("x.onnx").exists():
            run = gdws.compile("x.onnx", "onnxruntime", example=material.images()[:4], threads=1)
            if not torch.allclose(run(material.images()[:4]), material.logits(_fast()), atol=1e-4):
                raise Wrong("the file that was exported decides otherwise")


@functools.cache
def _fast() -> torch.nn.Module:
    return gdws.load(material.ROOT / "fast", material.network())


def save() -> None:
    """Over and over, two networks in turns."""
    while True:
        for network in (tiny.net(), tiny.other()):
            gdws.save(network, "out", force=True, export=False)
            Path("saved").touch()  # from here on there is always one


def _check_saved() -> None:
    for again in (False, True):
        if again:
            gdws.save(tiny.net(), "out", force=True, export=False)
        elif not Path("out").exists() and not Path("saved").exists():
            continue  # killed before the first was there
        found = material.logits(gdws.load("out", tiny.net()))
        if not any(torch.equal(found, material.logits(network)) for network in (tiny.net(), tiny.other())):
            raise Wrong("the network that was saved is neither")


def inspect() -> None:
    while True:
        command("inspect", material.NET, "--size", 8, "--json", "result.json")


def _check_json() -> None:
    if Path("result.json").exists():
        same(json.loads(Path("result.json").read_text())["model"], material.NET, "the model in the result")
    command("inspect", material.NET, "--size", 8, "--json", "result.json")


def calibrate() -> None:
    seed = 0
    while True:
        gdws.calibrate(tiny.net(), [material.images()], material.METHOD, seed=seed % 3, cache=Path("cache"))
        if seed % 3 == 2:
            for file in Path("cache").glob("statistics-*"):
                file.unlink()
        seed += 1


def _check_calibrated() -> None:
    for seed in (0, 1, 2, 3):  # the last is new, and so is written
        plans = [
            gdws.plan(
                tiny.net(),
                gdws.calibrate(tiny.net(), [material.images()], material.METHOD, seed=seed, cache=cache),
                gdws.Macs(0.5),
            )
            for cache in (Path("cache"), None)
        ]
        same(plans[0], plans[1], "the plan by the cache")


LONGS = {
    "compress": Long(compress, _check_compressed),
    "train": Long(train, _check_trained),
    "evaluate": Long(evaluate, _check_evaluated),
    "export": Long(export, _check_exported),
    "save": Long(save, _check_saved, 0.6),
    "json": Long(inspect, _check_json, 0.2),
    "cache": Long(calibrate, _check_calibrated, 0.5),
}
SHORT = {"compress": 0, "train": 2, "evaluate": 2, "export": 0, "save": 4, "json": 1, "cache": 2}
COUNTS = {"compress": 40, "train": 50, "evaluate": 50, "export": 30, "save": 80, "json": 20, "cache": 30}
