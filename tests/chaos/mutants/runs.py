"""Spoiled checkpoints, logs and caches: a run that goes on comes to what it would have come to, or refuses.

What a spoiled cache gives must be what gdws computes without one.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

import gdws
from chaos import material, meaning
from chaos.case import Case, Wrong, same
from chaos.material import whole
from gdws.evaluation.comparison import Comparison
from gdws.planning.latency import measure
from gdws.planning.latency.table import LatencyTable


@functools.cache
def finished() -> tuple[list[Any], dict[str, Tensor]]:
    """What the training came to that was not cut."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for name in ("checkpoint.safetensors", "log.jsonl", "model.safetensors"):
            (path / name).write_bytes(whole(f"training/{name}"))
        trained = gdws.train(material.network(), material.pictures(), material.RECIPE, path, resume=True)
        return trained.history, dict(trained.model.state_dict())


def checkpoint(case: Case, content: bytes, source: str) -> None:
    for name in ("checkpoint.safetensors", "log.jsonl", "model.safetensors"):
        (case.folder / name).write_bytes(content if source.endswith(name) else whole(f"training/{name}"))
    trained = gdws.train(material.network(), material.pictures(), material.RECIPE, case.folder, resume=True)
    history, tensors = finished()
    if source.endswith("checkpoint.safetensors"):
        record = meaning.metadata(content)
        meaning.check_record(trained.history, record["state"]["history"], history, "the history")
        given = meaning.safetensors(content)
        tensors = {name: given[f"best.{name}"] for name in tensors}
    else:
        same(_stable(trained.history), _stable(history), "the history")
    meaning.check_tensors(trained.model.state_dict(), tensors, "the training")
    lines = (case.folder / "log.jsonl").read_text().splitlines()
    same([json.loads(line)["epoch"] for line in lines], [line["epoch"] for line in trained.history], "the log")


def _stable(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if "second" not in name} for line in history]


@functools.cache
def compared() -> Comparison:
    return material.evaluate()


def evaluation(case: Case, content: bytes, source: str) -> None:
    path = case.folder / "evaluation.jsonl"
    path.write_bytes(content)
    found, wanted = material.evaluate(path, resume=True), compared()
    given = decisions(content, wanted)
    for row, (trial, right) in enumerate(wanted.right.items()):
        parts = []
        for number, part in enumerate(right.split(6)):
            parts += given[number][row] if number in given else part.tolist()
        same(found.right[trial].tolist(), parts, f"{trial.judge} under {trial.attack}")
    again = material.evaluate(path, resume=True)
    same(
        [right.tolist() for right in again.right.values()],
        [right.tolist() for right in found.right.values()],
        "a second resumption",
    )


def decisions(content: bytes, wanted: Comparison) -> dict[int, list[list[bool]]]:
    """What the whole lines of a log say; other lines are done again."""
    pristine = {json.loads(line)["batch"]: json.loads(line)["data"] for line in whole("evaluation.jsonl").splitlines()[1:]}
    found = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines()[1:]:
        try:
            record = json.loads(line)
            rows, batch = record["right"], record["batch"]
            whole_line = type(batch) is int and pristine.get(batch) == record["data"] and len(rows) == len(wanted.right)
            if (
                whole_line
                and isinstance(rows, list)
                and all(isinstance(row, str) and len(row) == 6 and set(row) <= set("01") for row in rows)
            ):
                found[batch] = [[character == "1" for character in row] for row in rows]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


@functools.cache
def collected() -> tuple[str, str]:
    return _planned(None)


def _planned(cache: Path | None) -> tuple[str, str]:
    """What statistics say, in numbers: a plan, and what its layers become."""
    statistics = gdws.calibrate(material.network(), [material.images()], material.METHOD, cache=cache)
    plan = gdws.plan(material.network(), statistics, gdws.Macs(0.5))
    applied = gdws.apply(material.network(), plan, statistics)
    return plan.to_json(), " ".join(f"{value:.4f}" for value in material.logits(applied).flatten().tolist())


def statistics(case: Case, content: bytes, source: str) -> None:
    cache = case.folder / "cache"
    cache.mkdir()
    (cache / material.statistics_file(material.ROOT).name).write_bytes(content)
    same(_planned(cache), collected(), "what spoiled statistics came to")


class Measuring(Exception):
    """The times are taken anew, which is right and takes seconds."""


def latency(case: Case, content: bytes, source: str) -> None:
    def instead(*_: Any) -> None:
        raise Measuring

    cache = case.folder / "cache"
    cache.mkdir()
    (cache / material.latency_file(material.ROOT).name).write_bytes(content)
    before = measure.measure_on_cpu
    measure.measure_on_cpu = instead
    try:
        found = material.latencies(cache)
    except Measuring:
        return
    finally:
        measure.measure_on_cpu = before
    if found != measured():
        raise Wrong(f"spoiled times were used: {str(found)[:200]}")


@functools.cache
def measured() -> LatencyTable:
    """The times of the whole file."""
    return material.latencies(material.ROOT / "latency")
