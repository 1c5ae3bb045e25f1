"""Fixed noise of the shapes that a file's inputs have, to try a network with."""

from __future__ import annotations

import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.signature import Signature

SIDES = (224, 64, 320, 640, 48, 32, 512, 16, 8, 128)
"""Sizes to try for those that a file leaves open; those of usual images first."""
TYPES = {
    **dict.fromkeys(("float16", "float32", "float64", "bfloat16"), torch.float32),
    **{name: getattr(torch, name) for name in ("bool", "int8", "int16", "int32", "int64", "uint8")},
}


def is_single(signature: Signature) -> bool:
    """Whether a file is for one sample at a time."""
    return all(port.shape[:1] == (1,) for port in (*signature.inputs, *signature.outputs))


def noise(signature: Signature, rows: int, side: int = SIDES[0]) -> list[Tensor]:
    """For each input a tensor: floats from 0 to 1, or whole numbers 0 and 1, always the same.

    rows  samples, where the first size is free, or 1 in all inputs and outputs.
    side  of other dynamic axes; the second, of channels, is 3. Sizes that the file has one name for are one.
    """
    generator = torch.Generator().manual_seed(0)
    single = is_single(signature)
    named: dict[str, int] = {}
    tensors = []
    for port in signature.inputs:
        if port.dtype not in TYPES:
            raise GdwsError(f"the input {port.name[:40]!r} is of {port.dtype}: expected floats, whole numbers or truth values")
        shape: list[int] = []
        kind = TYPES[port.dtype]
        # A file that does not say how many axes floats have means images; other numbers may be one.
        axes = port.shape or (("rows", None, "height", "width") if kind == torch.float32 else ())
        for axis, size in enumerate(axes):
            usual = rows if axis == 0 else 3 if axis == 1 and len(axes) == 4 else side
            if isinstance(size, int):
                usual = rows if axis == 0 and single else size
            elif size is not None:
                usual = named.setdefault(size, usual)
            shape.append(usual)
        if kind == torch.float32:
            tensors.append(torch.rand(shape, generator=generator))
        else:
            tensors.append(torch.randint(0, 2, shape, generator=generator).to(kind))
    return tensors
