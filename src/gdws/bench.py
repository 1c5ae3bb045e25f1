"""Frames per second of models side by side, taken in turns so that a busy machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdws.contract import placement
from gdws.progress import track

PAPER = (5_000, 10_000)
"""Warm-up and timed forward passes of the paper's protocol, at batch 1."""


@dataclass(frozen=True)
class Timing:
    """Seconds for one forward pass of a batch: the median, and the lower quartile for machines that others use too."""

    batch: int
    median: float
    quartile: float

    @property
    def fps(self) -> float:
        return self.batch / self.median


def bench(models: Mapping[str, nn.Module], example: Tensor, warmup: int = 20, repeats: int = 100) -> dict[str, Timing]:
    """Time forward passes of each model on `example` (B, C, H, W) in its own device's time, one model after another in turn."""
    inputs = {name: example.to(*placement(model)) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for step in track(range(warmup + repeats), "timing"):
            for name, model in models.items():
                seconds = _once(model, inputs[name])
                if step >= warmup:
                    times[name].append(seconds)
    return {
        name: Timing(len(example), *(float(q) for q in torch.tensor(taken).quantile(torch.tensor([0.5, 0.25]))))
        for name, taken in times.items()
    }


def _once(model: nn.Module, x: Tensor) -> float:
    if x.device.type != "cuda":
        start = time.perf_counter()
        model(x)
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    model(x)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
