"""Models by name: demo, zoo:NAME, torchvision:NAME, timm:NAME, path/to/file.py:factory, or a folder that gdws.save wrote."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gdws import checkpoints, storage, zoo
from gdws.contract import check_weights
from gdws.errors import GdwsError


class Normalized(nn.Module):
    """A network that wants normalised images, behind one that takes [0, 1]."""

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.normalize = zoo.Normalize(mean, std)
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(self.normalize(x))
        return logits


def resolve(name: str, weights: Path | None = None) -> nn.Module:
    """Build the model of this name, in eval mode, with the weights of a file if one is given."""
    if (Path(name) / "gdws.json").is_file():
        return _saved(name, weights)
    model = _architecture(name)
    if weights is not None:
        network = model.network if isinstance(model, Normalized) else model
        tensors = checkpoints.fit(storage.read_weights(weights), network, str(weights))
        storage.load_weights(network, tensors, str(weights))
    check_weights(model)
    return model.eval()


def embedded() -> nn.Module:
    """The robust CIFAR-10 model that comes with the package."""
    model = zoo.build("tiny")
    with resources.as_file(resources.files("gdws") / "embedded" / "model.safetensors") as path:
        storage.load_weights(model, storage.read_weights(path), "the embedded model")
    return model.eval()


def _architecture(name: str) -> nn.Module:
    kind, _, rest = name.partition(":")
    if name == "demo":
        return embedded()
    if kind == "zoo" and rest:
        return zoo.build(rest)
    if kind in ("torchvision", "timm") and rest:
        return _from_library(kind, rest)
    path, _, factory = name.rpartition(":")
    if path.endswith(".py") and factory:
        return _from_file(Path(path), factory)
    raise GdwsError(
        f"unknown model {name!r}: expected demo, zoo:NAME, torchvision:NAME, timm:NAME, FILE.py:FACTORY or a folder "
        "that gdws compress wrote"
    )


def _saved(folder: str, weights: Path | None) -> nn.Module:
    if weights is not None:
        raise GdwsError(f"{folder} is a compressed model with its own weights: expected no --weights")
    base = storage.read_record(folder)["base"]
    # The record may come from a stranger: it may name an architecture, but not code to run.
    if not isinstance(base, str) or base.rpartition(":")[0].endswith(".py"):
        raise GdwsError(f"{folder} was made from {base!r}: load it in Python with gdws.load(folder, model)")
    return storage.load(folder, _architecture(base))


def _from_library(library: str, name: str) -> nn.Module:
    try:
        module = importlib.import_module("timm" if library == "timm" else "torchvision.models")
    except ImportError as error:
        raise GdwsError(f"{library}:{name} needs the package {library}: {error}") from None
    build: Callable[..., Any] = module.create_model if library == "timm" else module.get_model
    try:
        network = build(name)
    except Exception as error:
        raise GdwsError(f"{library} cannot build {name!r}: {error}") from None
    settings = getattr(network, "pretrained_cfg", None) or {}
    mean, std = settings.get("mean", zoo.IMAGENET[0]), settings.get("std", zoo.IMAGENET[1])
    return Normalized(network, tuple(mean), tuple(std))


def _from_file(path: Path, factory: str) -> nn.Module:
    if not path.is_file():
        raise GdwsError(f"there is no file {path}: expected Python code with a function {factory}()")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    build = getattr(module, factory, None)
    model = build() if callable(build) else None
    if not isinstance(model, nn.Module):
        raise GdwsError(f"{path}:{factory} gives a {type(model).__name__}: expected a function that returns an nn.Module")
    return model
