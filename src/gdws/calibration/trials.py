"""How large a layer's loss really is: the metric's estimate, corrected by a measurement.

gdws.structures.metric adds up pixels as if their errors were independent, and takes patches and gradients for independent of
each other. Both make it too small, by a factor between 2 and 60 that differs from layer to layer and from structure to
structure. So a few sizes of every structure are tried. With dy the error of a trial layer's output and g the gradient there,

    loss = 1/2 E (sum over pixels of g . dy)^2

is the divergence (nats) to second order without those assumptions (the Fisher information along the error). Trial layers are
never run in the network: they see what the original layer sees, so one forward pass and a few backward ones serve all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdws.calibration.hooks import backpropagate, record_uses, sampled_class
from gdws.core.checks import checked_logits
from gdws.core.execution import placement
from gdws.core.progress import track
from gdws.core.sites import Site
from gdws.structures import Curve, Metric, Structure
from gdws.structures.layers import FactoredConv2d

TRIALS = (0.1, 0.2, 0.4)
"""Shares of a layer's weights that are tried; between them the correction is interpolated."""

IMAGES, DRAWS, BATCH = 200, 3, 50
"""Images, random cotangents of each, and images at a time."""

Floats = NDArray[np.float64]
Trials = dict[int, FactoredConv2d]
"""Trial layers by size."""


def build_trials(site: Site, structure: Structure, curves: list[Curve], metrics: list[Metric]) -> Trials:
    """A few sizes of a structure in the place of a convolution."""
    weights, largest = site.conv.weight.numel(), len(curves[0].losses) - 1
    wanted = [round(share * weights / structure.parameters(site.conv, 1)) for share in TRIALS]
    sizes = sorted({min(max(1, size), largest) for size in wanted})
    ranks = [structure.ranks(curves, size) for size in sizes]
    return dict(zip(sizes, structure.build_several(site.conv, ranks, curves, metrics, draft=True), strict=True))


def measure_corrections(
    model: nn.Module,
    images: Tensor,
    sites: Sequence[Site],
    tried: Mapping[str, Mapping[str, Trials]],
    curves: Mapping[str, Mapping[str, list[Curve]]],
    generator: torch.Generator,
    temperature: float = 1.0,
) -> dict[str, dict[str, Tensor]]:
    """By layer and structure, what to multiply its losses by, for each size.

    images (N, C, H, W): attacked ones if the network is meant to be robust. temperature: see gdws.calibration.softening.
    """
    measured = _measure(model, images[:IMAGES], {site.name: site.conv for site in sites}, tried, generator, temperature)
    found: dict[str, dict[str, Tensor]] = {}
    for name, structures in tried.items():
        found[name] = {}
        for structure, layers in structures.items():
            own = curves[name][structure]
            predicted = np.array([sum(float(curve.losses[size]) for curve in own) for size in layers])
            sizes = np.array(list(layers), float)
            found[name][structure] = _interpolated(sizes, measured[name, structure], predicted, len(own[0].losses))
    return found


def _measure(
    model: nn.Module,
    images: Tensor,
    convolutions: Mapping[str, nn.Conv2d],
    tried: Mapping[str, Mapping[str, Trials]],
    generator: torch.Generator,
    temperature: float,
) -> dict[tuple[str, str], Floats]:
    device, dtype = placement(model)
    sums = {(name, structure): np.zeros(len(layers)) for name, own in tried.items() for structure, layers in own.items()}
    chunks = images.split(BATCH)
    for part in track(chunks, "trials", len(chunks)):
        x = part.to(device, dtype).requires_grad_(True)
        with record_uses(convolutions) as uses, torch.enable_grad():
            logits = checked_logits(model, x)
            cotangents = (next(sampled_class(logits, generator, temperature)) for _ in range(DRAWS))
            gradients: dict[str, list[list[Tensor]]] = {name: [[] for _ in calls] for name, calls in uses.items()}
            for _ in backpropagate(logits, x, cotangents):
                for name, calls in uses.items():
                    for seen, use in zip(gradients[name], calls, strict=True):
                        seen.append(use.gradient if use.gradient is not None else x.new_zeros(()))
        with torch.no_grad():
            for name, structures in tried.items():
                outputs = [convolutions[name].forward(use.input) for use in uses[name]]  # without hooks, as the trials
                slopes = [
                    torch.stack([gradient.expand_as(y) for gradient in seen], 1).flatten(2)
                    for y, seen in zip(outputs, gradients.pop(name), strict=True)
                ]
                for structure, layers in structures.items():
                    for index, layer in enumerate(layers.values()):
                        moved = torch.zeros(len(x), DRAWS, dtype=torch.float64, device=device)
                        for use, y, slope in zip(uses[name], outputs, slopes, strict=True):
                            error = (y - layer(use.input)).flatten(1)
                            moved += (slope @ error[:, :, None])[:, :, 0]
                        sums[name, structure][index] += float(moved.square().sum())
    return {key: total / (2 * DRAWS * len(images)) for key, total in sums.items()}


def _interpolated(sizes: Floats, measured: Floats, predicted: Floats, count: int) -> Tensor:
    """The correction for sizes 0 ... count - 1: linear in the logarithms between the trials, constant beyond them."""
    usable = (measured > 0) & (predicted > 0)
    if not usable.any():
        return torch.ones(count, dtype=torch.float64)
    ratios = np.log(measured[usable] / predicted[usable])
    return torch.from_numpy(np.exp(np.interp(np.log(np.maximum(np.arange(count), 1)), np.log(sizes[usable]), ratios)))
