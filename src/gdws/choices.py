"""What each method chooses for each layer, under a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gdws import cost, decompose
from gdws.allocate import allocate
from gdws.budgets import Beta, Budget, Macs, Params
from gdws.errors import GdwsError
from gdws.statistics import Statistics
from gdws.structures import STRUCTURES, Structure
from gdws.surgery import Site

GDWS = STRUCTURES["gdws"]


@dataclass(frozen=True)
class Choice:
    """What becomes of a layer that is replaced: `size` and `kept` as its structure means them, the predicted loss, and why."""

    structure: Structure
    size: int
    kept: tuple[int, ...]
    loss: float
    why: str = ""


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


def calibrated(sites: list[Site], structures: Sequence[Structure], statistics: Statistics, budget: Budget) -> dict[str, Choice]:
    """One exact allocation over all layers: each takes a structure and a size from its curve, or stays dense."""
    price, dense = _pricing(budget, "calibrated")
    layers = []
    for site in sites:
        curves = statistics.curves[site.name]
        options = [Option(None, 0, dense(site), 0.0)]
        for structure in structures:
            if not structure.fits(site.conv):
                continue
            if structure.name not in curves:
                raise GdwsError(f"these statistics have no curves for {structure.name}: expected {', '.join(curves)} only")
            losses = torch.stack([curve.losses for curve in curves[structure.name]]).sum(0).tolist()
            unit = price(structure, site, 1)
            sizes = [size for size in structure.sizes(curves[structure.name][0]) if size * unit < dense(site)]
            options += [Option(structure, size, size * unit, losses[size]) for size in sizes]
        layers.append(options)
    arrays = [(np.array([o.cost for o in options]), np.array([o.weight for o in options])) for options in layers]
    picks = allocate(arrays, budget.value * sum(dense(site) for site in sites))
    choices: dict[str, Choice] = {}
    for site, options, pick in zip(sites, layers, picks, strict=True):
        option = options[pick]
        if option.structure is not None:
            kept = option.structure.kept(statistics.curves[site.name][option.structure.name], option.size)
            choices[site.name] = Choice(option.structure, option.size, kept, option.loss, _comparison(option, options))
    return choices


def _comparison(chosen: Option, options: list[Option]) -> str:
    """What the other structures would lose at no more cost, as losses count, in multiples of the chosen one's loss."""
    best: dict[str, float] = {}
    for option in options:
        if option.structure not in (None, chosen.structure) and option.cost <= chosen.cost:
            name = option.structure.name
            best[name] = min(option.weight, best.get(name, np.inf))
    if not chosen.weight > 0:
        return ""
    return ", ".join(f"{name} {loss / chosen.weight:.1f}x" for name, loss in sorted(best.items(), key=lambda item: item[1]))


def _gdws(conv: nn.Conv2d, g: Tensor, loss: float) -> Choice:
    return Choice(GDWS, int(g.view(conv.groups, -1).sum(1).max()), tuple(g.tolist()), loss)


def lego_with_one_beta(sites: list[Site], alphas: dict[str, Tensor], budget: Budget) -> dict[str, Choice]:
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


def uniform(sites: list[Site], budget: Budget) -> dict[str, Choice]:
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
