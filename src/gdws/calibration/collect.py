"""Collect the statistics in one pass over the calibration images.

Attack the images, run them forward, send one random cotangent back for the metric of the calibrated method and one for the
paper's alpha (gdws.calibration.hooks). Beside the statistics themselves, the activations of one batch are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from gdws.attacks.pgd import PGD
from gdws.calibration.cache import read_statistics, statistics_key, usable_cache, write_statistics
from gdws.calibration.hooks import Use, backpropagate, check_scales, record_uses, sampled_class
from gdws.calibration.method import Calibrated, Method
from gdws.calibration.robustness import settle_attack
from gdws.calibration.sensitivity import attacked
from gdws.calibration.softening import temperature_of
from gdws.calibration.statistics import LayerStatistics, Statistics
from gdws.calibration.trials import Trials, build_trials, measure_corrections
from gdws.core.checks import (
    ASKED,
    Batches,
    check_differentiable,
    check_repeatable,
    check_seed,
    check_weights,
    checked_logits,
    unpack_batch,
)
from gdws.core.execution import LARGEST_TEMPORARY, evaluating, full_precision, placement, private_copy
from gdws.core.progress import track
from gdws.core.sites import Site, find_convolutions, patches
from gdws.core.unwrap import unwrap
from gdws.errors import GdwsError, first_line
from gdws.structures import select_structures
from gdws.structures.base import Curve, Structure
from gdws.structures.metric import add_moment, mirror

DEFAULT = Calibrated()


def calibrate(
    model: nn.Module,
    images: Batches,
    method: Calibrated = DEFAULT,
    *,
    seed: int = 0,
    cache: Path | None = None,
) -> Statistics:
    """Collect what images say about a network: the first step of a compression, good for any budget.

    model   takes images (B, C, H, W) in [0, 1] and returns logits (B, classes). It is left as it was found.
    images  batches of images, or of (images, labels) as a DataLoader gives them. Labels tell the attack what to aim at.
    method  which convolutions may be replaced, by which structures, and how the images are attacked first.
    seed    of the attack's starts and of the random cotangents.
    cache   a folder: what was collected before for the same network, images and method is read from there.

    Returns Statistics, for gdws.plan and gdws.apply. Raises GdwsError when there are no images or they are not in [0, 1], when
    the model does not return finite logits, or when the method has an unknown structure or a pattern that matches nothing.

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
    pictures, labels = gather_images(images)
    example = pictures[:ASKED].to(*placement(model))
    with evaluating(model), torch.no_grad():
        check_repeatable(model, example, labels)
        check_differentiable(model, example[:1])
    method = settle_attack(model, pictures, method)
    return collect_statistics(
        model, pictures, labels, replaceable(find(model, example, method)), method, seed=seed, cache=cache
    )


def find(model: nn.Module, example: Tensor, method: Method) -> list[Site]:
    """All convolutions of a model, with the reason why one stays dense under this method."""
    return find_convolutions(model, example, exclude=method.exclude, keep_first=method.keep_first, keep_1x1=method.keep_1x1)


def replaceable(sites: Sequence[Site]) -> list[Site]:
    return [site for site in sites if site.reason is None]


def collect_statistics(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
    sites: Sequence[Site],
    method: Calibrated,
    *,
    seed: int,
    cache: Path | None = None,
) -> Statistics:
    """Statistics of these convolutions, and their curves for the method's structures."""
    structures, attack = select_structures(method.structures), method.settled_attack
    if not sites:
        return Statistics(images=images, attacked=images, layers={}, curves={}, method=method, seed=seed)
    file, folder = None, usable_cache(cache)
    if folder is not None:
        key = statistics_key(model, images, labels, [site.name for site in sites], structures, attack, seed)
        file = folder / f"statistics-{key}.safetensors"
        stored = read_statistics(file, images, sites, structures, method, seed, placement(model)[0])
        if stored is not None:
            return stored
    with full_precision(), evaluating(model):
        temperature = temperature_of(_logits(model, images))
        layers, adversarial = _collect(model, images, labels, sites, attack, seed, temperature)
        curves = _curves(model, adversarial, sites, structures, layers, seed, temperature)
    statistics = Statistics(
        images=images,
        attacked=adversarial,
        layers=layers,
        curves=curves,
        method=method,
        seed=seed,
        temperature=temperature,
    )
    if file is not None:
        write_statistics(file, statistics)
    return statistics


def gather_images(batches: Batches) -> tuple[Tensor, Tensor | None]:
    """All images and, if every batch has them, labels, on the CPU."""
    pairs = [unpack_batch(batch) for batch in batches]
    if not pairs:
        raise GdwsError("the calibration data is empty: expected at least one batch of images")
    labels = [label for _, label in pairs if label is not None]
    shapes = list(dict.fromkeys(tuple(images.shape[1:]) for images, _ in pairs))
    if len(shapes) > 1:
        raise GdwsError(f"images are {shapes[0]} and {shapes[1]}: expected one size")
    return (
        torch.cat([images.detach().cpu() for images, _ in pairs]),
        torch.cat([label.cpu() for label in labels]) if len(labels) == len(pairs) else None,
    )


def _curves(
    model: nn.Module,
    adversarial: Tensor,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    layers: dict[str, LayerStatistics],
    seed: int,
    temperature: float,
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
    factors = measure_corrections(model, adversarial, sites, tried, curves, torch.Generator().manual_seed(seed), temperature)
    return {
        name: {structure: [curve.scaled(factors[name][structure]) for curve in own] for structure, own in by_structure.items()}
        for name, by_structure in curves.items()
    }


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    """Of the images as they are, on the CPU."""
    with torch.no_grad():
        return torch.cat([checked_logits(model, part.to(*placement(model))).float().cpu() for part in images.split(50)])


def _collect(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
    sites: Sequence[Site],
    attack: PGD | None,
    seed: int,
    temperature: float,
) -> tuple[dict[str, LayerStatistics], Tensor]:
    device, dtype = placement(model)
    generator = torch.Generator().manual_seed(seed)
    convolutions = {site.name: site.conv for site in sites}
    sums = {name: _zeros(conv) for name, conv in convolutions.items()}
    adversarial = []
    batch_size = 100  # tensors that malloc still recycles: larger ones are new memory every time
    chunks = range(0, len(images), batch_size)
    for start in track(chunks, "statistics", len(chunks)):
        part = slice(start, start + batch_size)
        truth = None if labels is None else labels[part]
        x = attacked(model, images[part].to(device, dtype), truth, attack, generator).requires_grad_(True)
        adversarial.append(x.detach().cpu())
        with record_uses(convolutions) as uses, torch.enable_grad():
            logits = checked_logits(model, x, truth)
            for _ in backpropagate(logits, x, sampled_class(logits, generator, temperature)):
                for name, calls in uses.items():
                    if start == 0:
                        check_scales(name, calls)
                    _add_moments(convolutions[name], calls, *sums[name])
    layers = {}
    for name in list(sums):
        upper, upper_gradient = sums.pop(name)
        moment, gradient = mirror(upper), mirror(upper_gradient)
        energy = gradient.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
        layers[name] = LayerStatistics(
            moment / energy.clamp_min(torch.finfo(energy.dtype).tiny),
            gradient / (2 * len(images)),
        )
    return layers, torch.cat(adversarial)


def _zeros(conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Where moment and gradient of a convolution are summed up."""
    groups, inputs, outputs = conv.groups, conv.weight[0].numel(), conv.out_channels // conv.groups
    device = conv.weight.device
    return (
        torch.zeros(groups, inputs, inputs, device=device),
        torch.zeros(groups, outputs, outputs, device=device),
    )


def _add_moments(conv: nn.Conv2d, uses: list[Use], moment: Tensor, gradient: Tensor) -> None:
    """Add the sums over samples and pixels of |g|^2 x x^T and g g^T, for each group, above their diagonals."""
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
                x = patches(conv, images, (top, bottom)).float().permute(1, 2, 0, 3).flatten(2)
                g = (
                    slopes[:, :, top:bottom]
                    .float()
                    .reshape(len(slopes), conv.groups, outputs, -1)
                    .permute(1, 2, 0, 3)
                    .flatten(2)
                )
                add_moment(moment, x * g.norm(dim=1, keepdim=True))
                add_moment(gradient, g)
