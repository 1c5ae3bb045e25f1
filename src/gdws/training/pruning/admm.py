"""ADMM (Ye et al. 2019): draw the weights towards pruned ones while they train under attack, prune, and train what is left.

To minimize L(W) over pruned W, the alternating direction method of multipliers takes W and a pruned Z apart, with a dual U:

    W <- argmin L(W) + rho/2 |W - Z + U|^2    by a training of one period
    Z <- projection(W + U),   U <- U + W - Z,   rho <- growth rho

It begins with Z = projection(W) and U = 0. Each period is a training of its own, so its momentum begins at zero; in the
published code it goes on, after steps at a hundredth of the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gdws.core.checks import is_count
from gdws.core.errors import GdwsError
from gdws.core.progress import track
from gdws.training.pruning.losses import Augmented
from gdws.training.pruning.masks import masks_of, parameter_name, project, prunable_layers
from gdws.training.pruning.method import Method, Stage, loss_of
from gdws.training.pruning.recipes import FINETUNE, PERIOD
from gdws.training.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class Admm(Method):
    """Keep the largest groups of each layer after a training that drew the others towards zero (Ye et al. 2019).

    keep      the share of the groups of every layer that is kept.
    kind      what is pruned together: "batchnorm" (channels, by |gamma|; their bias goes, too), "filter" (by length; their bias
              goes, too), "column" (what all filters have at one input channel and tap) or "irregular" (single weights).
    rho       how strongly the first period draws; the default is that of 20 short epochs, published is 0.001.
    growth    what rho grows by from one period to the next.
    periods   how many there are.
    prune     how a period trains.
    finetune  how what is left is trained.

    Raises GdwsError when a number is out of its range, the kind is unknown, or a recipe does not keep its last epoch.

    >>> from gdws import training
    >>> method = training.Admm(keep=0.5)
    >>> method.periods * method.prune.epochs, method.finetune.epochs
    (20, 20)
    """

    kind: str = "batchnorm"
    rho: float = 0.024
    growth: float = 1.3
    periods: int = 5
    prune: Recipe = PERIOD["fast"]
    finetune: Recipe = FINETUNE["fast-admm"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.rho < math.inf and 0 < self.growth < math.inf and is_count(self.periods, 1)):
            raise GdwsError(
                f"ADMM got rho={self.rho}, growth={self.growth}, periods={self.periods}: expected numbers > 0 and whole periods"
            )

    @property
    def groups(self) -> str:
        return self.kind

    def choose(self, network: nn.Module, stage: Stage) -> tuple[nn.Module, dict[str, Tensor]]:
        layers = prunable_layers(network, self.kind, self.keep)
        names = [parameter_name(name, "weight") for name in layers]
        pruned = {name: project(value, self.kind, self.keep) for name, value in _weights(network, names).items()}
        dual = {name: torch.zeros_like(value) for name, value in pruned.items()}
        for period in track(range(self.periods), "ADMM"):
            recipe = replace(self.prune, seed=(self.prune.seed + period) % 2**63)  # each draws other batches
            targets = {name: pruned[name] - dual[name] for name in names}
            loss = Augmented(loss_of(recipe), self.rho * self.growth**period, targets)
            network = stage(f"period-{period + 1:02d}", network, recipe, loss)
            for name, weight in _weights(network, names).items():
                pruned[name], dual[name] = dual_update(weight, dual[name], self.kind, self.keep)
        return network, masks_of(prunable_layers(network, self.kind, self.keep), self.kind, self.keep)


def dual_update(weight: Tensor, dual: Tensor, kind: str, keep: float) -> tuple[Tensor, Tensor]:
    """(Z, U) after a period that ended at W."""
    pruned = project(weight + dual, kind, keep)
    return pruned, dual + weight - pruned


def _weights(network: nn.Module, names: list[str]) -> dict[str, Tensor]:
    return {name: network.get_parameter(name).detach() for name in names}
