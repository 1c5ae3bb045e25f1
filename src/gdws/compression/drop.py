"""The smallest network that loses no more than a number of points by the end of an interval: plan, apply, compare, bisect.

What is bounded is the upper end of a 95 % interval of what was lost (most_lost of gdws.planning.fidelity_records): of classes
points of accuracy where the images have labels, of agreement where not; and where the calibration images are attacked, also
the share of attacked images that the original withstands and the compressed network does not. Of other outputs it is the
distance to the original's in percent, and of a measure of the user's own its loss, which has no interval. Every network that is
tried gets an interval of its own. That several are tried is not corrected for: 95 % is not the confidence in the result as a
whole.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

from torch import nn

from gdws.calibration.collect import as_one_batch, gather_inputs, settle
from gdws.calibration.method import Calibrated, Method
from gdws.calibration.statistics import Statistics
from gdws.compression.apply import apply
from gdws.compression.fidelity import ATTACKED, SHARE_HELD_BACK, CheckImages, attack_of, build_check, hold_back
from gdws.core.checks import AnyBatches
from gdws.core.errors import GdwsError, OutOfReach
from gdws.core.hashing import sample_hashes
from gdws.core.progress import note, track
from gdws.objectives import Classes
from gdws.planning.budgets import Drop, Macs
from gdws.planning.fidelity_records import HELD_BACK
from gdws.planning.latency.table import LatencyTable
from gdws.planning.latency.target import Target
from gdws.planning.plan import Plan
from gdws.planning.planner import plan_within
from gdws.planning.significance import images_to_bound

SMALLEST, ROUNDS = 0.02, 7
"""The fraction of the MACs below which nothing is tried, and how often the interval is halved."""


def smallest_within(
    model: nn.Module,
    calibration: AnyBatches | Statistics,
    budget: Drop,
    method: Method | None,
    target: Target | LatencyTable | None,
    *,
    check: CheckImages | None,
    seed: int,
    cache: Path | None,
) -> tuple[Plan, Statistics | None]:
    """Bisect the fraction of MACs for the smallest network that is as good as the original, on the images of `check`.

    Without them a fifth of the calibration images is held back, and the plan's statistics come from the others.
    """
    used: AnyBatches | Statistics
    if isinstance(calibration, Statistics):
        if check is None:
            raise GdwsError(f"{budget} got collected statistics: expected images, some of which it can hold back, or check=")
        used, hashes, objective = calibration, calibration.sample_hashes(), calibration.objective
    else:
        images, labels = gather_inputs(calibration)
        hashes = sample_hashes(images)
        objective = settle(model, images, labels, method or Calibrated(), is_collected=False)[-1].settled_objective
        if check is None:
            (images, labels), held = hold_back(images, labels)
            check = CheckImages(*held, HELD_BACK)
        used = as_one_batch(images, labels)
    counted = isinstance(objective, Classes) and check.metric is None
    needed = images_to_bound(budget.value) if counted else 0
    _check_enough(budget, check, needed)
    low, high = SMALLEST, 1.0
    best, statistics = plan_within(model, used, Macs(high), method, target, seed=seed, cache=cache)
    # Where a few images may be lost, twice as many tell more than those that allow none.
    beside = build_check(model, check, attack_of(best), objective, max(ATTACKED, 2 * needed))
    fidelity = beside.fidelity(model)
    if fidelity.warning:
        warnings.warn(f"{budget}: {fidelity.warning}", stacklevel=4)
    if any(layer.replaceable for layer in best.layers):
        for _ in track(range(ROUNDS), f"searching {budget}"):
            middle = (low + high) / 2
            try:
                tried, _ = plan_within(model, statistics or used, Macs(middle), method, target, seed=seed, cache=cache)
            except OutOfReach:
                low = middle
                continue
            found = beside.fidelity(apply(model, tried, statistics))
            note(f"{middle:.2f} of the MACs: at most {found.most_lost:.2g} points lost")
            if found.most_lost <= budget.value:
                best, fidelity, high = tried, found, middle
            else:
                low = middle
    return replace(best, budget=budget, images=hashes, fidelity=fidelity), statistics


def _check_enough(budget: Drop, check: CheckImages, needed: int) -> None:
    """Refuse images that could not tell a loss within the budget from one beyond it, before the work."""
    count = 0 if check.images is None else len(check.images)
    if count < needed:
        more = f"{math.ceil(needed / SHARE_HELD_BACK)} calibration images or, better, " if check.source == HELD_BACK else ""
        raise GdwsError(
            f"{budget} has {count} {check.source} images to check on: expected at least {needed}, so that a larger loss would "
            f"show (give {more}as many held-out images with check=, --check)"
        )
