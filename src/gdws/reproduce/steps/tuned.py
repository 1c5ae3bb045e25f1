"""Compressed networks after training in their factored form."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch import nn

from gdws.compression import storage
from gdws.core.hashing import weights_hash
from gdws.planning.cost import network_cost
from gdws.reproduce.place import MODEL, UNREACHED, NetworkStep, Place
from gdws.reproduce.steps.base import took
from gdws.reproduce.steps.compressed import Compressed
from gdws.training import Recipe, tune

PASSES = 8
"""Of an image in an epoch of training with PGD-7."""


@dataclass(frozen=True)
class Tuned(NetworkStep):
    """A compressed network after training in its factored form; taught: towards the decisions of the network it was made of."""

    before: Compressed
    recipe: Recipe
    taught: bool
    trained_on: int | None = None

    @property
    def title(self) -> str:
        return f"{self.before.title}.tuned"

    @property
    def data(self) -> str:
        return self.before.data

    @property
    def architecture(self) -> str:
        return self.before.architecture

    def run(self, place: Place) -> dict[str, Any]:
        begun, folder = time.monotonic(), place.folder(self) / "run"
        if all(layer["structure"] == "dense" for layer in place.found(self.before)["layers"].values()):
            return {UNREACHED: "there is nothing to tune: the dense network is as fast as the one that this stands beside"}
        split, teacher = place.split(self.data, "train", self.trained_on), None
        if self.taught:
            teacher = self.before.source.network(place)
        resume = (folder / "log.jsonl").exists()
        trained = tune(self.before.network(place), split, self.recipe, folder, teacher=teacher, resume=resume)
        storage.save(trained.model, place.folder(self) / MODEL, force=True, export=False)
        cost = network_cost(trained.model, self.example(place))
        found = {"mb": cost.size_mb, "parameters": cost.parameters, "macs": cost.macs, "history": trained.history}
        found |= {"recipe": self.recipe.record(), "teacher": self.taught, "weights hash": weights_hash(trained.model)}
        return {**found, "tuning seconds": took(begun, trained.history)}

    def work(self, place: Place) -> float:
        return self.recipe.epochs * PASSES * len(place.split(self.data, "train", self.trained_on)) * (1.2 if self.taught else 1)

    def network(self, place: Place) -> nn.Module:
        return storage.load(place.folder(self) / MODEL, self.before.source.network(place)).to(place.device)
