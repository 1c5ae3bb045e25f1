"""Weights in files and in models: read without ever running what a file holds, checked against the model, put in its place."""

from __future__ import annotations

import os
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gdws.core.errors import GdwsError, first_line
from gdws.core.reading.limits import check_bytes
from gdws.core.reading.storages import declared_bytes

NESTS = ("state_dict", "model_state_dict", "net", "model")
"""Where training scripts put the state dict."""
DEEPEST = 4
"""Dicts around one another in which it is looked for."""
TYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool}
TYPES |= {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

_SCALAR: Any = np.float64(0).__reduce__()[0]
HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    Namespace,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("bool", "int32", "int64", "float32", "float64")),
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""What training scripts put besides tensors and PyTorch refuses by default: command-line arguments and numpy's numbers. These
only hold values: to build one runs no code of the file's choosing."""


def dense(value: Tensor) -> Tensor:
    """The values of a tensor of any kind, in one that can be computed with."""
    plain = value.detach().dequantize() if value.is_quantized else value.detach()
    plain = plain if plain.layout == torch.strided else plain.to_dense()
    return plain if plain.dtype in TYPES or plain.is_complex() else plain.to(torch.float64)


def contiguous_copies(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies as a safetensors file wants them: on the CPU, contiguous, with no memory in common."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise GdwsError(
                f"{name} is a {type(value).__name__}: expected tensors alone in the state dict, to be kept in a file"
            )
        if value.dtype not in TYPES or value.layout != torch.strided:
            kind = f"a {value.layout} tensor of {value.dtype}".replace("torch.", "")
            raise GdwsError(f"{name} is {kind}: expected plain tensors of floats, integers or bools, to be kept in a file")
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, or of a torch file read without running anything in it.

    A torch file may be of the format before PyTorch 1.6, and may hold a training state (epochs, an optimizer, the arguments of
    the command) around the state dict, but no objects of anyone's own classes.
    """
    if not os.path.isfile(path):  # False also for names that no file can have
        raise GdwsError(f"there is no file {path}: expected weights (safetensors, or a torch state dict)")
    size = path.stat().st_size
    try:
        if path.suffix == ".safetensors":
            return _checked(load_file(path), path, size)
        _check_storages(path, size)
        with torch.serialization.safe_globals(HARMLESS):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except GdwsError:
        raise
    except Exception as error:  # a torn pickle fails in any way, a foreign one with an exception class of its own
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        if foreign is None:
            raise GdwsError(f"{path} cannot be read ({first_line(error)}): is it truncated?") from None
        raise GdwsError(
            f"{path} holds {foreign[1]} besides tensors and is not read: expected a state dict (where you trust the file, "
            "write that alone with torch.save)"
        ) from None
    return _checked(find_state_dict(found, str(path)), path, size)


def _check_storages(path: Path, size: int) -> None:
    """Refuse storages that take too much memory or were damaged: torch asks for memory first, and looks at no checksum."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:  # in which torch packs nothing, but reads what somebody else packed
            unpacked = sum(member.file_size for member in archive.infolist())
            check_bytes(path, unpacked, size)
            if damaged := archive.testzip():
                raise GdwsError(f"{path} holds {damaged[:40]!r} with a wrong checksum: expected a file that is not damaged")
    else:
        unpacked = size
    declared = declared_bytes(path)
    if declared > unpacked:
        raise GdwsError(f"{path} declares {declared:,} bytes of tensors: expected at most its own {unpacked:,}")


def _checked(tensors: dict[str, Tensor], path: Path, size: int) -> dict[str, Tensor]:
    """Tensors as a network has them: plain ones, which take no more memory than such a file may."""
    for name, value in tensors.items():
        plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_nested
        if not plain or value.dtype not in TYPES:
            kind = f"a {value.layout} tensor of {value.dtype} on {value.device}".replace("torch.", "")
            raise GdwsError(f"{path} holds {kind} in {name!r}: expected plain tensors of floats, integers or bools")
    # Views of one small storage count as what a copy of them takes.
    check_bytes(path, sum(value.numel() * value.element_size() for value in tensors.values()), size)
    return tensors


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
        if value.is_floating_point() and not tensors[name].is_floating_point():
            raise GdwsError(f"{source} holds {tensors[name].dtype} in {name}: expected floating-point weights")
        if not value.is_floating_point() and not _same_after(tensors[name], value.dtype):
            raise GdwsError(f"{source} holds {tensors[name].dtype} in {name} that is not whole: expected {value.dtype}")
        if tensors[name].is_floating_point() and not bool(tensors[name].isfinite().all()):
            raise GdwsError(f"{source} holds NaN or infinite values in {name}: expected finite weights")
    floats = [value.dtype for value in tensors.values() if value.is_floating_point()]
    if floats:
        model.to(floats[0])  # buffers that are not in the file follow the others
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point() and name in tensors:
            value.data = value.data.to(tensors[name].dtype)
    model.load_state_dict(tensors)


def _same_after(value: Tensor, kind: torch.dtype) -> bool:
    """Whether a type holds these numbers."""
    return torch.equal(value.to(kind).to(value.dtype), value)


def find_state_dict(found: Any, source: str) -> dict[str, Tensor]:
    """The state dict in what a torch file holds: that itself, or a dict with it under one of NESTS."""
    inner = found
    for _ in range(DEEPEST):
        if not isinstance(inner, dict):
            break
        if inner and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in inner.items()):
            return dict(inner)
        found, inner = inner, next((inner[nest] for nest in NESTS if isinstance(inner.get(nest), dict)), None)
    holds = f"a {type(found).__name__}"
    if isinstance(found, dict):
        names = [name if isinstance(name, str) else f"a {type(name).__name__}" for name in list(found)[:4]]
        holds = f"a dict of {', '.join(name[:40] for name in names) or 'nothing'}"
    raise GdwsError(f"{source} holds {holds}: expected a state dict of tensors, alone or under one of {', '.join(NESTS)}")
