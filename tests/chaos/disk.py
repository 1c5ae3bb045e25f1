"""Disks that are full at a random byte: a sentence, nothing half written under its final name, and no cache that is fatal.

With leave to mount, a small tmpfs; else a limit on the size of files, which fails in the same calls.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

import gdws
from chaos import kills, material, tiny
from chaos.case import Case, Family, Wrong, command, same
from gdws.core.errors import GdwsError


def families() -> list[Family]:
    return [
        Family(f"disk/{name}", count, functools.partial(_attempt, *works), SHORT.get(name, 0), seconds=90)
        for name, (count, *works) in WORKS.items()
    ]


def _attempt(work: Callable[[], object], check: Callable[[], None], largest: int, case: Case) -> None:
    room = int(largest * case.random.random() ** 2)
    case.key = f"{room}"
    mounted = case.random.random() < 0.5
    case.tell(f"{room} bytes {'on the disk' if mounted else 'in a file'}")
    place = case.folder / "disk"
    place.mkdir()
    with _full_disk(place, room) if mounted else _small_files(room):
        os.chdir(place)
        refused = None
        try:
            try:
                work()
            except GdwsError as error:
                refused = error
            left = [path.relative_to(place) for path in place.rglob(".*") if not path.name.endswith(".lock")]
            if left:
                raise Wrong(f"{left[0]} was left behind")
            check()
        finally:
            os.chdir(case.folder)
    if refused is not None:
        raise refused


@contextmanager
def _full_disk(place: Path, room: int) -> Iterator[None]:
    pages = max(2, room // 4096 + 2)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pages * 4096}", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        with _small_files(room):
            yield
        return
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=True)


@contextmanager
def _small_files(room: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def save() -> None:
    gdws.save(tiny.net(), "out", export=False)


def saved() -> None:
    if Path("out").exists():
        same(
            torch.equal(material.logits(gdws.load("out", tiny.other())), material.logits(tiny.net())),
            True,
            "equality of the logits",
        )


def export() -> None:
    command(*kills.EXPORT, "--data", f"npz:{material.ROOT}/stored.npz", f"{material.ROOT}/fast", "--json", "x.json")


def exported() -> None:
    if Path("x.onnx").exists():
        same(Path("x.onnx").read_bytes() == material.whole("fast/model.onnx"), True, "equality of the files")
    _json_is_whole(Path("x.json"))


def _json_is_whole(path: Path) -> None:
    if path.exists():
        json.loads(path.read_text())


def train() -> None:
    gdws.train(tiny.net(), material.pictures(), material.RECIPE, Path("out"))


def trained() -> None:
    for name in ("model", "checkpoint"):
        if Path(f"out/{name}.safetensors").exists():
            load_file(f"out/{name}.safetensors")


def evaluate() -> None:
    kills.evaluate()


def evaluated() -> None:
    """The lines that are there are right."""
    if Path("log.jsonl").exists():
        content = Path("log.jsonl").read_bytes()
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        for line in lines:
            json.loads(line)


def calibrate() -> None:
    """Without room for a cache there is none, and all goes on."""
    try:
        found = gdws.calibrate(material.network(), [material.images()], material.METHOD, cache=Path("cache"))
    except GdwsError as error:
        raise Wrong(f"a cache that cannot be written is fatal: {error}") from None
    same(gdws.plan(material.network(), found, gdws.Macs(0.5)), _plan(), "the plan")


@functools.cache
def _plan() -> gdws.Plan:
    return gdws.plan(material.network(), material.statistics(), gdws.Macs(0.5))


def calibrated() -> None:
    calibrate()


def compress() -> None:
    kills.compress()


def compressed() -> None:
    if Path("out").exists():
        gdws.load("out", material.network())


SHORT = {"save": 4, "train": 1, "evaluate": 2, "cache": 1}
WORKS: dict[str, tuple[int, Callable[[], object], Callable[[], None], int]] = {
    "save": (40, save, saved, 12_000),
    "export": (20, export, exported, 16_000),
    "train": (20, train, trained, 60_000),
    "evaluate": (20, evaluate, evaluated, 6_000),
    "cache": (20, calibrate, calibrated, 120_000),
    "compress": (20, compress, compressed, 120_000),
}
