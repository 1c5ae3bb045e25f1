"""How long each step takes on this machine, from a short measured probe: passes of each network, times how many a step needs.

These are estimates. They count passes alone, in float32; training in bfloat16 and attacks as CUDA graphs are faster, and data
that is decoded meanwhile is slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdws.attacks.gradient_ascent import loss_gradient
from gdws.core.progress import track
from gdws.reproduce.place import Place, Step
from gdws.reproduce.steps.compressed import Compressed
from gdws.reproduce.steps.speed import Timed

BATCH_ON_GPU, BATCH_ON_CPU = 256, 8
START = 0.1
"""Seconds that every step takes beside its passes."""
SEARCH, SMOKE_SEARCH = 180.0, 3.0
"""Seconds in which plans for a measured time are found."""


@dataclass(frozen=True)
class Pace:
    """Seconds of a network: a forward and a backward pass of an image in a batch, and a forward pass of a single image."""

    pass_of_batch: float
    single: float


def estimate(place: Place, steps: Sequence[Step]) -> list[float]:
    """Seconds for each step, of one worker."""
    paces = {name: probe(place, name) for name in track(dict.fromkeys(step.architecture for step in steps), "probing")}

    def seconds(step: Step) -> float:
        pace = paces[step.architecture]
        found = START + step.work(place) * (pace.single if isinstance(step, Timed) else pace.pass_of_batch)
        searches = isinstance(step, Compressed) and step.measures_time
        return found + (SMOKE_SEARCH if place.scale.is_smoke else SEARCH) * searches

    return [seconds(step) for step in steps]


def probe(place: Place, architecture: str) -> Pace:
    """Time a network with fresh weights, for about a second."""
    model = place.scale.build(architecture, 10).to(place.device)
    side = 224 if "imagenet" in architecture and not place.scale.is_smoke else 32
    count = BATCH_ON_GPU if place.device.type == "cuda" else BATCH_ON_CPU
    images = torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0)).to(place.device)
    labels = torch.zeros(count, dtype=torch.int64, device=place.device)
    with torch.no_grad():
        single = _seconds(lambda: _waited(model(images[:1])))
    return Pace(_seconds(lambda: _waited(_gradient(model, images, labels))) / count, single)


def _gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return loss_gradient(model, images, labels)[1]


def _waited(value: Tensor) -> None:
    value.flatten()[0].item()


def _seconds(call: Callable[[], None]) -> float:
    """The shorter of two calls after one that is not counted."""
    call()
    taken = []
    for _ in range(2):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return min(taken)
