"""The demo: the embedded robust CNN, the paper's GDWS and the calibrated method at two budgets each, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdws import data
from gdws.attacks import PGD
from gdws.calibration.collect import calibrate
from gdws.calibration.method import Calibrated
from gdws.compression.apply import apply
from gdws.compression.compress import plan
from gdws.core.cost import network_cost
from gdws.deploy.benchmark import Timing, bench
from gdws.evaluation.accuracy import evaluate
from gdws.models import embedded
from gdws.planning.budgets import Macs

VARIANTS = (("paper", 0.75), ("paper", 0.5), ("calibrated", 0.5), ("calibrated", 0.3))
CALIBRATION_IMAGES = 150


@dataclass(frozen=True, kw_only=True)
class Row:
    """One network of the demo's table. natural is on all 1,000 embedded test images, robust on the first ones."""

    name: str
    natural: float
    robust: float
    macs: int
    parameters: int
    size_mb: float
    fps: float
    fps_ratio: float


def demo(images: int = 100, seed: int = 0) -> list[Row]:
    """Compress, attack (PGD-20 on the first `images` test images) and time the embedded model."""
    base = embedded()
    # In batches of 100 a GDWS layer's maps are so large that the system hands out their memory anew each time: 3 times slower.
    test, calibration = data.load("demo", "test").take(None, 25), data.load("demo", "train").take(CALIBRATION_IMAGES)
    models: dict[str, nn.Module] = {"base": base}
    statistics = calibrate(base, calibration, seed=seed)
    for method, fraction in VARIANTS:
        source = statistics if method == Calibrated.name else calibration
        models[f"{method} {fraction:g}"] = apply(base, plan(base, source, Macs(fraction), method, seed=seed), statistics)
    timings = _one_core(models, test.images[:1].float() / 255)
    rows = []
    for name, model in models.items():
        cost = network_cost(model, test.images[:1].float() / 255)
        rows.append(
            Row(
                name=name,
                natural=evaluate(model, test).natural_percent,
                robust=evaluate(model, test.take(images, batch_size=50), PGD(early_exit=True), seed).robust_percent,
                macs=cost.macs,
                parameters=cost.parameters,
                size_mb=cost.size_mb,
                fps=timings[name].fps,
                fps_ratio=timings["base"].median / timings[name].median,
            )
        )
    return rows


def _one_core(models: dict[str, nn.Module], example: Tensor) -> dict[str, Timing]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # at one small image, threads mostly wait for each other
    try:
        return bench(models, example)
    finally:
        torch.set_num_threads(threads)
