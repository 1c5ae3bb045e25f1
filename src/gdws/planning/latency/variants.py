"""The networks that are timed: every layer in one structure at one size, weights noise, on which times do not depend."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from gdws.calibration.statistics import Statistics
from gdws.core.sites import Site, replace_modules
from gdws.planning import cost
from gdws.planning.latency.table import Latencies
from gdws.planning.methods import Choice
from gdws.structures.base import Structure

SHARES = (0.06, 0.2, 0.5)
"""Sizes that are timed, as fractions of the dense layer's multiply-adds."""
LARGE = 0.9
"""A GPU works by whole tiles, and beyond the largest size that was timed a straight line is no guess: this one is timed too."""
SLOWER = 2.0
"""How many times as long a layer may take in a network as alone, or the reverse."""
WARMUP, TURNS = 5, 40


def with_noise_weights(model: nn.Module, choices: Mapping[str, Choice]) -> nn.Module:
    """A copy of a network with these layers in their places, their weights noise: it takes the time of the real one."""
    made = copy.deepcopy(model).to("cpu", torch.float32).eval()
    layers: dict[nn.Module, nn.Module] = {}
    random = torch.Generator().manual_seed(0)  # never the global one: a plan may be made in the middle of a training
    for name, choice in choices.items():
        conv = made.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)
        layers[conv] = choice.structure.build_empty(conv, choice.ranks).eval()
        for parameter in layers[conv].parameters():
            if parameter.ndim > 1 and parameter.numel():
                nn.init.kaiming_normal_(parameter, generator=random)
    replace_modules(made, layers)
    return made


def variants_to_time(
    sites: Sequence[Site], structures: Sequence[Structure], statistics: Statistics, shares: Sequence[float], filled: int
) -> list[dict[str, Choice]]:
    """What becomes of each layer in each network that is timed: in one structure, at another size for each of the shares."""
    grid = []
    for structure in structures:
        timed: dict[str, list[int]] = {}
        for site in sites:
            if structure.fits(site.conv):
                sizes = structure.sizes(statistics.curves[site.name][structure.name][0])
                one = cost.dense_macs(site) / structure.macs(site, 1)
                timed[site.name] = sizes_to_time(sizes, [share * one for share in shares], filled)
        for turn in range(len(shares)):
            chosen = {}
            for name, sizes in timed.items():
                if turn < len(sizes):
                    ranks = structure.ranks(statistics.curves[name][structure.name], sizes[turn])
                    chosen[name] = Choice(structure, sizes[turn], ranks, math.nan)
            if chosen:
                grid.append(chosen)
    return grid


def sizes_to_time(sizes: Sequence[int], wanted: Sequence[float], filled: int) -> list[int]:
    """Rising sizes near those that are wanted, which rise, no two of which take as many vectors of `filled` channels.

    A layer of few channels has few such sizes, and the nearest to several of the wanted ones may be the same. Then the next
    larger is taken: between two times a size has a price, but beyond a single one it would be a guess.
    """
    largest = {-(-size // filled): size for size in sorted(sizes) if size}  # of each number of vectors
    found: list[int] = []
    for size in wanted:
        left = [other for other in largest.values() if not found or other > found[-1]]
        if left:
            found.append(min(left, key=lambda other: abs(other - size)))
    return found


def reconcile(
    total: float,
    shares: Sequence[float],
    found: Sequence[Mapping[str, float]],
    grid: Sequence[Mapping[str, Choice]],
    filled: int,
) -> Latencies:
    """From the seconds of the layers of each network, the dense one first, and the shares of its time that the others take.

    The layers of a network are not all of its time. What it took beyond the prediction from them (to start more kernels, or to
    read what no cache holds) is shared out among those that were replaced: the prediction is then right for every network of
    the grid.
    """
    dense = dict(found[0])
    points: dict[str, dict[str, dict[int, float]]] = {layer: {} for layer in dense}
    for chosen, times, share in zip(grid, found[1:], shares, strict=True):
        predicted = total + sum(times[layer] - dense[layer] for layer in chosen)
        beyond = (total * share - predicted) / len(chosen)
        for layer, choice in chosen.items():
            points[layer].setdefault(choice.structure.name, {})[choice.size] = max(times[layer] + beyond, times[layer] / 2)
    rising = {layer: {kind: sorted(own.items()) for kind, own in kinds.items()} for layer, kinds in points.items()}
    return Latencies(total, dense, rising, filled)
