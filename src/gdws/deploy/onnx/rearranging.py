"""Operators of ONNX that make, shape, cut and pick tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gdws.core.errors import GdwsError
from gdws.core.reading.limits import check_bytes
from gdws.deploy.packages import require

Attributes = dict[str, Any]


def numbers_in(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def reshaped(inputs: list[Any], attributes: Attributes) -> Tensor:
    """0 stands for as many as there were, unless allowzero is set."""
    x: Tensor = inputs[0]
    sizes, kept = numbers_in(inputs[1]), not attributes.get("allowzero", 0)
    return x.reshape([x.shape[axis] if size == 0 and kept else size for axis, size in enumerate(sizes)])


def expanded(inputs: list[Any], attributes: Attributes) -> Tensor:
    x: Tensor = inputs[0]
    return x.expand(torch.broadcast_shapes(x.shape, tuple(numbers_in(inputs[1]))))


def sliced(inputs: list[Any], attributes: Attributes) -> Tensor:
    x: Tensor = inputs[0]
    starts, ends = map(numbers_in, inputs[1:3])
    axes = numbers_in(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else range(len(starts))
    steps = numbers_in(inputs[4]) if len(inputs) > 4 else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
    return x


def split(inputs: list[Any], attributes: Attributes) -> Sequence[Tensor]:
    x, axis = inputs[0], attributes.get("axis", 0)
    if len(inputs) > 1:
        return torch.split(x, numbers_in(inputs[1]), axis)
    return torch.split(x, -(-x.shape[axis] // attributes["num_outputs"]), axis)


def padded_all(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Of the last axes only: those before them stay as they are."""
    x, pads, value = [*inputs, None][:3]
    modes = {b"constant": "constant", b"edge": "replicate", b"reflect": "reflect", b"wrap": "circular"}
    pads, mode = numbers_in(pads), modes[attributes.get("mode", b"constant")]
    if len(inputs) > 3 and inputs[3] is not None:
        raise GdwsError("a Pad names its axes: expected one of all axes")
    last_first = [each for axis in reversed(range(x.ndim)) for each in (pads[axis], pads[axis + x.ndim])]
    while last_first and not any(last_first[-2:]):
        del last_first[-2:]
    return F.pad(x, last_first, mode, None if value is None or mode != "constant" else float(value))


def squeezed(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Without some axes of size one, or without all of them."""
    x: Tensor = inputs[0]
    return x.squeeze(numbers_in(inputs[1])) if len(inputs) > 1 else x.squeeze()


def unsqueezed(inputs: list[Any], attributes: Attributes) -> Tensor:
    x: Tensor = inputs[0]
    axes = numbers_in(inputs[1])
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def picked(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Gather: slices along an axis; indices of any shape stand in the place of that axis."""
    x, indices = inputs
    axis = attributes.get("axis", 0) % x.ndim
    if indices.ndim == 1:
        return _slices(x, indices, axis)
    flat: Tensor = _slices(x, indices.reshape(-1), axis)
    return flat.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _slices(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Those of a tensor of whole numbers may be counted from the end: so shapes are."""
    return x.index_select(axis, indices if x.is_floating_point() else indices % x.shape[axis])


def scattered(inputs: list[Any], attributes: Attributes) -> Tensor:
    """ScatterND: a copy with values of its own at some places."""
    x, indices, values = inputs
    result: Tensor = x.index_put(tuple(indices.unbind(-1)), values)
    return result


def constant(inputs: list[Any], attributes: Attributes) -> Tensor:
    """A tensor or numbers that the node itself holds."""
    ((name, value),) = attributes.items()
    if name == "value":
        return _tensor(value)
    if not name.startswith(("value_float", "value_int")):
        raise GdwsError(f"a Constant has {name}: expected numbers")
    return torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)


def filled(inputs: list[Any], attributes: Attributes) -> Tensor:
    """ConstantOfShape: zeros in float32 unless a value says otherwise."""
    value = _tensor(attributes["value"]) if "value" in attributes else torch.zeros(1)
    shape = numbers_in(inputs[0])
    check_bytes("what a ConstantOfShape makes", math.prod(shape) * value.element_size())
    return value.reshape(()).expand(shape).clone()


def counted(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Range: numbers from one to before another in steps."""
    start, limit, step = (each.item() for each in inputs)
    dtype = inputs[0].dtype
    check_bytes("what a Range counts", max(math.ceil((limit - start) / step), 0) * dtype.itemsize)
    return torch.arange(start, limit, step, dtype=dtype)


def tiled(inputs: list[Any], attributes: Attributes) -> Tensor:
    x: Tensor = inputs[0]
    times = numbers_in(inputs[1])
    check_bytes("what a Tile repeats", math.prod(times) * x.numel() * x.element_size())
    return x.repeat(times)


def cast(inputs: list[Any], attributes: Attributes) -> Tensor:
    onnx = require("onnx")
    name = str(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))
    result: Tensor = inputs[0].to(getattr(torch, name))
    return result


def _tensor(proto: Any) -> Tensor:
    return torch.from_numpy(require("onnx").numpy_helper.to_array(proto).copy())
