"""Frames per second of models side by side, interleaved so that a busy machine disturbs all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from gdws.core.errors import GdwsError
from gdws.core.execution import placement
from gdws.core.inputs import Inputs, call_model, place, tensors_of
from gdws.core.progress import track

PAPER = (5_000, 10_000)
"""Warm-up and timed forward passes of the paper's protocol, at batch 1."""

MOST = 10**6
"""Passes of each model."""

UNSTEADY = 1.25
"""On a quiet machine nine in ten passes of a fixed kernel take less than this many times the lower decile."""


@dataclass(frozen=True)
class Timing:
    """What forward passes of a batch took, in seconds.

    batch     images in a pass.
    median    of the passes.
    quartile  the lower one, for machines that others use too.
    interval  of the median, at 95 %, from order statistics: the passes at ranks n/2 -+ 0.98 sqrt(n). It takes passes for
              independent, so it says nothing of a machine that was slow throughout.
    busy      whether a fixed kernel, timed in between, took times so unequal that other work must have had the cores.
    """

    batch: int
    median: float
    quartile: float
    interval: tuple[float, float]
    busy: bool

    @property
    def fps(self) -> float:
        """Images per second, by the median."""
        return self.batch / self.median


def bench(models: Mapping[str, Callable[..., Any]], example: Inputs, warmup: int = 20, repeats: int = 100) -> dict[str, Timing]:
    """Time forward passes of several models, interleaved, so that a busy machine disturbs all of them alike.

    models   by name: modules, what gdws.compile gives, or any functions of inputs.
    example  the batch of every pass: images (B, C, H, W), or gdws.Arguments of several tensors.
    warmup   passes of each model that are not counted.
    repeats  passes of each model that are.

    Of two passes in a row the second is timed, with the model's own weights in the caches, as where it runs alone. A module
    runs on its own device, timed in that device's time.

    Returns by name the median, lower quartile and frames per second (gdws.deploy.benchmark.Timing), in seconds for one batch.
    Raises GdwsError when repeats is below 1, warmup below 0, or one of them above a million.

    >>> import gdws, torch
    >>> timings = gdws.bench({"demo": gdws.models.embedded()}, torch.rand(1, 3, 32, 32), warmup=1, repeats=5)
    >>> timings["demo"].fps > 0
    True
    """
    if repeats < 1 or warmup < 0 or max(repeats, warmup) > MOST:
        raise GdwsError(f"warmup is {warmup} and repeats {repeats}: expected at least 0 and 1, and at most {MOST:,}")
    on_device = {name: inside for name, model in models.items() if (inside := getattr(model, "on_device", None)) is not None}
    models = {**models, **on_device}  # a module without a length is no truth value
    inputs = {name: place(example, *placement(m)) if isinstance(m, nn.Module) else example for name, m in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    square, steady = torch.rand(128, 128), []
    with torch.inference_mode():
        for step in track(range(warmup + repeats), "timing"):
            for name, model in models.items():
                seconds = _second(partial(call_model, model) if isinstance(model, nn.Module) else model, inputs[name])
                if step >= warmup:
                    times[name].append(seconds)
            seconds = _second(lambda x: x @ x, square)
            if step >= warmup:
                steady.append(seconds)
    busy = unsteady(steady)
    return {
        name: Timing(len(example), _quantile(taken, 0.5), _quantile(taken, 0.25), interval(taken), busy)
        for name, taken in times.items()
    }


def unsteady(taken: list[float]) -> bool:
    """Whether equal work took times too unequal for a machine that does nothing else."""
    return _quantile(taken, 0.9) > UNSTEADY * _quantile(taken, 0.1)


def interval(taken: list[float]) -> tuple[float, float]:
    """A distribution-free 95 % interval of the median; of fewer than six values, their range."""
    ordered, reach = sorted(taken), 0.98 * math.sqrt(len(taken))
    low, high = math.floor(len(taken) / 2 - reach) - 1, math.ceil(len(taken) / 2 + reach)
    return ordered[max(low, 0)], ordered[min(high, len(taken) - 1)]


def _quantile(taken: list[float], share: float) -> float:
    return float(torch.tensor(taken, dtype=torch.float64).quantile(share))


def _second(model: Callable[..., Any], x: Inputs) -> float:
    """Seconds of the second of two passes: the first finds the caches full of another model's weights.

    A GPU is not waited for between the two, so that it does not wait for Python at the beginning of the second.
    """
    device = tensors_of(x)[0].device
    if device.type != "cuda":
        model(x)
        start = time.perf_counter()
        model(x)
        return time.perf_counter() - start
    with torch.cuda.device(device):  # events belong to the current device
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        model(x)
        begin.record()
        model(x)
        end.record()
        end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
