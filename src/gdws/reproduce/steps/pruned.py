"""Networks that HYDRA or ADMM made smaller, by pruning and training."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gdws.compression.compaction.compact import compact
from gdws.core.hashing import weights_hash
from gdws.core.reading.weights import load_weights, read_weights
from gdws.core.sites import find_convolutions
from gdws.models import checkpoints
from gdws.planning.cost import network_cost
from gdws.reproduce.place import NetworkStep, Place
from gdws.reproduce.steps.base import Base, keep_weights, took, with_weights, without_times
from gdws.training import prune
from gdws.training.pruning.method import Method


@dataclass(frozen=True)
class Pruned(NetworkStep):
    """A base with zeros for weights or channels, trained again. weights: the hash of a file that is taken instead.

    The network is compacted: what is zero and can go without a change of the function is gone.
    """

    base: Base
    how: Method
    file: str = ""
    weights: str = ""

    @property
    def title(self) -> str:
        return f"{self.base.title}.{type(self.how).__name__.lower()}-{self.how.keep:g}"

    @property
    def data(self) -> str:
        return self.base.data

    @property
    def architecture(self) -> str:
        return self.base.architecture

    def run(self, place: Place) -> dict[str, Any]:
        begun, source, model = time.monotonic(), place.weights_file(self.file), self.base.network(place)
        made: dict[str, Any] = {"method": self.how.record()}
        stages: dict[str, list[dict[str, Any]]] = {}
        if source is not None:
            load_weights(model, checkpoints.fit(read_weights(source), model, str(source)), str(source))
            made = {"weights": self.file}
        else:
            split, folder = place.split(self.data, "train", self.base.trained_on), place.folder(self) / "run"
            pruned = prune(model, split, self.how, folder, resume=(folder / "pruning.json").exists())
            model, stages = pruned.model, pruned.stages
            made |= {"stages": stages, "kept": without_times(pruned.last)}
        keep_weights(self, place, model, halved=False)
        sparsity, model = filter_sparsity(model, self.example(place)), self.network(place)
        cost = network_cost(model, self.example(place))
        size = {"mb": cost.size_mb, "parameters": cost.parameters, "macs": cost.macs, "weights hash": weights_hash(model)}
        seconds = took(begun, [line for history in stages.values() for line in history])
        return {**size, **made, "filter sparsity": sparsity, "pruning seconds": seconds}

    def work(self, place: Place) -> float:
        recipes = self.how.recipes()
        periods = {"prune": getattr(self.how, "periods", 1)}
        passes = (each.epochs * periods.get(name, 1) * (each.attack.steps + 1) for name, each in recipes.items())
        return 0 if self.weights else sum(passes) * len(place.split(self.data, "train", self.base.trained_on))

    def network(self, place: Place) -> nn.Module:
        masked = with_weights(self, place, self.base.fresh(place)).to(place.device)
        return compact(masked, self.example(place)).to(place.device)


def filter_sparsity(model: nn.Module, example: Tensor) -> dict[str, float]:
    """For each convolution, the share of its filters that are all zero."""
    return {
        site.name: float((site.conv.weight.detach().flatten(1) == 0).all(1).float().mean())
        for site in find_convolutions(model, example.to(next(model.parameters()).device))
    }
