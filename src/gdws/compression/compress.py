"""The one verb, and its second step: `compress` calibrates, plans and applies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from gdws.calibration.collect import as_one_batch, gather_inputs, settle
from gdws.calibration.method import Calibrated, Method, method_of
from gdws.calibration.statistics import Statistics
from gdws.compression.apply import apply
from gdws.compression.drop import smallest_within
from gdws.compression.fidelity import CheckImages, Metric, attack_of, build_check, hold_back
from gdws.compression.repair import repair
from gdws.core.checks import AnyBatches, check_seed
from gdws.core.errors import GdwsError
from gdws.core.execution import private_copy
from gdws.core.unwrap import unwrap
from gdws.objectives import Classes
from gdws.planning.budgets import Budget, Drop, check_budget
from gdws.planning.fidelity_records import HELD_BACK
from gdws.planning.latency.table import LatencyTable
from gdws.planning.latency.target import Target
from gdws.planning.plan import Plan, attach_plan
from gdws.planning.planner import plan_within

FEWEST_TO_HOLD_BACK = 5
"""Samples, of which one is held back."""


def compress(
    model: nn.Module,
    images: AnyBatches,
    budget: Budget,
    method: str | Method | None = None,
    *,
    target: Target | None = None,
    check: AnyBatches | CheckImages | Metric | None = None,
    seed: int = 0,
    cache: Path | None = None,
) -> nn.Module:
    """Make a faster copy of a pre-trained network, within a budget and without training; `model` is untouched.

    model   a classifier takes images (B, C, H, W) in [0, 1], normalizes inside, and returns logits (B, classes). Any other
            network takes what it likes and returns tensors, alone or in lists, tuples and dictionaries.
    images  a few hundred training images in batches, with labels or without: a DataLoader will do. Any other network gets its
            own inputs: batches of tensors, dictionaries of arguments, or gdws.Arguments; targets may come with them in a
            pair.
    budget  Speedup(x), Macs(fraction), Drop(points), ... (gdws.planning.budgets).
    method  "calibrated" (the default), "paper" or "uniform", or a record with their rare settings, such as
            gdws.Calibrated(structures="gdws", attack=None). What must be kept of the outputs goes by their shape, or by
            gdws.Calibrated(objective="values") (gdws.objectives).
    target  where it will run, for latency budgets: by default the best engine of this machine's CPU, one image at a time.
    check   held-out images, with labels or without: unlike its training images, which a network may have memorized, they tell
            what the compression cost, which the plan then records (gdws.plan_of(result).fidelity). Drop bounds it there. Or a
            measure of your own: a function that gives a number for a network, more being better. Without it, a fifth of the
            samples of a network other than a classifier is held back for this.
    seed    of everything random.
    cache   a folder for statistics and measured times: the next budget then takes seconds.

    Returns a copy in eval mode with layers of gdws.nn in the place of convolutions. gdws.plan_of(copy) says what became of each
    layer, gdws.report(model, copy, images) what was won and lost. In three steps: gdws.calibrate, gdws.plan, gdws.apply.

    Raises GdwsError when the model, the images or the method are not as above, when budget, method and target do not go
    together, when there are too few images for Drop, or when the budget is out of reach (gdws.core.errors.OutOfReach).

    The example takes one structure and leaves most layers alone, to be quick.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> method = gdws.Calibrated(structures="vertical", exclude=["layer[23].*"])
    >>> fast = gdws.compress(model, images, gdws.Macs(0.5), method)
    >>> gdws.plan_of(fast).macs <= 0.5
    True
    """
    check_budget(budget)
    model = private_copy(unwrap(model))
    given = None if check is None else CheckImages.gather(check)
    if given is None and not budget.is_searched:
        images, given, method = _some_held_back(model, images, method)
    made, statistics = _planned(model, images, budget, method, target, given, seed, cache)
    compressed = apply(model, made, statistics)
    settings = None if method is None else method_of(method)
    if isinstance(settings, Calibrated) and settings.repair is not None and statistics is not None:
        compressed = repair(model, compressed, [statistics.images], settings.repair, objective=statistics.objective, seed=seed)
    if given is not None and made.fidelity is None:
        objective = made.objective if statistics is None else statistics.objective
        fidelity = build_check(model, given, attack_of(made), objective).fidelity(compressed)
        attach_plan(compressed, replace(made, fidelity=fidelity))
    return compressed


def _some_held_back(
    model: nn.Module, images: AnyBatches, method: str | Method | None
) -> tuple[AnyBatches, CheckImages | None, str | Method | None]:
    """Samples to calibrate on, and of a network that is no classifier some to check on: it knows none of them by heart. The
    method then says what must be kept."""
    samples, targets = gather_inputs(images)
    batches = as_one_batch(samples, targets)
    settings = method_of(method or Calibrated.name)
    cut, _, settled = settle(model, samples, targets, settings, is_collected=False)
    if len(samples) < FEWEST_TO_HOLD_BACK:
        samples = cut
    if isinstance(settled.settled_objective, Classes) or len(samples) < FEWEST_TO_HOLD_BACK:
        return batches, None, method
    (samples, _), (held, _) = hold_back(samples, None)
    return [samples], CheckImages(held, None, HELD_BACK), replace(settings, objective=settled.settled_objective)


def plan(
    model: nn.Module,
    images: AnyBatches | Statistics,
    budget: Budget,
    method: str | Method | None = None,
    *,
    target: Target | LatencyTable | None = None,
    check: AnyBatches | CheckImages | Metric | None = None,
    seed: int = 0,
    cache: Path | None = None,
) -> Plan:
    """Choose what becomes of every convolution under one budget: the second step of a compression.

    model   as in gdws.compress.
    images  what gdws.calibrate gave; or images, of which the statistics are then collected. Drop needs images, of which it
            holds a fifth back, or `check`.
    budget  Speedup(x), Macs(fraction), Drop(points), ... (gdws.planning.budgets).
    method  as in gdws.compress; by default that of the statistics, or "calibrated".
    check   for Drop alone: others are compared with the original when they are applied.
    target  where the network will run, for Latency and Speedup; or times that were measured before. For Macs, Params and Drop
            only Target("cuda", "float16"), a plan for tensor cores: plain convolutions in ranks that fill their blocks.
    seed    of everything random; statistics bring their own.
    cache   a folder for statistics and measured times.

    Returns a Plan: print it, save it as JSON, edit it, give it to gdws.apply. Raises GdwsError when gdws.compress would, or
    when the statistics lack a convolution or a structure.

    >>> import gdws
    >>> plan = gdws.plan(gdws.models.embedded(), gdws.data.load("demo", "train").take(4), gdws.Macs(0.5), "uniform")
    >>> layer = next(layer for layer in plan.layers if layer.structure == "gdws")
    >>> layer.name, sum(layer.g), layer.macs < 0.5 * layer.dense_macs
    ('layer1.0.conv1', 112, True)
    """
    check_budget(budget)
    if check is not None and not budget.is_searched:
        raise GdwsError(f"a plan for {budget} got check=: expected it for Drop only, or with gdws.compress or gdws.report")
    given = None if check is None else CheckImages.gather(check)
    return _planned(private_copy(unwrap(model)), images, budget, method, target, given, seed, cache)[0]


def _planned(
    model: nn.Module,
    images: AnyBatches | Statistics,
    budget: Budget,
    method: str | Method | None,
    target: Target | LatencyTable | None,
    check: CheckImages | None,
    seed: int,
    cache: Path | None,
) -> tuple[Plan, Statistics | None]:
    check_seed(seed)
    settings = None if method is None else method_of(method)
    if check is not None:
        if not isinstance(images, Statistics):
            pictures, labels = gather_inputs(images)  # some can be gone through only once
            images = as_one_batch(pictures, labels)
        check.refuse(images.images if isinstance(images, Statistics) else pictures)
    if isinstance(budget, Drop):
        return smallest_within(model, images, budget, settings, target, check=check, seed=seed, cache=cache)
    return plan_within(model, images, budget, settings, target, seed=seed, cache=cache)
