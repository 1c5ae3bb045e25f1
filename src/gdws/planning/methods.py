"""What each method chooses for each layer, under a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gdws.calibration.statistics import Statistics
from gdws.core.errors import GdwsError, OutOfReach
from gdws.core.sites import Site
from gdws.planning import cost
from gdws.planning.budgets import Beta, Budget, Prices
from gdws.planning.knapsack import allocate
from gdws.structures import STRUCTURES, Structure, mego_lego

GDWS = STRUCTURES["gdws"]
BLOCK, LARGEST_BLOCK = 16, 64
"""Channels that kernels for tensor cores work on together, at least and at most."""


@dataclass(frozen=True)
class Choice:
    """What becomes of a layer that is replaced: `size` and `ranks` as its structure means them, the predicted loss, and why."""

    structure: Structure
    size: int
    ranks: tuple[int, ...]
    loss: float
    why: str = ""

    @property
    def weight(self) -> float:
        """The loss as it counts against other structures'."""
        return self.loss * self.structure.brittleness


@dataclass(frozen=True)
class Option:
    """One thing that can become of a layer, with its cost and its predicted loss (nats)."""

    structure: Structure | None
    """None: it stays dense."""
    size: int
    cost: float
    loss: float

    @property
    def weight(self) -> float:
        """The loss as it counts against other options'."""
        return self.loss if self.structure is None else self.loss * self.structure.brittleness


def _prices(budget: Budget, method: str) -> Prices:
    if budget.prices is None:
        raise GdwsError(f"method {method!r} got the budget {budget}: expected Macs, Params or Drop")
    return budget.prices


def choose_calibrated(
    sites: list[Site], structures: Sequence[Structure], statistics: Statistics, budget: Budget, tensor_cores: bool = False
) -> dict[str, Choice]:
    """The least predicted loss within a Macs or Params budget. tensor_cores: only in sizes that fill their blocks."""
    prices = _prices(budget, "calibrated")
    whole = sum(map(prices.dense, sites))
    try:
        return allocate_layers(sites, structures, statistics, prices, budget.value * whole, tensor_cores)
    except OutOfReach as error:
        least, steps = error.least / whole, " in sizes for tensor cores" if tensor_cores else ""
        raise OutOfReach(
            f"{budget} is out of reach{steps}: expected at least {least:.3f}, all layers smallest", least
        ) from None


def allocate_layers(
    sites: list[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    prices: Prices,
    limit: float,
    tensor_cores: bool = False,
) -> dict[str, Choice]:
    """One exact allocation over all layers: each takes a structure and a size from its curve, or stays dense.

    limit:        on the sum of all layers' prices.
    tensor_cores: only in sizes that fill their blocks, the small ones left to structures that are fast there, if any fits.
    """
    layers = []
    for site in sites:
        curves = statistics.curves[site.name]
        dense = prices.dense(site)
        options = [Option(None, 0, dense, 0.0)]
        for structure in structures:
            if not structure.fits(site.conv):
                continue
            if structure.name not in curves:
                raise GdwsError(f"these statistics have no curves for {structure.name}: expected {', '.join(curves)} only")
            losses = torch.stack([curve.losses for curve in curves[structure.name]]).sum(0).tolist()
            sizes = structure.sizes(curves[structure.name][0])
            if tensor_cores:
                left = not structure.narrow and any(other.narrow and other.fits(site.conv) for other in structures)
                sizes = [size for size in sizes if fills_blocks(size, LARGEST_BLOCK if left else BLOCK)]
            priced = [(size, prices.of(structure, site, size)) for size in sizes]
            options += [Option(structure, size, price, losses[size]) for size, price in priced if price < dense]
        layers.append(options)
    arrays = [(np.array([o.cost for o in options]), np.array([o.weight for o in options])) for options in layers]
    picks = allocate(arrays, limit)
    choices: dict[str, Choice] = {}
    for site, options, pick in zip(sites, layers, picks, strict=True):
        option = options[pick]
        if option.structure is not None:
            ranks = option.structure.ranks(statistics.curves[site.name][option.structure.name], option.size)
            choices[site.name] = Choice(option.structure, option.size, ranks, option.loss, _comparison(option, options))
    return choices


def fills_blocks(size: int, smallest: int) -> bool:
    """Whether kernels for blocks of `smallest`, twice as many, ... up to LARGEST_BLOCK channels have none that is not full.

    For 16: 16, 32, 64, 128, 192, ... A size between two of them takes as long as the next.
    """
    block = smallest
    while 2 * block <= min(size, LARGEST_BLOCK):
        block *= 2
    return size >= smallest and size % block == 0


def _comparison(chosen: Option, options: list[Option]) -> str:
    """What the other structures would lose at no more cost, as losses count, in multiples of the chosen one's loss."""
    best: dict[str, float] = {}
    for option in options:
        if option.structure not in (None, chosen.structure) and option.cost <= chosen.cost:
            name = option.structure.name
            best[name] = min(option.weight, best.get(name, np.inf))
    if not chosen.weight > 0:
        return ""
    multiples = {name: loss / chosen.weight for name, loss in sorted(best.items(), key=lambda item: item[1])}
    return ", ".join(f"{name} {multiple:.{int(multiple < 10)}f}x" for name, multiple in multiples.items())


def _gdws(conv: nn.Conv2d, g: Tensor, loss: float) -> Choice:
    return Choice(GDWS, int(g.view(conv.groups, -1).sum(1).max()), tuple(g.tolist()), loss)


def choose_lego(sites: list[Site], alphas: dict[str, Tensor], budget: Budget) -> dict[str, Choice]:
    """Algorithm 3. For a Macs or Params budget the least beta that meets it, found exactly: among the layers' own errors."""
    spectra = {site.name: mego_lego.spectrum_of(site.conv.weight, alphas.get(site.name), site.conv.groups) for site in sites}

    def choose(beta: float) -> dict[str, Choice]:
        found: dict[str, Choice] = {}
        for site in sites:
            spectrum = spectra[site.name]
            kernels = spectrum.kernels_for(beta)
            if GDWS.parameters(site.conv, kernels) < cost.dense_parameters(site):
                found[site.name] = _gdws(site.conv, spectrum.distribution(kernels), float(spectrum.errors[kernels]))
        return found

    if isinstance(budget, Beta):
        return choose(budget.value)
    prices = _prices(budget, "paper")
    limit = budget.value * sum(map(prices.dense, sites))

    def price(beta: float) -> float:
        found = choose(beta)
        return sum(
            prices.dense(site) if (choice := found.get(site.name)) is None else prices.of(GDWS, site, choice.size)
            for site in sites
        )

    betas = torch.cat([spectrum.errors.cpu() for spectrum in spectra.values()]).unique()
    low, high = 0, len(betas) - 1  # the largest error drops everything, so the answer is among them
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if price(float(betas[middle])) <= limit else (middle + 1, high)
    return choose(float(betas[low]))


def choose_uniform(sites: list[Site], budget: Budget) -> dict[str, Choice]:
    """GDWS-U: in every layer the kernels that the same fraction of its cost buys, unweighted."""
    prices = _prices(budget, "uniform")
    choices: dict[str, Choice] = {}
    for site in sites:
        kernels = int(budget.value * prices.dense(site) / prices.of(GDWS, site, 1))
        spectrum = mego_lego.spectrum_of(site.conv.weight, None, site.conv.groups)
        kernels = min(kernels, spectrum.order.shape[1])
        choices[site.name] = _gdws(site.conv, spectrum.distribution(kernels), float(spectrum.errors[kernels]))
    return choices
