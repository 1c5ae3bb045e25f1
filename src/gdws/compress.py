"""Decide (`plan`) and do (`apply`). The plan is a record; applying it gives a new model and leaves the old one alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import gdws
from gdws import cost, decompose
from gdws.allocate import Floats, allocate
from gdws.attacks import PGD
from gdws.budgets import Beta, Budget, Drop, Macs, Params
from gdws.contract import Batches, check_weights, checked_logits, evaluating, full_precision, placement
from gdws.errors import GdwsError
from gdws.nn import FactoredConv2d, GDWSConv2d
from gdws.plans import NO_GAIN, LayerPlan, Plan
from gdws.progress import note, track
from gdws.refit import refit
from gdws.sensitivity import attacked, sensitivity
from gdws.statistics import Statistics, calibrate, gather, image_hashes
from gdws.structures import STRUCTURES, Structure, named
from gdws.surgery import Site, survey
from gdws.surgery import replace as replace_modules

METHODS = ("calibrated", "paper", "uniform")
ATTACK = PGD(steps=7)
"""The attack on the calibration images: what adversarial training uses."""

HELD_BACK = 0.2
"""Share of the calibration images on which `Drop` measures agreement."""

GDWS = STRUCTURES["gdws"]


@dataclass(frozen=True)
class Choice:
    """What becomes of a layer that is replaced: `size` and `kept` as its structure means them, the predicted loss, and why."""

    structure: Structure
    size: int
    kept: tuple[int, ...]
    loss: float
    why: str = ""


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
    cache       a folder for the statistics of the calibrated method: the next budget then takes seconds.
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
            ),
        )
    images, labels = (calibration.images, None) if isinstance(calibration, Statistics) else gather(calibration)
    device, dtype = placement(model)
    example = images[:1].to(device, dtype)
    sites = survey(model, example, exclude=exclude, keep_first=keep_first, keep_1x1=keep_1x1)
    with evaluating(model), torch.no_grad():
        checked_logits(model, example, labels)
    candidates = [site for site in sites if site.reason is None]
    statistics = calibration if isinstance(calibration, Statistics) else None
    batches = [(images, labels)] if labels is not None else [images]

    if method == "calibrated":
        if statistics is None:
            statistics = calibrate(model, batches, candidates, named(structures), attack=attack, seed=seed, cache=cache)
        choices = _calibrated(candidates, named(structures), statistics, budget)
    elif method == "paper":
        alphas = (
            {name: layer.alpha for name, layer in statistics.layers.items()}
            if statistics is not None
            else sensitivity(model, _split(batches), attack=attack, seed=seed)
        )
        choices = _lego_with_one_beta(candidates, alphas, budget)
    else:
        choices = _uniform(candidates, budget)

    used = statistics.attack if statistics is not None else attack
    return Plan(
        method,
        budget,
        tuple(_layer_plan(site, choices.get(site.name)) for site in sites),
        seed,
        None if used is None or method == "uniform" else asdict(used),
        {"gdws": gdws.__version__, "torch": str(torch.__version__)},
        () if method == "uniform" else image_hashes(images),
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
    if plan.method == "calibrated":
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
        for part in images.split(250):
            x = part.to(device, dtype)
            same += int((model(x).argmax(1) == other(x).argmax(1)).sum())
    return 100 * same / len(images)


def _calibrated(
    sites: list[Site], structures: Sequence[Structure], statistics: Statistics, budget: Budget
) -> dict[str, Choice]:
    """One exact allocation over all layers: each takes a structure and a size from its curve, or stays dense."""
    price_of, dense = _pricing(budget, "calibrated")
    options, meanings = [], []
    for site in sites:
        curves = statistics.curves[site.name]
        costs, losses = [np.array([float(dense(site))])], [np.zeros(1)]
        meaning: list[tuple[Structure, int] | None] = [None]  # dense
        for structure in structures:
            if structure.name not in curves:
                if structure.fits(site.conv):
                    raise GdwsError(f"these statistics have no curves for {structure.name}: expected {', '.join(curves)} only")
                continue
            per_group = torch.stack([curve.losses for curve in curves[structure.name]]).sum(0).numpy()
            price = price_of(structure, site, 1)
            sizes = np.array([size for size in structure.sizes(curves[structure.name][0]) if size * price < dense(site)], int)
            costs.append(sizes * float(price))
            losses.append(per_group[sizes])
            meaning += [(structure, int(size)) for size in sizes]
        options.append((np.concatenate(costs), np.concatenate(losses)))  # nats
        meanings.append(meaning)
    weighted = [
        (costs, losses * np.array([1.0 if option is None else option[0].brittleness for option in meaning]))
        for (costs, losses), meaning in zip(options, meanings, strict=True)
    ]
    picks = allocate(weighted, budget.value * sum(dense(site) for site in sites))
    choices: dict[str, Choice] = {}
    for site, pick, meaning, option, weigh in zip(sites, picks, meanings, options, weighted, strict=True):
        chosen = meaning[pick]
        if chosen is not None:
            structure, size = chosen
            kept = structure.kept(statistics.curves[site.name][structure.name], size)
            why = _comparison(structure, meaning, *weigh, pick)
            choices[site.name] = Choice(structure, size, kept, float(option[1][pick]), why)
    return choices


def _comparison(
    chosen: Structure, meaning: list[tuple[Structure, int] | None], costs: Floats, losses: Floats, pick: int
) -> str:
    """What the other structures would lose at no more cost, brittleness included, in multiples of the chosen one's loss."""
    best: dict[str, float] = {}
    for option, cost_, loss in zip(meaning, costs, losses, strict=True):
        if option is not None and option[0] is not chosen and cost_ <= costs[pick]:
            best[option[0].name] = min(float(loss), best.get(option[0].name, np.inf))
    if not best or not losses[pick] > 0:
        return ""
    return ", ".join(f"{name} {loss / losses[pick]:.1f}x" for name, loss in sorted(best.items(), key=lambda item: item[1]))


def _gdws(conv: nn.Conv2d, g: Tensor, loss: float) -> Choice:
    return Choice(GDWS, int(g.view(conv.groups, -1).sum(1).max()), tuple(g.tolist()), loss)


def _lego_with_one_beta(sites: list[Site], alphas: dict[str, Tensor], budget: Budget) -> dict[str, Choice]:
    """Algorithm 3. For a Macs or Params budget the least beta that meets it, found exactly: among the layers' own errors."""
    spectra = {site.name: decompose.spectrum_of(site.conv.weight, alphas.get(site.name), site.conv.groups) for site in sites}

    def choose(beta: float) -> dict[str, Choice]:
        found: dict[str, Choice] = {}
        for site in sites:
            spectrum = spectra[site.name]
            kept = spectrum.kernels_for(beta)
            if GDWS.parameters(site.conv, kept) < cost.dense_parameters(site):
                found[site.name] = _gdws(site.conv, spectrum.distribution(kept), float(spectrum.errors[kept]))
        return found

    if isinstance(budget, Beta):
        return choose(budget.value)
    price_of, dense = _pricing(budget, "paper")
    limit = budget.value * sum(dense(site) for site in sites)

    def price(beta: float) -> int:
        found = choose(beta)
        return sum(
            dense(site) if (choice := found.get(site.name)) is None else price_of(GDWS, site, choice.size) for site in sites
        )

    betas = torch.cat([spectrum.errors.cpu() for spectrum in spectra.values()]).unique()
    low, high = 0, len(betas) - 1  # the largest error drops everything, so the answer is among them
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if price(float(betas[middle])) <= limit else (middle + 1, high)
    return choose(float(betas[low]))


def _uniform(sites: list[Site], budget: Budget) -> dict[str, Choice]:
    """GDWS-U: in every layer the kernels that the same fraction of its cost buys, unweighted."""
    price_of, dense = _pricing(budget, "uniform")
    choices: dict[str, Choice] = {}
    for site in sites:
        kernels = int(budget.value * dense(site) / price_of(GDWS, site, 1))
        spectrum = decompose.spectrum_of(site.conv.weight, None, site.conv.groups)
        kept = min(kernels, spectrum.order.shape[1])
        choices[site.name] = _gdws(site.conv, spectrum.distribution(kept), float(spectrum.errors[kept]))
    return choices


def _pricing(budget: Budget, method: str) -> tuple[Callable[[Structure, Site, int], int], Callable[[Site], int]]:
    """What a size of a structure costs, and what the dense layer does."""
    if isinstance(budget, Macs):
        return lambda structure, site, size: structure.macs(site, size), cost.dense_macs
    if isinstance(budget, Params):
        return lambda structure, site, size: structure.parameters(site.conv, size), cost.dense_parameters
    raise GdwsError(f"method {method!r} got the budget {budget}: expected Macs, Params or Drop")


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
    device, dtype = placement(model)
    held, truth = images[fit:], None if labels is None else labels[fit:]
    with full_precision(), evaluating(model):
        generator = torch.Generator().manual_seed(1)
        adversarial = attacked(model, held.to(device, dtype), truth, attack, generator).cpu()
    check = torch.cat([held, adversarial.to(held.dtype)])
    low, high = 0.02, 1.0
    best = plan_for([used], Macs(high))
    data: Batches | Statistics = best.calibration if best.calibration is not None else [used]
    for _ in track(range(7), f"searching {budget}"):
        middle = (low + high) / 2
        tried = plan_for(data, Macs(middle))
        kept = agreement(model, apply(model, tried), check)
        note(f"{middle:.2f} of the MACs: agreement {kept:.1f} %")
        if kept >= 100 - budget.value:
            best, high = tried, middle
        else:
            low = middle
    return replace(best, budget=budget, images=image_hashes(images))


def _not_held_back(images: Tensor) -> int:
    return len(images) - max(1, round(HELD_BACK * len(images)))


def _layer_plan(site: Site, choice: Choice | None) -> LayerPlan:
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
    )


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
    attack = None if plan.attack is None else PGD(**plan.attack)  # type: ignore[arg-type]
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
