"""How large a layer's loss really is: the metric's estimate, corrected by a measurement.

gdws.structures.metric adds up pixels as if their errors were independent, and takes patches and gradients for independent of
each other. Both make it too small, by a factor between 2 and 60 that differs from layer to layer and from structure to
structure. So a few sizes of every structure are tried. With dy the error of a trial layer's output and g the gradient there,

    loss = 1/2 E (sum over pixels of g . dy)^2

is what the objective loses to second order without those assumptions (for classes the divergence in nats). Trial layers are
never run in the network: they see what the original layer sees, so one forward pass and a few backward ones serve all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdws.calibration.batch_size import samples_at_once
from gdws.calibration.hooks import backpropagate, record_uses
from gdws.core.execution import placement
from gdws.core.inputs import Inputs, place, with_gradients
from gdws.core.progress import track
from gdws.core.sites import Site
from gdws.objectives import Objective
from gdws.structures import Curve, Metric, Structure
from gdws.structures.layers import FactoredConv2d

TRIALS = (0.1, 0.2, 0.4)
"""Shares of a layer's weights that are tried; between them the correction is interpolated."""

IMAGES, FEWEST, PIXELS, DRAWS, BATCH = 200, 24, 2**18, 3, 50
"""Samples at most, and so many at least; fewer than the most where the largest map then has more pixels in all than PIXELS;
random cotangents of each sample, and samples at a time."""

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
    images: Inputs,
    sites: Sequence[Site],
    tried: Mapping[str, Mapping[str, Trials]],
    curves: Mapping[str, Mapping[str, list[Curve]]],
    generator: torch.Generator,
    objective: Objective,
) -> dict[str, dict[str, Tensor]]:
    """By layer and structure, what to multiply its losses by, for each size.

    images: attacked ones if the network is meant to be robust.
    """
    largest = max(site.positions for site in sites)
    count = min(IMAGES, max(FEWEST, PIXELS // largest))
    measured = _measure(model, images[:count], sites, tried, generator, objective)
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
    images: Inputs,
    sites: Sequence[Site],
    tried: Mapping[str, Mapping[str, Trials]],
    generator: torch.Generator,
    objective: Objective,
) -> dict[tuple[str, str], Floats]:
    device, dtype = placement(model)
    convolutions = {site.name: site.conv for site in sites}
    sums = {(name, structure): np.zeros(len(layers)) for name, own in tried.items() for structure, layers in own.items()}
    chunks = images.split(min(BATCH, samples_at_once(sites, 2 + DRAWS)))
    for part in track(chunks, "trials", len(chunks)):
        x = with_gradients(place(part, device, dtype))
        with record_uses(convolutions) as uses, torch.enable_grad():
            outputs = objective.answers(model, x)
            cotangents = (objective.cotangents(outputs, generator) for _ in range(DRAWS))
            gradients: dict[str, list[list[Tensor]]] = {name: [[] for _ in calls] for name, calls in uses.items()}
            for _ in backpropagate(outputs, x, cotangents):
                for name, calls in uses.items():
                    for seen, use in zip(gradients[name], calls, strict=True):
                        seen.append(use.gradient if use.gradient is not None else torch.zeros((), device=device))
        with torch.no_grad():
            for name, structures in tried.items():
                dense = [convolutions[name].forward(use.input) for use in uses[name]]  # without hooks, as the trials
                slopes = [
                    torch.stack([gradient.expand_as(y) for gradient in seen], 1).flatten(2)
                    for y, seen in zip(dense, gradients.pop(name), strict=True)
                ]
                for structure, layers in structures.items():
                    for index, layer in enumerate(layers.values()):
                        moved: dict[int, Tensor] = {}  # by rows: frames or crops of one sample count as samples
                        for use, y, slope in zip(uses[name], dense, slopes, strict=True):
                            error = (y - layer(use.input)).flatten(1)
                            moved[len(y)] = moved.get(len(y), 0) + (slope @ error[:, :, None])[:, :, 0].double()
                        sums[name, structure][index] += sum(float(rows.square().sum()) for rows in moved.values())
    return {key: total / (2 * DRAWS * len(images)) for key, total in sums.items()}


def _interpolated(sizes: Floats, measured: Floats, predicted: Floats, count: int) -> Tensor:
    """The correction for sizes 0 ... count - 1: linear in the logarithms between the trials, constant beyond them."""
    usable = (measured > 0) & (predicted > 0)
    if not usable.any():
        return torch.ones(count, dtype=torch.float64)
    ratios = np.log(measured[usable] / predicted[usable])
    return torch.from_numpy(np.exp(np.interp(np.log(np.maximum(np.arange(count), 1)), np.log(sizes[usable]), ratios)))
