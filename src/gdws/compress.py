"""Decide (`plan`) and do (`apply`). The plan is a record; applying it gives a new model and leaves the old one alone."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import gdws
from gdws import cost, decompose
from gdws.attacks import PGD
from gdws.budgets import Beta, Budget, Drop, Latency, Macs, Params, Speedup
from gdws.choices import Choice, calibrated, lego_with_one_beta, uniform
from gdws.contract import Batches, check_weights, checked_logits, evaluating, full_precision, placement
from gdws.errors import GdwsError, OutOfReach
from gdws.latency import Latencies, Target, Timetable, check_device, suited, timetable
from gdws.nn import FactoredConv2d, GDWSConv2d
from gdws.plans import NO_GAIN, LayerPlan, Plan
from gdws.progress import note, track
from gdws.refit import refit
from gdws.sensitivity import attacked, sensitivity
from gdws.statistics import Statistics, calibrate, gather, image_hashes
from gdws.structures import STRUCTURES, named
from gdws.surgery import Site, survey
from gdws.surgery import replace as replace_modules
from gdws.timed import nearest, rounds

METHODS = ("calibrated", "paper", "uniform")
ATTACK = PGD(steps=7)
"""The attack on the calibration images: what adversarial training uses."""

HELD_BACK = 0.2
"""Share of the calibration images on which `Drop` measures agreement."""


def plan(
    model: nn.Module,
    calibration: Batches | Statistics,
    budget: Budget,
    method: str = "calibrated",
    *,
    structures: str | Sequence[str] = "auto",
    attack: PGD | None = ATTACK,
    exclude: Sequence[str] = (),
    keep_first: bool = True,
    keep_1x1: bool = True,
    seed: int = 0,
    cache: Path | None = None,
    target: Target | Timetable | None = None,
) -> Plan:
    """Choose what becomes of every convolution under one budget.

    method      "calibrated": least predicted loss in the metric of the data, one exact allocation over all layers, refit
                when applied. "paper": Algorithm 3, LEGO with one beta for all layers (searched, for a Macs or Params budget)
                and alpha from equation (8). "uniform": GDWS-U, MEGO without weights, the same fraction in every layer.
    structures  what the calibrated method may choose from, layer by layer: "gdws", "separable", ... or "auto" for the best of
                all (gdws.structures). The other methods know GDWS only.
    calibration images in [0, 1], or (images, labels), in batches; or the statistics of an earlier plan.
    attack      made on the calibration images first; None for a network that is not meant to be robust.
    exclude     shell patterns of convolutions to leave alone. The first and 1x1 convolutions are, unless told otherwise.
    cache       a folder for the statistics of the calibrated method and for measured times: the next budget then takes seconds.
    target      where it will run (gdws.Target). For Latency and Speedup, by default the CPU's best engine, float32, batch 1.
                For Macs, Params and Drop only Target("cuda", "float16"), a plan for tensor cores: plain convolutions in ranks
                of 16, 32, 64 and multiples of 64; below 64 only horizontal pairs, where they are among the structures.
    """
    if method not in METHODS:
        raise GdwsError(f"method is {method!r}: expected one of {', '.join(METHODS)}")
    check_weights(model)
    if isinstance(budget, Drop):
        return _smallest_within(
            budget,
            model,
            calibration,
            attack,
            lambda data, part: plan(
                model,
                data,
                part,
                method,
                structures=structures,
                attack=attack,
                exclude=exclude,
                keep_first=keep_first,
                keep_1x1=keep_1x1,
                seed=seed,
                cache=cache,
                target=target,
            ),
        )
    timed = isinstance(budget, Latency | Speedup)
    if timed and method != "calibrated":
        raise GdwsError(f"method {method!r} got the budget {budget}: expected the method 'calibrated' for a budget of time")
    kinds = named(structures)
    suitable, tensor_cores = kinds, False
    if target is not None and method != "calibrated":
        raise GdwsError(f"method {method!r} got a target: expected the method 'calibrated' with it")
    if target is not None and timed:
        check_device(model, target.target if isinstance(target, Timetable) else target)
    elif isinstance(target, Timetable):
        raise GdwsError(f"the budget {budget} got a timetable: expected Latency or Speedup with it")
    elif target is not None:
        suitable, tensor_cores = suited(kinds, target), True
    images, labels = (calibration.images, None) if isinstance(calibration, Statistics) else gather(calibration)
    device, dtype = placement(model)
    example = images[:1].to(device, dtype)
    sites = survey(model, example, exclude=exclude, keep_first=keep_first, keep_1x1=keep_1x1)
    with evaluating(model), torch.no_grad():
        checked_logits(model, example, labels)
    candidates = [site for site in sites if site.reason is None]
    statistics = calibration if isinstance(calibration, Statistics) else None
    batches = [(images, labels)] if labels is not None else [images]

    measured, table = None, None
    if not candidates:
        _check_dense_is_enough(budget, method, sites)
        choices: dict[str, Choice] = {}
    elif method == "calibrated":
        if statistics is None:
            statistics = calibrate(model, batches, candidates, kinds, attack=attack, seed=seed, cache=cache)
        if isinstance(budget, Latency | Speedup):
            table = (
                target
                if isinstance(target, Timetable)
                else timetable(model, candidates, kinds, statistics, target or Target(), cache)
            )
            choices, measured = nearest(rounds(model, candidates, kinds, statistics, budget, table), budget)
        else:
            choices = calibrated(candidates, suitable, statistics, budget, tensor_cores)
    elif method == "paper":
        alphas = (
            {name: layer.alpha for name, layer in statistics.layers.items()}
            if statistics is not None
            else sensitivity(model, _split(batches), attack=attack, seed=seed)
        )
        choices = lego_with_one_beta(candidates, alphas, budget)
    else:
        choices = uniform(candidates, budget)

    latencies = None if table is None or measured is None else table.engines[measured.engine]
    used = statistics.attack if statistics is not None else attack
    return Plan(
        method,
        budget,
        tuple(_layer_plan(site, choices.get(site.name), latencies) for site in sites),
        seed,
        None if used is None or method == "uniform" else asdict(used),
        {"gdws": gdws.__version__, "torch": str(torch.__version__)},
        () if method == "uniform" else image_hashes(images),
        measured,
        tensor_cores,
        statistics if method == "calibrated" else None,
    )


def apply(model: nn.Module, plan: Plan, calibration: Batches | Statistics | None = None) -> nn.Module:
    """A copy of the model with the plan's layers in their places, in eval mode; `model` is untouched.

    A calibrated plan that was read from JSON has no statistics with it: give its calibration images again.
    """
    check_weights(model)
    for layer in plan.layers:
        _check_fits(model, layer)
    replaced = [layer for layer in plan.layers if layer.structure != "dense"]
    made: dict[str, FactoredConv2d] = {}
    if plan.method == "calibrated" and replaced:
        statistics = _statistics_for(model, plan, calibration)
        for layer in track(replaced, "layers"):
            found = statistics.curves[layer.name][layer.structure], statistics.layers[layer.name].metrics()
            made[layer.name] = STRUCTURES[layer.structure].layer(_conv(model, layer.name), layer.kept, *found)
        refit(model, made, [layer.positions for layer in replaced], statistics.images, statistics.attacked)
    else:
        for layer in replaced:
            conv = _conv(model, layer.name)
            factors = decompose.truncate(conv.weight, torch.tensor(layer.g, device=conv.weight.device), conv.groups)
            made[layer.name] = GDWSConv2d.from_factors(factors, conv)
    compressed = copy.deepcopy(model).eval()
    replace_modules(compressed, {compressed.get_submodule(name): layer.eval() for name, layer in made.items()})
    compressed.gdws_plan = plan  # type: ignore[assignment]
    return compressed


def agreement(model: nn.Module, other: nn.Module, images: Tensor) -> float:
    """Per cent of the images that both models decide alike."""
    device, dtype = placement(model)
    same = 0
    with evaluating(model), evaluating(other), full_precision(), torch.no_grad():
        for part in images.split(50):  # maps of larger batches get their memory from the system anew each time
            x = part.to(device, dtype)
            same += int((model(x).argmax(1) == other(x).argmax(1)).sum())
    return 100 * same / len(images)


def agreements(
    model: nn.Module, other: nn.Module, images: Tensor, labels: Tensor | None, attack: PGD | None
) -> dict[str, float]:
    """What a compression cost, on images that it has not seen: `agreement` clean and, if there is an attack, attacked.

    What is attacked is `model`, against the labels, or its own decisions without labels.
    """
    sets = {"clean": images}
    if attack is not None:
        sets["attacked"] = _attacked(model, images, labels, attack)
    return {kind: agreement(model, other, part) for kind, part in sets.items()}


def _attacked(model: nn.Module, images: Tensor, labels: Tensor | None, attack: PGD | None) -> Tensor:
    """Held-back images, attacked in float32 from starts that the calibration has not used."""
    device, dtype = placement(model)
    with full_precision(), evaluating(model):
        return attacked(model, images.to(device, dtype), labels, attack, torch.Generator().manual_seed(1)).cpu()


def _smallest_within(
    budget: Drop,
    model: nn.Module,
    calibration: Batches | Statistics,
    attack: PGD | None,
    plan_for: Callable[[Batches | Statistics, Budget], Plan],
) -> Plan:
    """Bisect the fraction of MACs for the smallest network that agrees with the original on held-back images.

    Agreement is taken on the held-back images clean and attacked together. The plan's statistics come from the others.
    """
    if isinstance(calibration, Statistics):
        raise GdwsError(f"{budget} got collected statistics: expected images, some of which it can hold back")
    images, labels = gather(calibration)
    fit = _not_held_back(images)
    if fit < 1:
        raise GdwsError(f"{budget} got {len(images)} calibration image: expected at least 2, to hold some back")
    used = (images[:fit], labels[:fit]) if labels is not None else images[:fit]
    held, truth = images[fit:], None if labels is None else labels[fit:]
    check = torch.cat([held, _attacked(model, held, truth, attack).to(held.dtype)])
    low, high = 0.02, 1.0
    best = plan_for([used], Macs(high))
    data: Batches | Statistics = best.calibration if best.calibration is not None else [used]
    if not any(layer.replaceable for layer in best.layers):
        return replace(best, budget=budget, images=image_hashes(images))
    for _ in track(range(7), f"searching {budget}"):
        middle = (low + high) / 2
        try:
            tried = plan_for(data, Macs(middle))
        except OutOfReach:
            low = middle
            continue
        kept = agreement(model, apply(model, tried), check)
        note(f"{middle:.2f} of the MACs: agreement {kept:.1f} %")
        if kept >= 100 - budget.value:
            best, high = tried, middle
        else:
            low = middle
    return replace(best, budget=budget, images=image_hashes(images))


def _not_held_back(images: Tensor) -> int:
    return len(images) - max(1, round(HELD_BACK * len(images)))


def _check_dense_is_enough(budget: Budget, method: str, sites: list[Site]) -> None:
    """Of a network in which no convolution may be replaced, refuse whatever asks it to become smaller or faster."""
    if (method == "paper" and isinstance(budget, Beta)) or (isinstance(budget, Macs | Params) and budget.value == 1):
        return
    counts = Counter(site.reason for site in sites)
    kept = ", ".join(f"{reason}: {count}" for reason, count in counts.most_common())
    raise GdwsError(
        f"{budget} is out of reach, none of the {len(sites)} convolutions may be replaced ({kept}): expected a network with "
        "dense convolutions of several taps after the first, or keep_1x1=False"
    )


def _layer_plan(site: Site, choice: Choice | None, latencies: Latencies | None) -> LayerPlan:
    conv = site.conv
    shape = (conv.weight.shape[0], conv.weight.shape[1], conv.weight.shape[2], conv.weight.shape[3])
    dense_macs, dense_parameters = cost.dense_macs(site), cost.dense_parameters(site)
    kept: tuple[int, ...] = ()
    if choice is None:
        structure, reason, loss = "dense", site.reason or NO_GAIN, 0.0
        macs, parameters = dense_macs, dense_parameters
    else:
        structure, reason, kept, loss = choice.structure.name, choice.why, choice.kept, choice.loss
        macs, parameters = choice.structure.macs(site, choice.size), choice.structure.parameters(conv, choice.size)
    return LayerPlan(
        site.name,
        structure,
        reason,
        shape,
        conv.groups,
        site.positions,
        kept,
        loss,
        macs,
        dense_macs,
        parameters,
        dense_parameters,
        *_layer_seconds(site, choice, latencies),
    )


def _layer_seconds(site: Site, choice: Choice | None, latencies: Latencies | None) -> tuple[float | None, float | None]:
    if latencies is None or site.reason is not None:
        return None, None
    dense = latencies.dense(site)
    return dense if choice is None else latencies.of(choice.structure, site, choice.size), dense


def _statistics_for(model: nn.Module, plan: Plan, calibration: Batches | Statistics | None) -> Statistics:
    if isinstance(calibration, Statistics):
        return calibration
    if calibration is None:
        if plan.calibration is None:
            raise GdwsError("this calibrated plan came without its statistics: give apply its calibration images again")
        return plan.calibration
    images, labels = gather(calibration)
    if isinstance(plan.budget, Drop):
        fit = _not_held_back(images)
        images, labels = images[:fit], None if labels is None else labels[:fit]
    device, dtype = placement(model)
    names = {layer.name for layer in plan.layers if layer.replaceable}
    sites = [
        replace(site, reason=None)
        for site in survey(model, images[:1].to(device, dtype), keep_first=False, keep_1x1=False)
        if site.name in names
    ]
    attack = None if plan.attack is None else PGD(**plan.attack)
    batches = [(images, labels)] if labels is not None else [images]
    used = dict.fromkeys(layer.structure for layer in plan.layers if layer.structure != "dense")
    return calibrate(model, batches, sites, [STRUCTURES[name] for name in used], attack=attack, seed=plan.seed)


def _check_fits(model: nn.Module, layer: LayerPlan) -> None:
    try:
        conv = _conv(model, layer.name)
    except AttributeError:
        raise GdwsError(f"the plan names a layer {layer.name!r}: expected one of the model's convolutions") from None
    if tuple(conv.weight.shape) != layer.shape or conv.groups != layer.groups:
        raise GdwsError(
            f"the plan's layer {layer.name} has shape {layer.shape}, groups {layer.groups}: "
            f"expected the model's {tuple(conv.weight.shape)}, groups {conv.groups}"
        )
    if layer.structure not in ("dense", *STRUCTURES):
        expected = ", ".join(("dense", *STRUCTURES))
        raise GdwsError(f"the plan's layer {layer.name} has structure {layer.structure!r}: expected one of {expected}")


def _conv(model: nn.Module, name: str) -> nn.Conv2d:
    conv = model.get_submodule(name)
    if not isinstance(conv, nn.Conv2d):
        raise GdwsError(f"{name} is a {type(conv).__name__}: expected a Conv2d (is the model compressed already?)")
    return conv


def _split(batches: Sequence[tuple[Tensor, Tensor] | Tensor], size: int = 100) -> Batches:
    for batch in batches:
        if isinstance(batch, Tensor):
            yield from batch.split(size)
        else:
            yield from zip(batch[0].split(size), batch[1].split(size), strict=True)
