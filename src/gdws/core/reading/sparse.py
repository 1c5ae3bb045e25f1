"""Tensors of which most values are zero, as their non-zeros.

In the file a tensor NAME is two: NAME holds the values that are not zero, in order, (n,); NAME:gaps holds bytes that say where
they are. A byte below 255 is the number of zeros before the next value; 255 is 255 zeros with no value after them. The shape is
said elsewhere (gdws.json).

At 90, 95 and 99 % zeros of float32 this takes 0.125, 0.0625 and 0.0127 of the dense bytes; with a bit for each position in the
place of gaps it would be 0.131, 0.081 and 0.041.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.reading.limits import check_bytes

GAPS = ":gaps"
"""No name of a tensor in a network has a colon... and none of ours ends so."""
LONGEST = 255
WORTH = 0.5
"""Of the dense bytes: tensors are packed where all together take no more."""


def pack(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, tuple[int, ...]]]:
    """Tensors as they are stored, and the shapes of those that are stored as their non-zeros: none, or all that gain by it."""
    packed: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in tensors.items():
        parts = _packed(name, value) if value.is_floating_point() and value.ndim > 1 else {name: value}
        if _bytes(parts) < _bytes({name: value}):
            shapes[name] = tuple(value.shape)
            packed |= parts
        else:
            packed[name] = value
    if not shapes or _bytes(packed) > WORTH * _bytes(tensors):
        return dict(tensors), {}
    return packed, shapes


def unpack(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], path: Path) -> dict[str, Tensor]:
    """The dense tensors of what `pack` gave. Refuses whatever it could not have given. path: the file, for messages."""
    dense = {name: value for name, value in tensors.items() if name.removesuffix(GAPS) not in shapes}
    size = path.stat().st_size
    declared = _bytes(dense)
    for name, shape in shapes.items():
        values, gaps = tensors.get(name), tensors.get(f"{name}{GAPS}")
        if values is None or gaps is None or values.ndim != 1 or gaps.ndim != 1 or gaps.dtype != torch.uint8:
            raise GdwsError(f"{path} lacks the values or the gaps of {name!r}: expected both, one after another")
        declared += math.prod(shape) * values.element_size()
        check_bytes(path, declared, size)
        steps = gaps.long() + (gaps < LONGEST)
        places = steps.cumsum(0)[gaps < LONGEST] - 1
        if len(places) != len(values) or int(steps.sum()) > math.prod(shape):
            raise GdwsError(f"{path} has {len(values)} values of {name!r} in {len(places)} places: expected places in {shape}")
        dense[name] = values.new_zeros(math.prod(shape)).index_copy_(0, places, values).view(shape)
    return dense


def _packed(name: str, value: Tensor) -> dict[str, Tensor]:
    flat = value.flatten()
    places = flat.nonzero()[:, 0]
    before = torch.diff(places, prepend=places.new_tensor([-1])) - 1
    skips = before // LONGEST
    gaps = torch.full((len(places) + int(skips.sum()),), LONGEST, dtype=torch.uint8)
    gaps[torch.arange(len(places)) + skips.cumsum(0)] = (before % LONGEST).to(torch.uint8)
    return {name: flat[places], f"{name}{GAPS}": gaps}


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors.values())
