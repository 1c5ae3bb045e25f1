"""The demo: the embedded robust CNN, the paper's GDWS, the calibrated method and a plan for speed, side by side as deployed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gdws import data
from gdws.attacks import PGD
from gdws.calibration.collect import calibrate
from gdws.calibration.method import Calibrated
from gdws.compression.apply import apply
from gdws.compression.compress import plan
from gdws.core.errors import OutOfReach
from gdws.core.inputs import Inputs
from gdws.core.progress import track
from gdws.data import Dataset
from gdws.deploy.benchmark import Timing, bench
from gdws.deploy.engines import ENGINES, Compiled, compile
from gdws.evaluation.accuracy import evaluate
from gdws.evaluation.comparison import interval, percent
from gdws.models import embedded
from gdws.planning.budgets import Macs, Speedup
from gdws.planning.cost import network_cost
from gdws.planning.latency.target import Target
from gdws.planning.significance import paired_change

VARIANTS = (("paper", 0.75), ("paper", 0.5), ("calibrated", 0.5), ("calibrated", 0.3))
FASTER = 1.5
PAIRS = ("vertical", "horizontal")
"""The speed-up that the last network is planned for, and the structures that it may take: more take longer to time."""
CALIBRATION_IMAGES, INT8_IMAGES = 150, 25
ACCEPTABLE = -2.0
"""Points of natural accuracy that the best trade-off may lose; of robust accuracy nothing that the few attacked images show."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One network of the demo's table. natural is on all 1,000 embedded test images, robust on the first ones.

    *_interval  of the accuracies, 95 %
    *_change    (points, lowest, highest) compared with the base on the same images, 95 %; None for the base
    fps         of single images on one core, in float32 and the fastest engine; fps_ratio to the base's
    int8_*      the same in int8, compared with the base in int8; None where no engine for it is installed
    """

    name: str
    natural: float
    robust: float
    macs: int
    parameters: int
    size_mb: float
    fps: float
    fps_ratio: float
    engine: str
    natural_interval: tuple[float, float]
    robust_interval: tuple[float, float]
    natural_change: tuple[float, float, float] | None
    robust_change: tuple[float, float, float] | None
    int8_engine: str | None = None
    int8_natural: float | None = None
    int8_fps: float | None = None
    int8_ratio: float | None = None


def demo(images: int = 100, seed: int = 0) -> list[Row]:
    """Compress, attack (PGD-20 on the first `images` test images) and time the embedded model."""
    base = embedded()
    # In batches of 100 a GDWS layer's maps are so large that the system hands out their memory anew each time: 3 times slower.
    test, calibration = data.load("demo", "test").take(None, 25), data.load("demo", "train").take(CALIBRATION_IMAGES)
    example = test.images[:1].float() / 255
    models: dict[str, nn.Module] = {"base": base}
    statistics = calibrate(base, calibration, seed=seed)
    for name, fraction in VARIANTS:
        models[f"{name} {fraction:g}"] = apply(base, plan(base, statistics, Macs(fraction), name, seed=seed), statistics)
    runs = {"float32": _deploy(models, example, "float32", None)}
    fastest = runs["float32"]["base"].engine
    if ENGINES[fastest].times_layers:
        target, method = Target(fastest, threads=1), Calibrated(structures=PAIRS)
        with suppress(OutOfReach):  # on a machine on which little of the time is in the layers
            faster = plan(base, statistics, Speedup(FASTER), method, target=target, seed=seed)
            planned = {f"planned {FASTER:g}x": apply(base, faster, statistics)}
            models |= planned
            runs["float32"] |= _deploy(planned, example, "float32", None)
    if any("int8" in engine.precisions and engine.is_installed("int8") for engine in ENGINES.values()):
        runs["int8"] = _deploy(models, example, "int8", statistics.images[:INT8_IMAGES])
    every = {f"{precision} {name}": run for precision, own in runs.items() for name, run in own.items()}
    timings = bench(every, example)
    judged = {name: _judge(model, test, images, seed) for name, model in models.items()}
    return [_row(name, model, example, test, runs, timings, judged) for name, model in models.items()]


def seen(rows: list[Row], images: int) -> str:
    """What the table says, in two sentences: which network is the best trade-off, and what it costs."""
    base, *others = rows
    kept = [
        row
        for row in others
        if row.natural_change and row.natural_change[0] >= ACCEPTABLE and row.robust_change and row.robust_change[2] >= 0
    ]
    best = max(kept, key=lambda row: row.fps_ratio) if kept else max(others, key=lambda row: row.natural)
    int8 = f" and {best.int8_ratio:.2f} times in int8" if best.int8_ratio is not None else ""
    natural, robust = (
        f"{change[0]:+.1f} points (95 % interval {change[1]:+.1f} to {change[2]:+.1f}, {count} images)"
        for change, count in zip((best.natural_change, best.robust_change), ("1,000", f"{images:,}"), strict=True)
        if change is not None
    )
    return (
        f"The best trade-off is {best.name}: {best.fps_ratio:.2f} times as fast as the base in float32{int8}, with "
        f"{best.macs / base.macs:.2f} of its MACs.\n"
        f"Its natural accuracy changes by {natural}, its robust accuracy by {robust}."
    )


def _deploy(models: dict[str, nn.Module], example: Tensor, precision: str, calibration: Inputs | None) -> dict[str, Compiled]:
    """Each in its fastest engine on one core: at one small image, threads mostly wait for each other."""
    return {
        name: compile(model, example=example, precision=precision, threads=1, calibration=calibration)
        for name, model in track(models.items(), f"building for {precision}", len(models))
    }


def _row(
    name: str,
    model: nn.Module,
    example: Tensor,
    test: Dataset,
    runs: dict[str, dict[str, Compiled]],
    timings: dict[str, Timing],
    judged: dict[str, tuple[Tensor, Tensor]],
) -> Row:
    cost = network_cost(model, example)
    natural, robust = judged[name]
    changes = [None if name == "base" else _change(*pair) for pair in zip(judged["base"], judged[name], strict=True)]
    own, int8 = timings[f"float32 {name}"], dict[str, Any]()
    if "int8" in runs:
        run, timing = runs["int8"][name], timings[f"int8 {name}"]
        int8 = {
            "int8_engine": run.engine,
            "int8_natural": percent(torch.cat([run(images).argmax(1) == labels for images, labels in test])),
            "int8_fps": timing.fps,
            "int8_ratio": timings["int8 base"].median / timing.median,
        }
    return Row(
        name=name,
        natural=percent(natural),
        robust=percent(robust),
        macs=cost.macs,
        parameters=cost.parameters,
        size_mb=cost.size_mb,
        fps=own.fps,
        fps_ratio=timings["float32 base"].median / own.median,
        engine=runs["float32"][name].engine,
        natural_interval=interval(natural),
        robust_interval=interval(robust),
        natural_change=changes[0],
        robust_change=changes[1],
        **int8,
    )


def _judge(model: nn.Module, test: Dataset, images: int, seed: int) -> tuple[Tensor, Tensor]:
    """Right (N,) on all test images, and on the first ones under attack."""
    robust = evaluate(model, test.take(images, batch_size=50), PGD(early_exit=True), seed).attacked
    assert robust is not None
    return evaluate(model, test).natural, robust


def _change(before: Tensor, after: Tensor) -> tuple[float, float, float]:
    change = paired_change(before, after)
    return change.points, *change.score_interval
