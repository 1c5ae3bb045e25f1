"""Choose what becomes of every convolution under one budget. The plan that comes of it is a record; nothing is changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from gdws.calibration.collect import collect_statistics, find, gather_inputs, replaceable, settle
from gdws.calibration.method import AUTO, Calibrated, Method, Paper, Uniform
from gdws.calibration.sensitivity import sensitivity
from gdws.calibration.statistics import Statistics
from gdws.core.checks import ASKED, AnyBatches, Batches, check_repeatable, check_weights
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, placement
from gdws.core.hashing import sample_hashes
from gdws.core.inputs import place, repeat_first
from gdws.core.sites import Site, other_convolutions
from gdws.core.version import __version__
from gdws.objectives import Classes
from gdws.planning import cost
from gdws.planning.budgets import Beta, Budget, Latency, Speedup
from gdws.planning.latency.measure import measure_latencies
from gdws.planning.latency.search import closest_within, search_plans
from gdws.planning.latency.table import Latencies, LatencyTable
from gdws.planning.latency.target import Target, check_device, for_tensor_cores
from gdws.planning.latency.variant_files import VariantFiles
from gdws.planning.methods import Choice, choose_calibrated, choose_lego, choose_uniform
from gdws.planning.plan import NO_GAIN, LayerPlan, Measured, Plan, describe_inputs
from gdws.structures import Structure, select_structures


def plan_within(
    model: nn.Module,
    calibration: AnyBatches | Statistics,
    budget: Budget,
    method: Method | None,
    target: Target | LatencyTable | None,
    *,
    seed: int,
    cache: Path | None,
) -> tuple[Plan, Statistics | None]:
    """A plan for any budget but Drop, and the statistics that `apply` needs with it.

    Arguments as in gdws.plan; without a method that of the statistics, or the calibrated one.
    """
    check_weights(model)
    given = calibration if isinstance(calibration, Statistics) else None
    seed = seed if given is None else given.seed
    method = method or (given.method if given is not None else Calibrated())
    _check_combination(model, budget, method, target)
    device, dtype = placement(model)
    if isinstance(calibration, Statistics):
        images, labels, objective = calibration.images, None, calibration.objective
        method = replace(method, objective=objective)
        with evaluating(model), torch.no_grad():
            check_repeatable(lambda inputs: objective.answers(model, inputs), place(images[:ASKED], device, dtype))
    else:
        images, labels = gather_inputs(calibration)
        images, labels, method = settle(model, images, labels, method, is_collected=not isinstance(method, Uniform))
    if isinstance(method, Paper) and not (isinstance(method.objective, Classes) and isinstance(images, Tensor)):
        raise GdwsError(
            f"method 'paper' got the objective {method.settled_objective.name!r}: expected a classifier of images, whose "
            "decisions its sensitivity is about"
        )
    example = place(images[:1], device, dtype)
    sites = find(model, example, method)
    candidates = replaceable(sites)
    if not candidates:
        _check_dense_is_enough(budget, method, sites)
    choices: dict[str, Choice] = {}
    latencies, measured, attack = None, None, None
    statistics: Statistics | None = None
    if isinstance(method, Calibrated):
        statistics = given or collect_statistics(model, images, labels, candidates, method, seed=seed, cache=cache)
        _check_covers(statistics, candidates)
        attack = statistics.attack
        structures = select_structures(method.structures)
        if candidates and isinstance(budget, Latency | Speedup):
            choices, measured, latencies = _choose_by_time(model, candidates, structures, statistics, budget, target, cache)
        elif candidates:
            if isinstance(target, Target):
                structures = for_tensor_cores(structures, target)
            choices = choose_calibrated(candidates, structures, statistics, budget, tensor_cores=target is not None)
    elif isinstance(method, Paper):
        assert isinstance(images, Tensor)
        # Statistics say what their images were attacked with.
        method, statistics = (method if given is None else replace(method, attack=given.attack)), given
        attack = method.settled_attack
        if given is not None:
            _check_covers(given, candidates)
        if candidates:
            choices = choose_lego(candidates, _alphas(model, images, labels, given, method, seed), budget)
    else:
        attack = None if method.attack == AUTO else method.settled_attack
        if candidates:
            choices = choose_uniform(candidates, budget)
    plan = Plan(
        method=method.name,
        budget=budget,
        layers=tuple(_layer_plan(site, choices.get(site.name), latencies) for site in sites),
        seed=seed,
        attack=None if attack is None else asdict(attack),
        versions={"gdws": __version__, "torch": str(torch.__version__)},
        images=() if isinstance(method, Uniform) else sample_hashes(images),
        objective=method.settled_objective.name,
        inputs=describe_inputs(images),
        others=other_convolutions(model, example),
        measured=measured,
        tensor_cores=target is not None and not budget.is_measured,
    )
    return plan, statistics


def _choose_by_time(
    model: nn.Module,
    candidates: list[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    budget: Latency | Speedup,
    target: Target | LatencyTable | None,
    cache: Path | None,
) -> tuple[dict[str, Choice], Measured, Latencies]:
    """What is chosen under a latency budget, what it took, and the times of layers in the engine that it is for."""
    wanted = target.target if isinstance(target, LatencyTable) else target or Target()
    files = VariantFiles(model, repeat_first(statistics.images, wanted.batch))
    if isinstance(target, LatencyTable):
        table = target
    else:
        table = measure_latencies(model, candidates, structures, statistics, wanted, cache, files)
    choices, measured = closest_within(search_plans(model, candidates, structures, statistics, budget, table, files), budget)
    return choices, measured, table.engines[measured.engine]


def _check_combination(model: nn.Module, budget: Budget, method: Method, target: Target | LatencyTable | None) -> None:
    """Refuse a budget that the method does not know, and a target that has nothing to say."""
    calibrated = isinstance(method, Calibrated)
    if budget.is_measured and not calibrated:
        raise GdwsError(
            f"method {method.name!r} got the budget {budget}: expected the method 'calibrated' for a latency budget"
        )
    if target is None:
        return
    if not calibrated:
        raise GdwsError(f"method {method.name!r} got a target: expected the method 'calibrated' with it")
    if budget.is_measured:
        check_device(model, target.target if isinstance(target, LatencyTable) else target)
    elif isinstance(target, LatencyTable):
        raise GdwsError(f"the budget {budget} got a latency table: expected Latency or Speedup with it")
    else:
        assert isinstance(method, Calibrated)
        for_tensor_cores(select_structures(method.structures), target)


def _check_covers(statistics: Statistics, candidates: Sequence[Site]) -> None:
    """Refuse statistics that were collected for other layers."""

    def covers(site: Site) -> bool:
        layer, (outputs, *inputs), groups = statistics.layers.get(site.name), site.conv.weight.shape, site.conv.groups
        expected = [(groups, math.prod(inputs)), (groups, outputs // groups)]
        return layer is not None and [tuple(part.shape[:2]) for part in (layer.moment, layer.gradient)] == expected

    missing = [site.name for site in candidates if not covers(site)]
    if missing:
        raise GdwsError(
            f"the statistics lack {len(missing)} of {len(candidates)} convolutions, {missing[0]!r} first: expected those that "
            "gdws.calibrate collects of this model with this method"
        )


def _check_dense_is_enough(budget: Budget, method: Method, sites: Sequence[Site]) -> None:
    """Of a network in which no convolution may be replaced, refuse whatever asks it to become smaller or faster."""
    if (isinstance(method, Paper) and isinstance(budget, Beta)) or (budget.prices is not None and budget.value == 1):
        return
    counts = Counter(site.reason for site in sites)
    reasons = ", ".join(f"{reason}: {count}" for reason, count in counts.most_common())
    raise GdwsError(
        f"{budget} is out of reach, none of the {len(sites)} convolutions may be replaced ({reasons}): expected a network with "
        "dense convolutions of several taps after the first, or keep_1x1=False"
    )


def _alphas(
    model: nn.Module, images: Tensor, labels: Tensor | None, statistics: Statistics | None, method: Paper, seed: int
) -> dict[str, Tensor]:
    """Equation (8), on the attacked images of statistics where there are some."""
    attack = method.settled_attack
    if statistics is not None:
        assert isinstance(statistics.attacked, Tensor)
        images, attack = statistics.attacked, None
    size = 100
    batches: Batches = images.split(size)
    if labels is not None:
        batches = zip(images.split(size), labels.split(size), strict=True)
    return sensitivity(model, batches, exact=method.exact, attack=attack, seed=seed)


def _layer_plan(site: Site, choice: Choice | None, latencies: Latencies | None) -> LayerPlan:
    conv = site.conv
    dense_macs, dense_parameters = cost.dense_macs(site), cost.dense_parameters(site)
    seconds, dense_seconds = _layer_seconds(site, choice, latencies)
    return LayerPlan(
        name=site.name,
        structure="dense" if choice is None else choice.structure.name,
        reason=site.reason or NO_GAIN if choice is None else choice.why,
        shape=(conv.weight.shape[0], conv.weight.shape[1], conv.weight.shape[2], conv.weight.shape[3]),
        groups=conv.groups,
        positions=site.positions,
        ranks=() if choice is None else choice.ranks,
        loss=0.0 if choice is None else choice.loss,
        macs=dense_macs if choice is None else choice.structure.macs(site, choice.size),
        dense_macs=dense_macs,
        parameters=dense_parameters if choice is None else choice.structure.parameters(conv, choice.size),
        dense_parameters=dense_parameters,
        seconds=seconds,
        dense_seconds=dense_seconds,
        dense_nonzeros=int(conv.weight.count_nonzero()),
    )


def _layer_seconds(site: Site, choice: Choice | None, latencies: Latencies | None) -> tuple[float | None, float | None]:
    if latencies is None or site.reason is not None:
        return None, None
    dense = latencies.dense(site)
    return dense if choice is None else latencies.of(choice.structure, site, choice.size), dense
