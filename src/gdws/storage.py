"""Compressed networks on disk: a folder with model.safetensors and gdws.json. Nothing in it is ever unpickled."""

from __future__ import annotations

import copy
import json
import os
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gdws.checkpoints import unnested
from gdws.errors import GdwsError, first_line
from gdws.files import new_folder
from gdws.plans import Plan
from gdws.structures import STRUCTURES
from gdws.surgery import replace

FORMAT = "gdws model 1"

_SCALAR: Any = np.float64(0).__reduce__()[0]
HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    Namespace,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("bool", "int32", "int64", "float32", "float64")),
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""What training scripts put beside tensors and PyTorch refuses by default: command-line arguments and numpy's numbers. These
only hold values: to build one runs no code of the file's choosing."""


def save(model: nn.Module, folder: str | os.PathLike[str], *, force: bool = False, base: str | None = None) -> None:
    """Write the model's tensors and what is needed to rebuild it. `base` names the architecture, for the command line.

    The folder appears when it is complete. One that exists is refused unless `force`.
    """
    layers = {
        name: structure.name
        for name, module in model.named_modules()
        for structure in STRUCTURES.values()
        if structure.made(module)
    }
    plan = getattr(model, "gdws_plan", None)
    record = {
        "format": FORMAT,
        "base": base,
        "layers": layers,
        "plan": json.loads(plan.to_json()) if isinstance(plan, Plan) else None,
    }
    tensors = plain(model.state_dict())
    with new_folder(Path(folder), force) as temporary:
        save_file(tensors, temporary / "model.safetensors")
        (temporary / "gdws.json").write_text(json.dumps(record, indent=1))


def load(folder: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """The saved network. `model` gives the architecture of the original; its weights do not matter and it is not changed."""
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
        replace(loaded, {conv: STRUCTURES[structure].empty(conv, own)})
    load_weights(loaded, tensors, str(folder))
    if record["plan"] is not None:
        loaded.gdws_plan = Plan.from_json(json.dumps(record["plan"]))  # type: ignore[assignment]
    return loaded


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies as a safetensors file wants them: on the CPU, contiguous, with no memory in common."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}


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


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, or of a torch file read without running anything in it.

    A torch file may be of the format before PyTorch 1.6, and may hold a training state (epochs, an optimizer, the arguments of
    the command) around the state dict, but no objects of anyone's own classes.
    """
    if not path.is_file():
        raise GdwsError(f"there is no file {path}: expected weights (safetensors, or a torch state dict)")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(HARMLESS):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a torn pickle fails in any way, a foreign one with an exception class of its own
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        if foreign is None:
            raise GdwsError(f"{path} cannot be read ({first_line(error)}): is it truncated?") from None
        raise GdwsError(
            f"{path} holds {foreign[1]} beside tensors and is not read: expected a state dict (where you trust the file, write "
            "that alone with torch.save)"
        ) from None
    return unnested(found, str(path))


def load_weights(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Put a state dict into a model of the same names and shapes, in the type that the tensors have."""
    expected = model.state_dict()
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    if missing or extra:
        raise GdwsError(
            f"{source} does not fit the model: it lacks {missing[:3] or 'nothing'} and has {extra[:3] or 'nothing'} beside "
            f"({len(missing)} missing, {len(extra)} unknown)"
        )
    for name, value in expected.items():
        if value.shape != tensors[name].shape:
            raise GdwsError(
                f"{source} does not fit the model: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(value.shape)}"
            )
        if tensors[name].is_floating_point() and not bool(tensors[name].isfinite().all()):
            raise GdwsError(f"{source} holds NaN or infinite values in {name}: expected finite weights")
    floats = [value.dtype for value in tensors.values() if value.is_floating_point()]
    if floats:
        model.to(floats[0])  # buffers that are not in the file follow the others
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point() and name in tensors:
            value.data = value.data.to(tensors[name].dtype)
    model.load_state_dict(tensors)
