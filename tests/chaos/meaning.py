"""What spoiled files mean, read without gdws and, where that is possible, without the libraries that gdws reads them with."""

from __future__ import annotations

import ast
import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chaos.case import Wrong

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Of safetensors, by name."""


def safetensors(content: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            kind = TYPES[entry["dtype"]]
            flat = torch.frombuffer(bytearray(data[start:end]), dtype=kind) if end > start else torch.empty(0, dtype=kind)
            found[name] = flat.reshape(entry["shape"])
    return found


def metadata(content: bytes) -> Any:
    """The record that gdws keeps in a checkpoint."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["gdws"])


def npz(content: bytes, name: str) -> np.ndarray:
    """The array `name` or `test_name` of an .npz file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        prefix = "" if "images.npy" in names or "images" in names else "test_"
        (member,) = [each for each in names if each.removesuffix(".npy") == prefix + name]
        return _npy(archive.read(member))


def plain(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """What is compared of an array: type, shape, and every bit of its values."""
    return array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes()


def _npy(content: bytes) -> np.ndarray:
    wide = content[6] > 1
    (size,) = struct.unpack_from("<I" if wide else "<H", content, 8)
    start = 12 if wide else 10
    header = ast.literal_eval(content[start : start + size].decode("latin1"))
    kind, count = np.dtype(header["descr"]), math.prod(header["shape"])
    flat = np.frombuffer(content[start + size :][: count * kind.itemsize], kind)
    return flat.reshape(header["shape"], order="F" if header["fortran_order"] else "C")


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """The same names, types, shapes and bits; names may lack what all of the expected have in front."""
    for name, value in found.items():
        wanted = expected.get(name)
        if wanted is None:
            wanted = next((each for other, each in expected.items() if other.endswith(f".{name}")), None)
        if wanted is None:
            raise Wrong(f"{what} gave {name}, which is not in the file")
        if wanted.dtype in (torch.float16, torch.bfloat16) and value.dtype == torch.float32:
            wanted = wanted.float()
        if not value.is_floating_point() and torch.equal(wanted.to(value.dtype).to(wanted.dtype), wanted):
            wanted = wanted.to(value.dtype)  # a counter that training scripts made a float
        if value.shape != wanted.shape or value.dtype != wanted.dtype or bits(value) != bits(wanted):
            raise Wrong(f"{what} gave {name} as {value.dtype} {tuple(value.shape)}: other numbers than the file has")


def bits(value: Tensor) -> bytes:
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""


def check_contained(found: Mapping[str, Tensor], content: bytes, what: str) -> None:
    """What was read of a file that keeps its numbers as they are must be in it, bit by bit."""
    for name, value in found.items():
        if bits(value) not in content:
            raise Wrong(f"{what} gave {name} with numbers that are not in the file")


def check_record(found: Any, given: Any, pristine: Any, what: str, at: str = "") -> None:
    """A record that was read is the one in the file, with the types that such a record has.

    pristine: one that gdws wrote. Numbers must stay what they were, finite, and counts not below zero.
    """
    if isinstance(given, dict) and isinstance(found, dict):
        for key in {*found, *given}:
            if key not in given or key not in found:
                if not (key not in given and key in OPTIONAL):
                    raise Wrong(f"{what}: {at}.{key} is {'in the file alone' if key in given else 'made up'}")
                continue
            pattern = pristine.get(key) if isinstance(pristine, dict) else None
            check_record(found[key], given[key], pattern, what, f"{at}.{key}")
    elif isinstance(given, list) and isinstance(found, list):
        if len(given) != len(found):
            raise Wrong(f"{what}: {at} has {len(found)} entries, {len(given)} in the file")
        for number, (one, other) in enumerate(zip(found, given, strict=True)):
            pattern = pristine[min(number, len(pristine) - 1)] if isinstance(pristine, list) and pristine else None
            check_record(one, other, pattern, what, f"{at}[{number}]")
    elif isinstance(given, bool) != isinstance(found, bool) or found != (float(given) if isinstance(found, float) else given):
        raise Wrong(f"{what}: {at} is {str(found)[:60]!r}, in the file {str(given)[:60]!r}")
    if given is not None or at.rpartition(".")[2] not in NULLABLE:
        _check_kind(given, pristine, f"{what}: {at}")


NULLABLE = ("attack", "measured", "fidelity", "image shape", "seconds", "dense_seconds", "dense_nonzeros", "change", "plan")
OPTIONAL = (
    "tensor cores",
    "image shape",
    "fidelity",
    "seconds",
    "dense_seconds",
    "dense_nonzeros",
    "change",
    "attacked",
    "attacked_agreed",
    "attacked_lost",
    "objective",
    "inputs",
    "others",
    "output change",
    "metric change",
)
"""What records of earlier versions lack."""


def _check_kind(value: Any, pristine: Any, what: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Wrong(f"{what} is {value}, which was accepted")
    if pristine is None:
        return
    number = isinstance(pristine, int | float) and not isinstance(pristine, bool)
    if number:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        right = right and (not isinstance(pristine, int) or isinstance(value, int))
    else:
        right = isinstance(value, type(pristine))
    if not right:
        raise Wrong(
            f"{what} is {type(value).__name__} {str(value)[:60]!r}, which was accepted: expected {type(pristine).__name__}"
        )
    if isinstance(pristine, int) and number and value < 0 <= pristine:
        raise Wrong(f"{what} is {value}, which was accepted: expected a count")
