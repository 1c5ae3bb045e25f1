"""Compressed networks on disk: a folder with model.safetensors and gdws.json. Nothing in it is ever unpickled."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from gdws.core.files import new_folder
from gdws.core.sites import replace_modules
from gdws.core.weights import contiguous_copies, load_weights, read_weights
from gdws.errors import GdwsError
from gdws.planning.plan import Plan, attach_plan, plan_of
from gdws.structures import STRUCTURES

FORMAT = "gdws model 1"


def save(model: nn.Module, folder: str | os.PathLike[str], *, force: bool = False, base: str | None = None) -> None:
    """Save a network: its tensors, its factored layers and its plan, in a folder with model.safetensors and gdws.json.

    model   compressed or not.
    folder  it appears when it is complete.
    force   write over a folder that exists.
    base    name of the architecture, such as "zoo:resnet18", for the command line and gdws.models.resolve.

    Raises GdwsError when the folder exists without force, or cannot be written.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> gdws.save(gdws.compress(model, images, gdws.Macs(0.5), "uniform"), "fast", base="demo")
    >>> gdws.plan_of(gdws.models.resolve("fast")).macs <= 0.5
    True
    """
    layers = {
        name: structure.name
        for name, module in model.named_modules()
        for structure in STRUCTURES.values()
        if structure.is_layer(module)
    }
    plan = plan_of(model)
    record = {
        "format": FORMAT,
        "base": base,
        "layers": layers,
        "plan": None if plan is None else json.loads(plan.to_json()),
    }
    tensors = contiguous_copies(model.state_dict())
    with new_folder(Path(folder), force) as temporary:
        save_file(tensors, temporary / "model.safetensors")
        (temporary / "gdws.json").write_text(json.dumps(record, indent=1))


def load(folder: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Load a network that gdws.save wrote. Nothing in its folder is executed.

    folder  with model.safetensors and gdws.json.
    model   gives the architecture of the original; its weights do not matter and it is not changed.

    Returns the network in eval mode, with its plan. Raises GdwsError when the folder is not whole, or of another architecture.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> gdws.save(gdws.compress(model, images, gdws.Macs(0.5), "uniform"), "saved")
    >>> gdws.plan_of(gdws.load("saved", model)).macs <= 0.5
    True
    """
    record = read_record(folder)
    tensors = read_weights(Path(folder) / "model.safetensors")
    loaded = copy.deepcopy(model).eval()
    for name, structure in record["layers"].items():
        try:
            conv = loaded.get_submodule(name)
        except AttributeError:
            conv = None
        if not isinstance(conv, nn.Conv2d) or structure not in STRUCTURES:
            raise GdwsError(f"{folder} has a {structure} layer {name!r}: expected a convolution of the given model")
        own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        replace_modules(loaded, {conv: STRUCTURES[structure].build_like(conv, own)})
    load_weights(loaded, tensors, str(folder))
    if record["plan"] is not None:
        attach_plan(loaded, Plan.from_json(json.dumps(record["plan"])))
    return loaded


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """gdws.json of a saved network, checked."""
    path = Path(folder) / "gdws.json"
    try:
        record = json.loads(path.read_text())
        if record["format"] != FORMAT or not isinstance(record["layers"], dict):
            raise GdwsError(f"{path} has format {record['format']!r}: expected {FORMAT!r}")
    except OSError as error:
        raise GdwsError(f"cannot read {path}: {error.strerror}, expected a folder that gdws.save wrote") from None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, GdwsError):
            raise
        raise GdwsError(f"{path} is not whole: {error}, expected JSON that gdws.save wrote") from None
    return dict(record)
