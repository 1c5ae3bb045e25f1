"""Models by name: demo, zoo:NAME, torchvision:NAME, timm:NAME, path/to/file.py:factory, or a folder that gdws.save wrote."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gdws.compression import storage
from gdws.core.checks import check_weights
from gdws.core.weights import load_weights, read_weights
from gdws.errors import GdwsError
from gdws.models import checkpoints, zoo


class Normalized(nn.Module):
    """A network that wants normalized images, wrapped into one that takes images in [0, 1].

    network  takes images of mean 0 and deviation 1 and returns logits (B, classes).
    mean     of each channel, for images in [0, 1].
    std      the standard deviation of each channel.

    >>> import torch
    >>> from gdws import models
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))
    >>> model = models.Normalized(network, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    >>> model(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.normalize = zoo.Normalize(mean, std)
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes) of the network for images x (B, C, H, W) in [0, 1]."""
        logits: Tensor = self.network(self.normalize(x))
        return logits


def resolve(name: str, weights: Path | None = None, classes: int | None = None) -> nn.Module:
    """Build the network that a name stands for, in eval mode.

    name     "demo", "zoo:NAME", "torchvision:NAME", "timm:NAME", "path/to/file.py:function", or a folder that gdws.save wrote.
             The function of a file is called without arguments and returns an nn.Module.
    weights  a file with a state dict (safetensors or torch), such as a public checkpoint. Nothing in it is executed.
    classes  number of classes of a network of the zoo, torchvision or timm. By default that of the weights, else its own.

    Returns an nn.Module that takes images in [0, 1]. Networks of torchvision and timm are wrapped in Normalized. Raises
    GdwsError when the name is unknown, a file or package is missing, or the weights do not fit or are not finite.

    >>> import torch
    >>> from gdws import models
    >>> model = models.resolve("zoo:resnet20", classes=100)
    >>> model(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    """
    if (Path(name) / "gdws.json").is_file():
        return _saved(name, weights)
    model = _architecture(name, classes)
    if weights is not None:
        tensors = checkpoints.fit(read_weights(weights), _inside(model), str(weights))
        if count := _other_classes(name, _inside(model), tensors):
            model = _architecture(name, count)
        load_weights(_inside(model), tensors, str(weights))
    check_weights(model)
    return model.eval()


def embedded() -> nn.Module:
    """The robust CIFAR-10 network that comes with the package, in eval mode.

    Returns an nn.Module that takes images (B, 3, 32, 32) in [0, 1] and returns logits (B, 10). Its classes are those of
    gdws.data.load("demo", "test"). It was trained adversarially on the 50,000 training images of CIFAR-10.

    >>> import torch
    >>> from gdws import models
    >>> models.embedded()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    model = zoo.build("tiny")
    with resources.as_file(resources.files("gdws.models") / "demo" / "model.safetensors") as path:
        load_weights(model, read_weights(path), "the embedded model")
    return model.eval()


def _inside(model: nn.Module) -> nn.Module:
    """The network that the names in a file are of."""
    return model.network if isinstance(model, Normalized) else model


def _other_classes(name: str, model: nn.Module, tensors: Mapping[str, Tensor]) -> int | None:
    """How many classes the tensors are of, if they differ from the model's in that and it can be built so."""
    expected = model.state_dict()
    others = {key: value for key, value in tensors.items() if key in expected and value.shape != expected[key].shape}
    counts = {len(value) for key, value in others.items() if value.ndim and value.shape[1:] == expected[key].shape[1:]}
    weights = any(value.ndim > 1 for value in others.values())  # a bias alone that differs is a mistake
    return counts.pop() if weights and len(counts) == 1 and name.startswith(("zoo:", "torchvision:", "timm:")) else None


def _architecture(name: str, classes: int | None = None) -> nn.Module:
    kind, _, rest = name.partition(":")
    if name == "demo":
        return embedded()
    if kind == "zoo" and rest:
        return zoo.build(rest, classes)
    if kind in ("torchvision", "timm") and rest:
        return _from_library(kind, rest, classes)
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
    model, tensors = _architecture(base), read_weights(Path(folder) / "model.safetensors")
    count = _other_classes(base, model, tensors)
    return storage.load(folder, model if count is None else _architecture(base, count))


def _from_library(library: str, name: str, classes: int | None) -> nn.Module:
    try:
        module = importlib.import_module("timm" if library == "timm" else "torchvision.models")
    except ImportError as error:
        raise GdwsError(f"{library}:{name} needs the package {library}: {error}") from None
    build: Callable[..., Any] = module.create_model if library == "timm" else module.get_model
    try:
        network = build(name) if classes is None else build(name, num_classes=classes)
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
