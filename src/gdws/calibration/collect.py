"""Collect the statistics in one pass over the calibration images.

Attack the images, run them forward, send one random cotangent back for the metric of the calibrated method and one for the
paper's alpha (gdws.calibration.hooks). Beside the statistics themselves, the activations of one batch are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from gdws.attacks.pgd import PGD
from gdws.calibration.batch_size import samples_at_once
from gdws.calibration.cache import read_statistics, statistics_key, usable_cache, write_statistics
from gdws.calibration.hooks import Use, backpropagate, check_scales, record_uses
from gdws.calibration.method import AUTO, Calibrated, Method
from gdws.calibration.robustness import settle_attack
from gdws.calibration.sensitivity import attacked
from gdws.calibration.statistics import LayerStatistics, Statistics
from gdws.calibration.tiles import cut_tiles, cut_to_one_size
from gdws.calibration.trials import Trials, build_trials, measure_corrections
from gdws.core.checks import (
    ASKED,
    AnyBatches,
    check_differentiable,
    check_repeatable,
    check_seed,
    check_weights,
    checked_logits,
    classes,
    unpack_inputs,
)
from gdws.core.errors import GdwsError, first_line
from gdws.core.execution import LARGEST_TEMPORARY, evaluating, full_precision, placement, private_copy
from gdws.core.inputs import Inputs, concatenate, map_tensors, place, with_gradients
from gdws.core.progress import track
from gdws.core.sites import Site, find_convolutions, patches
from gdws.core.unwrap import unwrap
from gdws.objectives import Classes, Objective
from gdws.objectives.fitting import find_objective
from gdws.structures import select_structures
from gdws.structures.base import Curve, Structure
from gdws.structures.metric import add_moment, mirror

DEFAULT = Calibrated()
MOST_PIXELS = 2**17
"""Output pixels of all samples together that a layer's moments are summed over."""
Kind = TypeVar("Kind", bound=Method)


def calibrate(
    model: nn.Module,
    images: AnyBatches,
    method: Calibrated = DEFAULT,
    *,
    seed: int = 0,
    cache: Path | None = None,
) -> Statistics:
    """Collect what images say about a network: the first step of a compression, good for any budget.

    model   a network. It is left as it was found.
    images  batches of images, or of (images, labels) as a DataLoader gives them; or of whatever else the network is called with
            (gdws.compress). Labels tell an attack what to aim at.
    method  which convolutions may be replaced, by which structures, what must be kept, and how the images are attacked first.
    seed    of the attack's starts and of the random cotangents.
    cache   a folder: what was collected before for the same network, images and method is read from there.

    Pictures of more than 128 x 128 pixels are cut into tiles for a network that takes any size and is not a classifier.

    Returns Statistics, for gdws.plan and gdws.apply. Raises GdwsError when there are no images, when those of a classifier that
    is attacked are not in [0, 1], when the model's outputs do not fit the objective, or when the method has an unknown
    structure or a pattern that matches nothing.

    The example takes one structure and leaves most layers alone, to be quick.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> statistics = gdws.calibrate(model, images, gdws.Calibrated(structures="vertical", exclude=["layer[23].*"]))
    >>> gdws.plan(model, statistics, gdws.Macs(0.5)).macs <= 0.5
    True
    """
    check_seed(seed)
    model = private_copy(unwrap(model))
    check_weights(model)
    samples, targets = gather_inputs(images)
    samples, targets, method = settle(model, samples, targets, method)
    sites = replaceable(find(model, place(samples[:1], *placement(model)), method))
    return collect_statistics(model, samples, targets, sites, method, seed=seed, cache=cache)


def settle(
    model: nn.Module, samples: Inputs, targets: Tensor | None, method: Kind, *, is_collected: bool = True
) -> tuple[Inputs, Tensor | None, Kind]:
    """What a method leaves to a look at the network, decided. Refuses networks that nothing could be measured of.

    is_collected  whether statistics will be: the attack is then decided, where it is left open, and gradients are asked for.

    Returns the samples (tiles in the place of large pictures), labels where an attack may use them, and the method.
    """
    device, dtype = placement(model)
    example, first = (place(samples[:count], device, dtype) for count in (ASKED, 1))
    objective = find_objective(method.objective, model, samples, targets)
    with evaluating(model), torch.no_grad():
        check_repeatable(lambda inputs: objective.answers(model, inputs), example)
        if is_collected:
            check_differentiable(lambda inputs: objective.answers(model, inputs), first)
    method = replace(method, objective=objective)
    if is_collected or method.attack != AUTO:
        method = settle_attack(model, samples, method)
    if not isinstance(objective, Classes):
        return cut_tiles(model, samples), None, method
    labels = None if targets is None else classes(targets, len(samples))
    if labels is not None and isinstance(first, Tensor):
        with evaluating(model), torch.no_grad():
            checked_logits(model, first, labels)
    return samples, labels, method


def find(model: nn.Module, example: Inputs, method: Method) -> list[Site]:
    """All convolutions of a model, with the reason why one stays dense under this method."""
    return find_convolutions(model, example, exclude=method.exclude, keep_first=method.keep_first, keep_1x1=method.keep_1x1)


def replaceable(sites: Sequence[Site]) -> list[Site]:
    return [site for site in sites if site.reason is None]


def collect_statistics(
    model: nn.Module,
    images: Inputs,
    labels: Tensor | None,
    sites: Sequence[Site],
    method: Calibrated,
    *,
    seed: int,
    cache: Path | None = None,
) -> Statistics:
    """Statistics of these convolutions, and their curves for the method's structures."""
    structures = select_structures(method.structures)
    if not sites:
        return Statistics(images=images, attacked=images, layers={}, curves={}, method=method, seed=seed)
    file, folder = None, usable_cache(cache)
    if folder is not None:
        key = statistics_key(model, images, labels, [site.name for site in sites], structures, method, seed)
        file = folder / f"statistics-{key}.safetensors"
        stored = read_statistics(file, images, sites, structures, method, seed, placement(model)[0])
        if stored is not None:
            return stored
    with full_precision(), evaluating(model):
        objective = method.settled_objective.settled(_outputs(model, images, method.settled_objective, sites))
        layers, adversarial = _collect(model, images, labels, sites, method.settled_attack, seed, objective)
        curves = _curves(model, adversarial, sites, structures, layers, seed, objective)
    statistics = Statistics(
        images=images,
        attacked=adversarial,
        layers=layers,
        curves=curves,
        method=replace(method, objective=objective),
        seed=seed,
    )
    if file is not None:
        write_statistics(file, statistics)
    return statistics


def gather_inputs(batches: AnyBatches) -> tuple[Inputs, Tensor | None]:
    """All samples of the batches and, if every batch has them, targets, on the CPU. Pictures of several sizes are cut to the
    part in the middle that all of them have."""
    pairs = [unpack_inputs(batch) for batch in batches]
    if not pairs:
        raise GdwsError("the calibration data is empty: expected at least one batch of images")
    targets = [target for _, target in pairs if target is not None]
    inputs = cut_to_one_size([map_tensors(part, lambda value: value.detach().cpu()) for part, _ in pairs])
    complete = len(targets) == len(pairs) and len({target.shape[1:] for target in targets}) == 1
    return concatenate(inputs), torch.cat([target.cpu() for target in targets]) if complete else None


def as_one_batch(samples: Inputs, targets: Tensor | None) -> AnyBatches:
    """The reverse of `gather_inputs`."""
    return [samples] if targets is None else [(samples, targets)]


def _curves(
    model: nn.Module,
    adversarial: Inputs,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    layers: dict[str, LayerStatistics],
    seed: int,
    objective: Objective,
) -> dict[str, dict[str, list[Curve]]]:
    """Losses in the metric, then corrected by trials on the attacked images."""
    curves: dict[str, dict[str, list[Curve]]] = {}
    tried: dict[str, dict[str, Trials]] = {}
    for site in track(sites, "curves"):
        if not all(bool(part.isfinite().all()) for part in (layers[site.name].moment, layers[site.name].gradient)):
            raise GdwsError(f"the activations or gradients of {site.name} overflow float32: expected smaller ones")
        weights = site.conv.weight.detach().double().view(site.conv.groups, -1, *site.conv.weight.shape[1:])
        metrics = layers[site.name].metrics()
        curves[site.name], tried[site.name] = {}, {}
        for structure in structures:
            if structure.fits(site.conv):
                try:
                    own = [structure.curve(weight, metric) for weight, metric in zip(weights, metrics, strict=True)]
                    tried[site.name][structure.name] = build_trials(site, structure, own, metrics)
                except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
                    raise GdwsError(
                        f"{site.name} cannot be made {structure.name} in float64 ({first_line(error)}): expected weights and "
                        "activations of scales nearer to 1, or the layer to be excluded"
                    ) from error
                curves[site.name][structure.name] = [curve.lasting() for curve in own]
    factors = measure_corrections(model, adversarial, sites, tried, curves, torch.Generator().manual_seed(seed), objective)
    return {
        name: {structure: [curve.scaled(factors[name][structure]) for curve in own] for structure, own in by_structure.items()}
        for name, by_structure in curves.items()
    }


def _outputs(model: nn.Module, images: Inputs, objective: Objective, sites: Sequence[Site]) -> list[list[Tensor]]:
    """What the network answers to the samples as they are, on the CPU."""
    device, dtype = placement(model)
    parts = images.split(min(50, samples_at_once(sites, 1)))
    with torch.no_grad():
        return [[value.float().cpu() for value in objective.answers(model, place(part, device, dtype))] for part in parts]


def _collect(
    model: nn.Module,
    images: Inputs,
    labels: Tensor | None,
    sites: Sequence[Site],
    attack: PGD | None,
    seed: int,
    objective: Objective,
) -> tuple[dict[str, LayerStatistics], Inputs]:
    device, dtype = placement(model)
    generator = torch.Generator().manual_seed(seed)
    convolutions = {site.name: site.conv for site in sites}
    shares = {site.name: min(1.0, MOST_PIXELS / (site.positions * len(images))) for site in sites}
    sums = {name: _zeros(conv) for name, conv in convolutions.items()}
    adversarial: list[Inputs] = []
    # Tensors that malloc still recycles: larger ones are new memory every time.
    batch_size = min(50, samples_at_once(sites, 3))
    chunks = range(0, len(images), batch_size)
    for start in track(chunks, "statistics", len(chunks)):
        part = slice(start, start + batch_size)
        x = place(images[part], device, dtype)
        if attack is not None:
            assert isinstance(x, Tensor)
            x = attacked(model, x, None if labels is None else labels[part], attack, generator)
        x = with_gradients(x)
        adversarial.append(map_tensors(x, lambda value: value.detach().cpu()))
        with record_uses(convolutions) as uses, torch.enable_grad():
            outputs = objective.answers(model, x)
            for _ in backpropagate(outputs, x, [objective.cotangents(outputs, generator)]):
                for name, calls in uses.items():
                    if start == 0:
                        check_scales(name, calls)
                    _add_moments(convolutions[name], calls, *sums[name], shares[name], generator)
    layers = {}
    for name in list(sums):
        upper, upper_gradient = sums.pop(name)
        moment, gradient = mirror(upper), mirror(upper_gradient)
        energy = gradient.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
        layers[name] = LayerStatistics(
            moment / energy.clamp_min(torch.finfo(energy.dtype).tiny),
            gradient / (2 * len(images) * shares[name]),
        )
    return layers, concatenate(adversarial)


def _zeros(conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Where moment and gradient of a convolution are summed up."""
    groups, inputs, outputs = conv.groups, conv.weight[0].numel(), conv.out_channels // conv.groups
    device = conv.weight.device
    return (
        torch.zeros(groups, inputs, inputs, device=device),
        torch.zeros(groups, outputs, outputs, device=device),
    )


def _add_moments(
    conv: nn.Conv2d, uses: list[Use], moment: Tensor, gradient: Tensor, share: float, generator: torch.Generator
) -> None:
    """Add the sums over samples and pixels of |g|^2 x x^T and g g^T, for each group, above their diagonals.

    share: of the pixels of each sample, drawn at random.
    """
    inputs, outputs = moment.shape[1], gradient.shape[1]
    for use in uses:
        if use.gradient is None:
            continue
        height, width = use.gradient.shape[2:]
        most = LARGEST_TEMPORARY // (conv.groups * inputs * width)  # rows of maps at a time
        together, band = max(1, most // height), max(1, min(most, height))
        for images, slopes in zip(use.input.split(together), use.gradient.split(together), strict=True):
            for top in range(0, height, band):
                bottom = min(top + band, height)
                g = slopes[:, :, top:bottom].reshape(len(slopes), conv.groups, outputs, -1)
                drawn = None
                if share < 1:
                    pixels = g.shape[3]
                    drawn = torch.randperm(pixels, generator=generator)[: max(1, round(share * pixels))].to(g.device)
                    g = g[..., drawn]
                x = patches(conv, images, (top, bottom), drawn)
                x, g = (part.float().permute(1, 2, 0, 3).flatten(2) for part in (x, g))
                add_moment(moment, x * g.norm(dim=1, keepdim=True))
                add_moment(gradient, g)
