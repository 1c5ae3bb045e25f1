"""Bases: networks by a recipe, or from a file of weights."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save as serialize
from torch import nn

from gdws.core.errors import GdwsError
from gdws.core.files import ensure_folder, write_atomically
from gdws.core.hashing import weights_hash
from gdws.core.reading.weights import contiguous_copies, load_weights, read_weights
from gdws.models import checkpoints
from gdws.planning.cost import network_cost
from gdws.reproduce.place import WEIGHTS, NetworkStep, Place
from gdws.training import Recipe, train


@dataclass(frozen=True)
class Base(NetworkStep):
    """A base, by a recipe or from a file of weights. images and weights: hashes of the data and of that file."""

    name: str
    architecture_name: str
    data_name: str
    images: str
    classes: int
    recipe: Recipe | None
    file: str = ""
    weights: str = ""
    trained_on: int | None = None

    @property
    def title(self) -> str:
        return self.name

    @property
    def data(self) -> str:
        return self.data_name

    @property
    def architecture(self) -> str:
        return self.architecture_name

    def run(self, place: Place) -> dict[str, Any]:
        """Convolutions are kept in float16, and the network that is judged is the one that was kept."""
        begun, model = time.monotonic(), self.fresh(place)
        made: dict[str, Any] = {}
        if self.recipe is None:
            source = place.weights_file(self.file)
            if source is None:
                raise GdwsError(f"{self.name} needs the weights {self.file}: expected them in a folder of --weights")
            load_weights(model, checkpoints.fit(read_weights(source), model, str(source)), str(source))
            made["weights"] = self.file
        else:
            split, folder = place.split(self.data, "train", self.trained_on), place.folder(self) / "run"
            resume = (folder / "log.jsonl").exists()
            trained = train(model.to(place.device), split, self.recipe, folder, resume=resume)
            model, made = (
                trained.model,
                {"recipe": self.recipe.record(), "history": trained.history, "kept": without_times(trained.best)},
            )
        keep_weights(self, place, model)
        model = self.network(place)
        cost = network_cost(model, self.example(place))
        size = {"mb": cost.size_mb, "parameters": cost.parameters, "macs": cost.macs, "weights hash": weights_hash(model)}
        return {**size, **made, "training seconds": took(begun, made.get("history", []))}

    def work(self, place: Place) -> float:
        if self.recipe is None:
            return 0
        images = len(place.split(self.data, "train", self.trained_on))
        steps = self.recipe.attack.steps
        return self.recipe.epochs * (images * (steps + 1) + self.recipe.held * max(10, steps))

    def network(self, place: Place) -> nn.Module:
        return with_weights(self, place, self.fresh(place)).to(place.device)

    def fresh(self, place: Place) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0 if self.recipe is None else self.recipe.seed)
            return place.scale.build(self.architecture_name, self.classes)


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """What an epoch found, which is the same wherever it is trained again."""
    return {name: value for name, value in line.items() if name not in ("seconds", "images_per_second")}


def took(begun: float, history: list[dict[str, Any]]) -> float:
    """Seconds of a training: those since it was begun or, if it was resumed then, of all its epochs."""
    return max(time.monotonic() - begun, sum(float(line.get("seconds", 0.0)) for line in history))


def keep_weights(step: NetworkStep, place: Place, model: nn.Module, halved: bool = True) -> None:
    tensors = contiguous_copies(model.state_dict())
    kept = {name: value.half() if halved and value.ndim == 4 else value for name, value in tensors.items()}
    ensure_folder(place.folder(step))
    write_atomically(place.folder(step) / WEIGHTS, serialize(kept))


def with_weights(step: NetworkStep, place: Place, model: nn.Module) -> nn.Module:
    path = place.folder(step) / WEIGHTS
    load_weights(model, checkpoints.fit(read_weights(path), model, str(path)), str(path))
    return model.eval()
