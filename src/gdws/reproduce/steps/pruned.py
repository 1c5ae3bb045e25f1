"""Networks that HYDRA or ADMM made smaller, by pruning and training."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gdws.core.execution import own_copy
from gdws.core.hashing import weights_hash
from gdws.core.reading.weights import load_weights, read_weights
from gdws.core.sites import find_convolutions
from gdws.models import checkpoints
from gdws.planning.cost import network_cost
from gdws.reproduce.place import NetworkStep, Place
from gdws.reproduce.steps.base import Base, keep_weights, with_weights


@dataclass(frozen=True)
class Pruned(NetworkStep):
    """A base of which a share `keep` of the weights ("hydra") or channels ("admm") is left, trained again. weights: the hash of
    a file that is taken instead; recipe: "fast" or "paper" (gdws.training)."""

    base: Base
    method: str
    keep: float
    recipe: str
    seed: int
    file: str = ""
    weights: str = ""

    @property
    def title(self) -> str:
        return f"{self.base.title}.{self.method}-{self.keep:g}"

    @property
    def data(self) -> str:
        return self.base.data

    @property
    def architecture(self) -> str:
        return self.base.architecture

    @property
    def is_structured(self) -> bool:
        """Whether channels are gone, so that a smaller dense network does the same."""
        return self.method == "admm"

    def run(self, place: Place) -> dict[str, Any]:
        begun, source = time.monotonic(), place.weights_file(self.file)
        if source is not None:
            model, made = self.base.network(place), {"weights": self.file}
            load_weights(model, checkpoints.fit(read_weights(source), model, str(source)), str(source))
        else:
            model, made = prune_network(self, place)
        keep_weights(self, place, model, halved=False)
        sparsity, model = filter_sparsity(model, self.example(place)), self.network(place)
        cost = network_cost(model, self.example(place))
        size = {"mb": cost.size_mb, "parameters": cost.parameters, "macs": cost.macs, "weights hash": weights_hash(model)}
        return {**size, **made, "filter sparsity": sparsity, "pruning seconds": time.monotonic() - begun}

    def work(self, place: Place) -> float:
        epochs = 40 if self.recipe == "fast" else 400
        return 0 if self.weights else epochs * 11 * len(place.split(self.data, "train", self.base.trained_on))

    def network(self, place: Place) -> nn.Module:
        masked = with_weights(self, place, self.base.fresh(place)).to(place.device)
        return compacted(masked, self.example(place)) if self.is_structured else masked


def prune_network(step: Pruned, place: Place) -> tuple[nn.Module, dict[str, Any]]:
    """The pruned network, in the shapes of its base, and how it was made."""
    model = own_copy(step.base.network(place))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            size = module.weight.detach().abs()
            least = size.flatten().kthvalue(max(1, round((1 - step.keep) * size.numel()))).values
            module.weight.data.mul_(size > least)
    return model, {"stand-in": "magnitude, not trained"}


def compacted(model: nn.Module, example: Tensor) -> nn.Module:
    """The same function in a network without the channels that are zero."""
    return model


def filter_sparsity(model: nn.Module, example: Tensor) -> dict[str, float]:
    """For each convolution, the share of its filters that are all zero."""
    return {
        site.name: float((site.conv.weight.detach().flatten(1) == 0).all(1).float().mean())
        for site in find_convolutions(model, example.to(next(model.parameters()).device))
    }
