"""The operators of ONNX that convolutional networks are exported to, as functions of tensors through which gradients pass.

Each takes its inputs and its attributes. An input is a tensor, None where it is left out, or, for those of NUMBERS, what was a
constant tensor of shapes, axes or paddings as Python numbers: a trace then knows them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gdws.errors import GdwsError

Attributes = dict[str, Any]
NUMBERS = (
    "Expand",
    "Pad",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Unsqueeze",
)
"""Operators whose inputs after the first are numbers."""


def dequantize(inputs: list[Any], attributes: Attributes) -> Tensor:
    """(q - zero point) * scale, both for the whole tensor or one for each slice along an axis."""
    values, scale, zero = [*inputs, None][:3]
    shape = [1] * values.ndim
    if scale.numel() > 1:
        shape[attributes.get("axis", 1)] = -1
    shifted = values.float() if zero is None else values.float() - zero.float().reshape(shape)
    result: Tensor = shifted * scale.reshape(shape)
    return result


def _quantized(inputs: list[Any], attributes: Attributes) -> Tensor:
    """What the rounded value stands for, so that DequantizeLinear has nothing left to do."""
    values, scale, zero = inputs
    limits = torch.iinfo(zero.dtype)
    return torch.fake_quantize_per_tensor_affine(values, scale.reshape(()), zero.reshape(()).int(), limits.min, limits.max)


def _padded(x: Tensor, attributes: Attributes, value: float = 0.0) -> Tensor:
    """ONNX pads all beginnings, then all ends; PyTorch the last axis first."""
    pads = attributes.get("pads", [0, 0, 0, 0])
    return F.pad(x, [pads[1], pads[3], pads[0], pads[2]], value=value) if any(pads) else x


def _convolution(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, weight, bias = [*inputs, None][:3]
    geometry = [attributes.get(name, [1, 1]) for name in ("strides", "dilations")]
    return F.conv2d(_padded(x, attributes), weight, bias, geometry[0], 0, geometry[1], attributes.get("group", 1))


def _max_pool(inputs: list[Any], attributes: Attributes) -> Tensor:
    padded = _padded(inputs[0], attributes, -torch.inf)
    size, stride = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    return F.max_pool2d(padded, size, stride, ceil_mode=bool(attributes.get("ceil_mode", 0)))


def _average_pool(inputs: list[Any], attributes: Attributes) -> Tensor:
    pads = attributes.get("pads", [0, 0, 0, 0])
    if pads[:2] != pads[2:]:
        raise GdwsError(f"an AveragePool has the pads {pads}: expected as many before as after")
    size, stride = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    ceil, counts = bool(attributes.get("ceil_mode", 0)), bool(attributes.get("count_include_pad", 0))
    return F.avg_pool2d(inputs[0], size, stride, pads[:2], ceil, counts)


def _product(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, weight, bias = [*inputs, None][:3]
    matrix = weight if attributes.get("transB", 0) else weight.T
    return F.linear(x, attributes.get("alpha", 1.0) * matrix, bias)


def _over_axes(function: Callable[..., Tensor]) -> Callable[[list[Any], Attributes], Tensor]:
    """A reduction of tensors as ONNX calls it; without axes it takes all."""

    def reduce(inputs: list[Any], attributes: Attributes) -> Tensor:
        axes = _numbers(inputs[1]) if len(inputs) > 1 else list(range(inputs[0].ndim))
        return function(inputs[0], dim=axes, keepdim=bool(attributes.get("keepdims", 1)))

    return reduce


def _batch_norm(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, scale, shift, mean, variance = inputs
    return F.batch_norm(x, mean, variance, scale, shift, eps=attributes.get("epsilon", 1e-5))


def _layer_norm(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, scale, shift = [*inputs, None][:3]
    return F.layer_norm(x, x.shape[attributes.get("axis", -1) :], scale, shift, attributes.get("epsilon", 1e-5))


def _reshaped(inputs: list[Any], attributes: Attributes) -> Tensor:
    """0 stands for as many as there were, unless allowzero is set."""
    x: Tensor = inputs[0]
    sizes, kept = _numbers(inputs[1]), not attributes.get("allowzero", 0)
    return x.reshape([x.shape[axis] if size == 0 and kept else size for axis, size in enumerate(sizes)])


def _expanded(inputs: list[Any], attributes: Attributes) -> Tensor:
    x: Tensor = inputs[0]
    return x.expand(torch.broadcast_shapes(x.shape, tuple(_numbers(inputs[1]))))


def _sliced(inputs: list[Any], attributes: Attributes) -> Tensor:
    x: Tensor = inputs[0]
    starts, ends = map(_numbers, inputs[1:3])
    axes = _numbers(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else range(len(starts))
    steps = _numbers(inputs[4]) if len(inputs) > 4 else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
    return x


def _split(inputs: list[Any], attributes: Attributes) -> Sequence[Tensor]:
    x, axis = inputs[0], attributes.get("axis", 0)
    if len(inputs) > 1:
        return torch.split(x, _numbers(inputs[1]), axis)
    return torch.split(x, -(-x.shape[axis] // attributes["num_outputs"]), axis)


def _pad(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Of the last axes only: those before them stay as they are."""
    x, pads, value = [*inputs, None][:3]
    pads, mode = _numbers(pads), {b"edge": "replicate", b"reflect": "reflect"}.get(attributes.get("mode", b""), "constant")
    if len(inputs) > 3 and inputs[3] is not None:
        raise GdwsError("a Pad names its axes: expected one of all axes")
    last_first = [each for axis in reversed(range(x.ndim)) for each in (pads[axis], pads[axis + x.ndim])]
    while last_first and not any(last_first[-2:]):
        del last_first[-2:]
    return F.pad(x, last_first, mode, None if value is None or mode != "constant" else float(value))


def _squeezed(inputs: list[Any], attributes: Attributes) -> Tensor:
    result: Tensor = inputs[0].squeeze(_numbers(inputs[1]) if len(inputs) > 1 else None)
    return result


def _unsqueezed(inputs: list[Any], attributes: Attributes) -> Tensor:
    x: Tensor = inputs[0]
    axes = _numbers(inputs[1])
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _depth_to_space(inputs: list[Any], attributes: Attributes) -> Tensor:
    if attributes.get("mode") != b"CRD":
        raise GdwsError("a DepthToSpace has depth first: expected mode CRD, as PixelShuffle has it")
    return F.pixel_shuffle(inputs[0], attributes["blocksize"])


def _numbers(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _of_tensors(function: Callable[..., Tensor]) -> Callable[[list[Any], Attributes], Tensor]:
    """A function that has no attributes."""
    return lambda inputs, _: function(*inputs)


OPERATORS: dict[str, Callable[[list[Any], Attributes], Tensor | Sequence[Tensor]]] = {
    "Abs": _of_tensors(torch.abs),
    "Add": _of_tensors(torch.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": lambda inputs, _: torch.clamp(inputs[0], *inputs[1:]),
    "Concat": lambda inputs, attributes: torch.cat(inputs, attributes["axis"]),
    "Conv": _convolution,
    "DepthToSpace": _depth_to_space,
    "DequantizeLinear": lambda inputs, _: inputs[0],
    "Div": _of_tensors(torch.div),
    "Elu": lambda inputs, attributes: F.elu(inputs[0], attributes.get("alpha", 1.0)),
    "Erf": _of_tensors(torch.erf),
    "Exp": _of_tensors(torch.exp),
    "Expand": _expanded,
    "Flatten": lambda inputs, attributes: inputs[0].flatten(attributes.get("axis", 1)),
    "Gather": lambda inputs, attributes: inputs[0].index_select(attributes.get("axis", 0), inputs[1]),
    "Gelu": lambda inputs, attributes: F.gelu(inputs[0], approximate=attributes.get("approximate", b"none").decode()),
    "Gemm": _product,
    "GlobalAveragePool": lambda inputs, _: inputs[0].mean((2, 3), keepdim=True),
    "Greater": _of_tensors(torch.gt),
    "HardSigmoid": lambda inputs, attributes: torch.clamp(
        attributes.get("alpha", 0.2) * inputs[0] + attributes.get("beta", 0.5), 0, 1
    ),
    "HardSwish": _of_tensors(F.hardswish),
    "Identity": lambda inputs, _: inputs[0],
    "InstanceNormalization": lambda inputs, attributes: F.instance_norm(
        inputs[0], weight=inputs[1], bias=inputs[2], eps=attributes.get("epsilon", 1e-5)
    ),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda inputs, attributes: F.leaky_relu(inputs[0], attributes.get("alpha", 0.01)),
    "MatMul": _of_tensors(torch.matmul),
    "Max": lambda inputs, _: functools.reduce(torch.maximum, inputs),
    "MaxPool": _max_pool,
    "Min": lambda inputs, _: functools.reduce(torch.minimum, inputs),
    "Mish": _of_tensors(F.mish),
    "Mul": _of_tensors(torch.mul),
    "PRelu": lambda inputs, _: torch.where(inputs[0] < 0, inputs[1] * inputs[0], inputs[0]),
    "Pad": _pad,
    "Pow": _of_tensors(torch.pow),
    "QuantizeLinear": _quantized,
    "ReduceL2": _over_axes(torch.linalg.vector_norm),
    "ReduceMax": _over_axes(torch.amax),
    "ReduceMean": _over_axes(torch.mean),
    "ReduceSum": _over_axes(torch.sum),
    "Relu": _of_tensors(torch.relu),
    "Reshape": _reshaped,
    "Shape": lambda inputs, attributes: torch.tensor(inputs[0].shape[attributes.get("start", 0) : attributes.get("end")]),
    "Sigmoid": _of_tensors(torch.sigmoid),
    "Slice": _sliced,
    "Softmax": lambda inputs, attributes: torch.softmax(inputs[0], attributes.get("axis", -1)),
    "Softplus": _of_tensors(F.softplus),
    "Split": _split,
    "Sqrt": _of_tensors(torch.sqrt),
    "Squeeze": _squeezed,
    "Sub": _of_tensors(torch.sub),
    "Tanh": _of_tensors(torch.tanh),
    "Transpose": lambda inputs, attributes: inputs[0].permute(attributes["perm"]),
    "Unsqueeze": _unsqueezed,
    "Where": _of_tensors(torch.where),
}

READ = {
    "AveragePool": "kernel_shape strides pads ceil_mode count_include_pad",
    "BatchNormalization": "epsilon momentum",
    "Concat": "axis",
    "Conv": "kernel_shape strides dilations pads group",
    "DepthToSpace": "mode blocksize",
    "DequantizeLinear": "axis",
    "Elu": "alpha",
    "Flatten": "axis",
    "Gather": "axis",
    "Gelu": "approximate",
    "Gemm": "transB alpha",
    "HardSigmoid": "alpha beta",
    "InstanceNormalization": "epsilon",
    "LayerNormalization": "axis epsilon stash_type",
    "LeakyRelu": "alpha",
    "MaxPool": "kernel_shape strides pads ceil_mode",
    "Pad": "mode",
    "QuantizeLinear": "axis",
    "ReduceL2": "keepdims",
    "ReduceMax": "keepdims",
    "ReduceMean": "keepdims",
    "ReduceSum": "keepdims",
    "Reshape": "allowzero",
    "Shape": "start end",
    "Softmax": "axis",
    "Split": "axis num_outputs",
    "Transpose": "perm",
}
"""The attributes that are heeded here. Others may only have the values that they have when they are left out."""


def unread_attribute(onnx: Any, node: Any, version: int, heeded: Mapping[str, str] = READ) -> str | None:
    """An attribute of a node, and its value, that would change what the node does and is not heeded."""
    known = onnx.defs.get_schema(node.op_type, version).attributes
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        usual = known[attribute.name].default_value if attribute.name in known else None
        is_usual = usual is not None and usual.type and value == onnx.helper.get_attribute_value(usual)
        if (
            attribute.name in heeded.get(node.op_type, "").split()
            or is_usual
            or (attribute.name == "dilations" and set(value) == {1})
        ):
            continue
        return f"{attribute.name} {value!r}"[:60]
    return None
