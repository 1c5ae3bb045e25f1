"""Operators on arrays as arrays: types, shapes, indices and elementwise functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.operators import of_tensors
from gdws.deploy.onnx.rearranging import Attributes, numbers_in

TYPES = {
    **dict.fromkeys((1, 10, 11, 16), torch.float32),  # all floats: float32 is what networks are here
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
}
"""What ONNX numbers its types by."""


def type_of(number: int) -> torch.dtype:
    if number not in TYPES:
        raise GdwsError(f"a tensor is of the type {number}: expected floats, whole numbers or truth values")
    return TYPES[number]


def gather(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, index = inputs
    axis = attributes.get("axis", 0) % x.ndim
    if isinstance(index, int):
        result: Tensor = x.select(axis, index)
        return result
    index = torch.tensor(index, device=x.device) if isinstance(index, list) else index
    places = torch.where(index < 0, index + x.shape[axis], index)
    picked: Tensor = x.index_select(axis, places.flatten())
    return picked if index.ndim == 1 else picked.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def gather_elements(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, index = inputs
    axis = attributes.get("axis", 0)
    return torch.gather(x, axis, torch.where(index < 0, index + x.shape[axis], index))


def sliced(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Steps may be negative, which PyTorch's are not."""
    x, starts, ends, axes, steps = [*inputs, None, None][:5]
    starts, ends = numbers_in(starts), numbers_in(ends)
    axes = list(range(len(starts))) if axes is None else numbers_in(axes)
    steps = [1] * len(starts) if steps is None else numbers_in(steps)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0:
            x = x.index_select(axis, torch.tensor(list(range(x.shape[axis]))[start:end:step], device=x.device))
        else:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
    result: Tensor = x
    return result


def cast(inputs: list[Any], attributes: Attributes) -> Tensor:
    kind = type_of(attributes["to"])
    result: Tensor = inputs[0].to(attributes.get("float", kind) if kind.is_floating_point else kind)
    return result


def filled(inputs: list[Any], attributes: Attributes) -> Tensor:
    """A tensor of this shape, of one value: a float32 zero, unless a tensor of one element says what."""
    value = attributes.get("value")
    value = torch.zeros(1) if value is None else value
    return torch.full(numbers_in(inputs[0]), value.item(), dtype=value.dtype, device=attributes.get("device"))


def counted(inputs: list[Any], attributes: Attributes) -> Tensor:
    start, end, step = (numbers_in(value) for value in inputs)
    return torch.arange(start, end, step, device=attributes.get("device"))


def padded(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, pads, value, axes = [*inputs, None, None][:4]
    axes = range(x.ndim) if axes is None else numbers_in(axes)
    pads = numbers_in(pads)
    count = len(pads) // 2
    ends = {axis % x.ndim: (pads[k], pads[k + count]) for k, axis in enumerate(axes)}
    ends = {axis: pair for axis, pair in ends.items() if not all(isinstance(each, int) and each == 0 for each in pair)}
    mode = {b"edge": "replicate", b"reflect": "reflect", b"wrap": "circular"}.get(attributes.get("mode", b""), "constant")
    if not ends:
        same: Tensor = x
        return same
    if mode == "constant":
        first = min(ends)
        last_first = [each for axis in reversed(range(first, x.ndim)) for each in ends.get(axis, (0, 0))]
        return F.pad(x, last_first, value=0.0 if value is None else float(numbers_in(value)))
    # These modes are for the last axes of a batch: the axes that are padded become those, all others the batch.
    moved = x.movedim(tuple(ends), tuple(range(x.ndim - len(ends), x.ndim)))
    batch = moved.shape[: x.ndim - len(ends)]
    flat = moved.reshape(1, -1, *moved.shape[x.ndim - len(ends) :])
    made = F.pad(flat, [each for pair in reversed(ends.values()) for each in pair], mode)
    return made.reshape(*batch, *made.shape[2:]).movedim(tuple(range(x.ndim - len(ends), x.ndim)), tuple(ends))


def divided(inputs: list[Any], attributes: Attributes) -> Tensor:
    whole = not any(isinstance(x, float) or (isinstance(x, Tensor) and x.is_floating_point()) for x in inputs)
    return torch.div(*inputs, rounding_mode="trunc" if whole else None)


def remainder(inputs: list[Any], attributes: Attributes) -> Tensor:
    return torch.fmod(*inputs) if attributes.get("fmod", 0) else torch.remainder(*inputs)


def top(inputs: list[Any], attributes: Attributes) -> Sequence[Tensor]:
    count = numbers_in(inputs[1])
    largest, ordered = bool(attributes.get("largest", 1)), bool(attributes.get("sorted", 1))
    return torch.topk(inputs[0], count[0] if isinstance(count, list) else count, attributes.get("axis", -1), largest, ordered)


def reduced(function: Callable[..., Tensor]) -> Callable[[list[Any], Attributes], Tensor]:
    """A function of a tensor, its axes and whether they are kept; without axes of all of them, or of none if that is said."""

    def reduce(inputs: list[Any], attributes: Attributes) -> Tensor:
        x, axes = [*inputs, None][:2]
        axes = None if axes is None else numbers_in(axes)
        if not axes and attributes.get("noop_with_empty_axes", 0):
            result: Tensor = x
            return result
        return function(x, tuple(axes or range(x.ndim)), bool(attributes.get("keepdims", 1)))

    return reduce


def product_over(x: Tensor, axes: Sequence[int], kept: bool) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=kept)
    return x


def general_product(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, weight, bias = [*inputs, None][:3]
    left = x.T if attributes.get("transA", 0) else x
    right = weight.T if attributes.get("transB", 0) else weight
    made: Tensor = attributes.get("alpha", 1.0) * (left @ right)
    return made if bias is None else made + attributes.get("beta", 1.0) * bias


def flattened(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Into two axes, of which the first may be of one element."""
    x, axis = inputs[0], attributes.get("axis", 1) % (inputs[0].ndim + 1)
    result: Tensor = x.reshape(1, -1) if axis == 0 else x.flatten(axis) if axis < x.ndim else x.unsqueeze(-1)
    return result.flatten(0, -2) if result.ndim > 2 else result


def transposed(inputs: list[Any], attributes: Attributes) -> Tensor:
    result: Tensor = inputs[0].permute(attributes.get("perm") or list(reversed(range(inputs[0].ndim))))
    return result


def depth_to_space(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, size = inputs[0], attributes["blocksize"]
    if attributes.get("mode", b"DCR") == b"DCR":  # the block's place comes before the channel
        channels = x.shape[1] // size**2
        x = x.unflatten(1, (size * size, channels)).transpose(1, 2).flatten(1, 2)
    return F.pixel_shuffle(x, size)


def triangle(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, diagonal = [*inputs, None][:2]
    offset = 0 if diagonal is None else numbers_in(diagonal)
    return (torch.triu if attributes.get("upper", 1) else torch.tril)(x, offset)


ARRAYS: dict[str, Callable[[list[Any], Attributes], Tensor | Sequence[Tensor]]] = {
    "ArgMin": lambda inputs, attributes: inputs[0].argmin(attributes.get("axis", 0), bool(attributes.get("keepdims", 1))),
    "Cast": cast,
    "ConstantOfShape": filled,
    "DepthToSpace": depth_to_space,
    "Div": divided,
    "Dropout": lambda inputs, _: inputs[0],
    "Flatten": flattened,
    "Gather": gather,
    "GatherElements": gather_elements,
    "Gemm": general_product,
    "LpNormalization": lambda inputs, attributes: F.normalize(
        inputs[0], float(attributes.get("p", 2)), attributes.get("axis", -1)
    ),
    "Mean": lambda inputs, _: functools.reduce(torch.add, inputs) / len(inputs),
    "Mod": remainder,
    "Pad": padded,
    "Range": counted,
    "ReduceL1": reduced(lambda x, axes, kept: x.abs().sum(axes, keepdim=kept)),
    "ReduceL2": reduced(lambda x, axes, kept: torch.linalg.vector_norm(x, dim=axes, keepdim=kept)),
    "ReduceLogSumExp": reduced(lambda x, axes, kept: x.logsumexp(axes, keepdim=kept)),
    "ReduceMax": reduced(lambda x, axes, kept: x.amax(axes, keepdim=kept)),
    "ReduceMean": reduced(lambda x, axes, kept: x.mean(axes, keepdim=kept)),
    "ReduceMin": reduced(lambda x, axes, kept: x.amin(axes, keepdim=kept)),
    "ReduceProd": reduced(product_over),
    "ReduceSum": reduced(lambda x, axes, kept: x.sum(axes, keepdim=kept)),
    "ReduceSumSquare": reduced(lambda x, axes, kept: x.square().sum(axes, keepdim=kept)),
    "Size": lambda inputs, _: torch.tensor(inputs[0].numel()),
    "Slice": sliced,
    "Tan": of_tensors(torch.tan),
    "ThresholdedRelu": lambda inputs, attributes: inputs[0] * (inputs[0] > attributes.get("alpha", 1.0)),
    "Tile": lambda inputs, _: inputs[0].repeat(numbers_in(inputs[1])),
    "TopK": top,
    "Transpose": transposed,
    "Trilu": triangle,
    "Xor": of_tensors(torch.logical_xor),
}

READ = {
    "ArgMin": "axis keepdims",
    "Dropout": "seed",
    "GatherElements": "axis",
    "Gemm": "transA transB alpha beta",
    **dict.fromkeys(("GRU", "LSTM"), "direction hidden_size linear_before_reset"),
    "LpNormalization": "axis p",
    "Mod": "fmod",
    **dict.fromkeys(
        (f"Reduce{kind}" for kind in ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")),
        "keepdims noop_with_empty_axes",
    ),
    "ThresholdedRelu": "alpha",
    "TopK": "axis largest sorted",
    "Trilu": "upper",
}
