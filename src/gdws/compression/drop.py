"""The smallest network within a number of points of agreement: plan, apply, measure, bisect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from gdws.calibration.collect import gather_images
from gdws.calibration.method import Calibrated, Method
from gdws.calibration.robustness import settle_attack
from gdws.calibration.statistics import Statistics
from gdws.compression.apply import apply
from gdws.compression.fidelity import attack_held_back, decided_alike, hold_back
from gdws.core.checks import Batches
from gdws.core.hashing import image_hashes
from gdws.core.progress import note, track
from gdws.errors import GdwsError, OutOfReach
from gdws.planning.budgets import Drop, Macs
from gdws.planning.latency.table import LatencyTable
from gdws.planning.latency.target import Target
from gdws.planning.plan import Plan
from gdws.planning.planner import plan_within

SMALLEST, ROUNDS = 0.02, 7
"""The fraction of the MACs below which nothing is tried, and how often the interval is halved."""


def smallest_within(
    model: nn.Module,
    calibration: Batches | Statistics,
    budget: Drop,
    method: Method | None,
    target: Target | LatencyTable | None,
    *,
    seed: int,
    cache: Path | None,
) -> tuple[Plan, Statistics | None]:
    """Bisect the fraction of MACs for the smallest network that agrees with the original on held-back images.

    Agreement is taken on the held-back images clean and attacked together. The plan's statistics come from the others.
    """
    if isinstance(calibration, Statistics):
        raise GdwsError(f"{budget} got collected statistics: expected images, some of which it can hold back")
    images, labels = gather_images(calibration)
    method = settle_attack(model, images, method or Calibrated())
    (fitted, fitted_labels), (held, held_labels) = hold_back(images, labels)
    check = torch.cat([held, attack_held_back(model, held, held_labels, method.settled_attack).to(held.dtype)])
    used: Batches = [(fitted, fitted_labels)] if fitted_labels is not None else [fitted]
    low, high = SMALLEST, 1.0
    best, statistics = plan_within(model, used, Macs(high), method, target, seed=seed, cache=cache)
    if any(layer.replaceable for layer in best.layers):
        for _ in track(range(ROUNDS), f"searching {budget}"):
            middle = (low + high) / 2
            try:
                tried, _ = plan_within(model, statistics or used, Macs(middle), method, target, seed=seed, cache=cache)
            except OutOfReach:
                low = middle
                continue
            alike = decided_alike(model, apply(model, tried, statistics), check)
            note(f"{middle:.2f} of the MACs: agreement {alike:.1f} %")
            if alike >= 100 - budget.value:
                best, high = tried, middle
            else:
                low = middle
    return replace(best, budget=budget, images=image_hashes(images)), statistics
