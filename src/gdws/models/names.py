"""Models by name: demo, zoo:NAME, torchvision:NAME, timm:NAME, hf:REPO, path/to/file.py:factory, path/to/file.onnx, or a folder
that gdws.save wrote or the Hugging Face hub."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gdws.compression import storage
from gdws.compression.compaction.rebuild import other_classes
from gdws.core.checks import check_weights
from gdws.core.errors import GdwsError, first_line
from gdws.core.reading.limits import check_bytes
from gdws.core.reading.weights import load_weights, read_weights
from gdws.core.unwrap import Normalized, unwrap
from gdws.data import Dataset
from gdws.models import checkpoints, hub, zoo
from gdws.models.onnx.load import from_onnx

HARMLESS = re.compile(r"demo|(zoo|torchvision|timm):[\w.-]+", re.ASCII)
"""Names that a folder may choose: networks of installed packages, with random weights."""

BYTES_A_CLASS = 20_000
"""Of a wide head in training: 2,048 weights and some more, rarely in one copy."""


class BaseNeeded(GdwsError):
    """A folder can only be read by way of the network that it was made from: `base`, a name with a risk, or None if unknown."""

    def __init__(self, message: str, base: str | None) -> None:
        super().__init__(message)
        self.base = base


def resolve(
    name: str, weights: Path | None = None, classes: int | None = None, *, base: str | None = None, layers: bool = False
) -> nn.Module:
    """Build the network that a name stands for, in eval mode.

    name     "demo", "zoo:NAME", "torchvision:NAME", "timm:NAME", "path/to/file.py:function", "path/to/file.onnx", or a folder
             that gdws.save wrote; "hf:OWNER/NAME", which is fetched from the Hugging Face hub, or a folder with its config.json
             and model.safetensors. The function of a file is called without arguments and returns an nn.Module; the file is
             code, and may do whatever you may. An ONNX file is data (gdws.models.from_onnx).
    weights  a file with a state dict (safetensors or torch), such as a public checkpoint. Nothing in it is executed.
    base     of a folder: the network that it was made from, instead of the one whose name the folder remembers. A remembered
             FILE.py:FACTORY is untrusted and is not run, nor is anything fetched that a folder names
             (hf:..., timm:hf-hub:...); the folder's exported file stands for the network. A remembered FILE.onnx is read if it
             is where the name says, below the present folder, or beside the folder of the network.
    layers   of a folder: refuse the exported file, which has none.
    classes  number of classes of a network of the zoo, torchvision or timm. By default that of the weights, else its own.

    Returns an nn.Module that takes images in [0, 1]. Networks of others are wrapped in Normalized where they want that. Raises
    GdwsError when the name is unknown, a file or package is missing, or the weights do not fit or are not finite.

    >>> import torch
    >>> from gdws import models
    >>> model = models.resolve("zoo:resnet20", classes=100)
    >>> model(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    """
    if is_folder(name):
        return _saved(name, weights, base, layers)
    model = _architecture(name, classes)
    if weights is not None:
        tensors = checkpoints.fit(read_weights(weights), _inside(model), str(weights))
        if count := _other_classes(name, _inside(model), tensors):
            model = _architecture(name, count)
        load_weights(_inside(model), tensors, str(weights))
    check_weights(model)
    return model.eval()


def is_folder(name: str) -> bool:
    """Whether this names a network that gdws.save wrote."""
    return os.path.isfile(Path(name) / "gdws.json")


def is_code(name: str) -> bool:
    """Whether this names FILE.py:FACTORY."""
    return name.rpartition(":")[0].endswith(".py")


def has_random_weights(name: str) -> bool:
    """Whether this names an architecture alone, which is built for any number of classes."""
    return name.startswith(("zoo:", "torchvision:", "timm:"))


def is_onnx(name: str) -> bool:
    """Whether this names an ONNX file."""
    return name.endswith(".onnx")


def risk_of(name: str) -> str | None:
    """What speaks against using an untrusted name."""
    if is_code(name):
        return "which is code"
    if is_onnx(name):
        return "which is not beside it"
    return None if HARMLESS.fullmatch(name) else "which may be fetched from elsewhere"


def base_of(folder: str) -> str | None:
    """The name of the network that a folder was made from, as far as the folder knows it."""
    base = storage.read_record(folder)["base"]
    return base if isinstance(base, str) else None


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


def classes_of(data: Dataset) -> int:
    """Of a network for this data: one more than its largest label, for which a file needs no images."""
    largest = int(data.labels.max())
    check_bytes(f"a network for label {largest:,} of {data.name}", BYTES_A_CLASS * (largest + 1))
    return largest + 1


def _other_classes(name: str, model: nn.Module, tensors: Mapping[str, Tensor]) -> int | None:
    """How many classes the tensors are of, if they differ from the model's in that and it can be built so."""
    expected = model.state_dict()
    others = {key: value for key, value in tensors.items() if key in expected and value.shape != expected[key].shape}
    counts = {len(value) for key, value in others.items() if value.ndim and value.shape[1:] == expected[key].shape[1:]}
    weights = any(value.ndim > 1 for value in others.values())  # a bias alone that differs is a mistake
    return counts.pop() if weights and len(counts) == 1 and has_random_weights(name) else None


def _architecture(name: str, classes: int | None = None) -> nn.Module:
    kind, _, rest = name.partition(":")
    if name == "demo":
        return embedded()
    if kind == "zoo" and rest:
        return zoo.build(rest, classes)
    if kind in ("torchvision", "timm") and rest:
        return _from_library(kind, rest, classes)
    if (kind == "hf" and rest) or hub.is_snapshot(name):
        if classes is not None:
            raise GdwsError(f"{name} has classes of its own: expected no number of classes, not {classes}")
        return hub.read(hub.fetch(rest) if kind == "hf" else Path(name), name)
    path, _, factory = name.rpartition(":")
    if is_code(name) and factory:
        return _from_file(Path(path), factory)
    if is_onnx(name):
        return from_onnx(name)
    raise GdwsError(
        f"unknown model {name!r}: expected demo, zoo:NAME, torchvision:NAME, timm:NAME, hf:REPO, FILE.py:FACTORY, FILE.onnx or "
        "a folder that gdws compress wrote, or with config.json and model.safetensors"
    )


def _saved(folder: str, weights: Path | None, base: str | None, layers: bool) -> nn.Module:
    if weights is not None:
        raise GdwsError(f"{folder} is a compressed model with its own weights: expected no --weights")
    remembered = base_of(folder)
    # The record is untrusted.
    risk = None if remembered is None else risk_of(remembered)
    if base is None and remembered is not None and is_onnx(remembered):
        base = _onnx_near(folder, remembered)
    elif base is None and risk is None:
        base = remembered
    if base is None:
        if storage.read_record(folder).get("exported") and not layers:
            return storage.load(folder)
        origin = "does not say what it was made from" if remembered is None else f"was made from {remembered}, {risk}"
        given = remembered or "FILE.py:FACTORY"
        raise BaseNeeded(f"{folder} {origin}: expected --base {given}, or in Python gdws.load(folder, model)", remembered)
    model = _architecture(base)
    record, tensors = storage.read_saved(folder, unwrap(model))
    smaller = tuple(f"{layer}." for layer in record["smaller"])
    count = _other_classes(base, unwrap(model), {key: value for key, value in tensors.items() if not key.startswith(smaller)})
    count = count or other_classes(unwrap(model), record["smaller"])
    return storage.load(folder, model if count is None else _architecture(base, count))


def _onnx_near(folder: str, name: str) -> str | None:
    """The ONNX file that a folder remembers, where a stranger could have sent it along: below the present folder under the
    name as it is, or beside the folder. What a stranger names is opened nowhere else: a path may be on another machine."""
    plain = Path(name)
    inside = not plain.is_absolute() and ".." not in plain.parts
    places = [*([plain] if inside else []), Path(folder).resolve().parent / plain.name]
    return next((str(place) for place in places if os.path.isfile(place)), None)


def _from_library(library: str, name: str, classes: int | None) -> nn.Module:
    try:
        module = importlib.import_module("timm" if library == "timm" else "torchvision.models")
    except Exception as error:  # a torchvision of another PyTorch fails in other ways than by ImportError
        raise GdwsError(f"{library}:{name} needs the package {library}: {first_line(error)}") from None
    build: Callable[..., Any] = module.create_model if library == "timm" else module.get_model
    options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    normalizes = False
    if library == "torchvision":
        families = module, module.segmentation, module.detection
        family = next((part for part in families if name in module.list_models(module=part)), None)
        if family is None:
            raise GdwsError(
                f"torchvision has no network {name!r}: expected one of torchvision.models, or its detection and segmentation"
            )
        normalizes = family is module.detection
        options |= {"weights": None} if family is module else {"weights": None, "weights_backbone": None}  # others are fetched
    try:
        network: nn.Module = build(name, **options)
    except Exception as error:
        raise GdwsError(f"{library} cannot build {name!r}: {error}") from None
    if normalizes:
        return network
    settings = getattr(network, "pretrained_cfg", None) or {}
    mean, std = settings.get("mean", zoo.IMAGENET[0]), settings.get("std", zoo.IMAGENET[1])
    return Normalized(network, tuple(mean), tuple(std))


def _from_file(path: Path, factory: str) -> nn.Module:
    """What the function of a Python file returns. The file can import those beside it, as when it is run."""
    if not os.path.isfile(path):
        raise GdwsError(f"there is no file {path}: expected Python code with a function {factory}()")
    name = f"gdws_file_{path.stem}"  # one that hides no other module
    loader = SourceFileLoader(name, str(path))
    specification = importlib.util.spec_from_loader(name, loader)
    assert specification is not None
    module = sys.modules[name] = importlib.util.module_from_spec(specification)  # where dataclasses look for it
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        # As it stands there: Python's own cache does not see an edit within the second of the last one.
        exec(loader.source_to_code(loader.get_data(str(path)), str(path)), vars(module))
        build = getattr(module, factory, None)
        model = build() if callable(build) else None
    except GdwsError:
        raise
    except (Exception, SystemExit) as error:
        raise GdwsError(f"{path}:{factory} cannot be run: {type(error).__name__}: {first_line(error)}") from error
    finally:
        with suppress(ValueError):  # the file removed it
            sys.path.remove(str(path.parent.resolve()))
    if not callable(build):
        raise GdwsError(f"{path} has no function {factory}: expected one without arguments that returns an nn.Module")
    if not isinstance(model, nn.Module):
        raise GdwsError(f"{path}:{factory} gives a {type(model).__name__}: expected a function that returns an nn.Module")
    return model
