"""The operators of ONNX that gdws itself exports networks to, as functions of tensors through which gradients pass.

Those of any other network are in gdws.deploy.onnx.general, which has these, too.

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

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.rearranging import (
    Attributes,
    cast,
    constant,
    counted,
    expanded,
    filled,
    numbers_in,
    padded_all,
    picked,
    reshaped,
    scattered,
    sliced,
    split,
    squeezed,
    tiled,
    unsqueezed,
)
from gdws.deploy.onnx.spatial import (
    average_pool,
    convolution,
    depth_to_space,
    max_pool,
    resized,
    space_to_depth,
    transposed_convolution,
)

NUMBERS = (
    "Expand",
    "Pad",
    "ReduceL1",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "ReduceSumSquare",
    "Reshape",
    "Resize",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
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


def _product(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, weight, bias = [*inputs, None][:3]
    matrix = weight if attributes.get("transB", 0) else weight.T
    return F.linear(x, attributes.get("alpha", 1.0) * matrix, bias)


def _over_axes(function: Callable[..., Tensor]) -> Callable[[list[Any], Attributes], Tensor]:
    """A reduction of tensors as ONNX calls it; without axes it takes all."""

    def reduce(inputs: list[Any], attributes: Attributes) -> Tensor:
        axes = numbers_in(inputs[1]) if len(inputs) > 1 else list(range(inputs[0].ndim))
        return function(inputs[0], dim=axes, keepdim=bool(attributes.get("keepdims", 1)))

    return reduce


def _batch_norm(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, scale, shift, mean, variance = inputs
    return F.batch_norm(x, mean, variance, scale, shift, eps=attributes.get("epsilon", 1e-5))


def _group_norm(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, scale, shift = inputs
    if len(scale) != x.shape[1]:
        raise GdwsError(f"a GroupNormalization has {len(scale)} scales: expected one for each of {x.shape[1]} channels")
    return F.group_norm(x, attributes["num_groups"], scale, shift, attributes.get("epsilon", 1e-5))


def _layer_norm(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, scale, shift = [*inputs, None][:3]
    return F.layer_norm(x, x.shape[attributes.get("axis", -1) :], scale, shift, attributes.get("epsilon", 1e-5))


def of_tensors(function: Callable[..., Tensor]) -> Callable[[list[Any], Attributes], Tensor]:
    """A function that has no attributes."""
    return lambda inputs, _: function(*inputs)


OPERATORS: dict[str, Callable[[list[Any], Attributes], Tensor | Sequence[Tensor]]] = {
    "Abs": of_tensors(torch.abs),
    "Add": of_tensors(torch.add),
    "And": of_tensors(torch.logical_and),
    "ArgMax": lambda inputs, attributes: inputs[0].argmax(attributes.get("axis", 0), bool(attributes.get("keepdims", 1))),
    "AveragePool": average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": cast,
    "Ceil": of_tensors(torch.ceil),
    "Celu": lambda inputs, attributes: F.celu(inputs[0], attributes.get("alpha", 1.0)),
    "Clip": lambda inputs, _: torch.clamp(inputs[0], *inputs[1:]),
    "Concat": lambda inputs, attributes: torch.cat(inputs, attributes["axis"]),
    "Constant": constant,
    "ConstantOfShape": filled,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "Cos": of_tensors(torch.cos),
    "DepthToSpace": depth_to_space,
    "DequantizeLinear": lambda inputs, _: inputs[0],
    "Div": lambda inputs, _: torch.div(*inputs, rounding_mode=None if inputs[0].is_floating_point() else "trunc"),
    "Einsum": lambda inputs, attributes: torch.einsum(attributes["equation"].decode(), inputs),
    "Elu": lambda inputs, attributes: F.elu(inputs[0], attributes.get("alpha", 1.0)),
    "Equal": of_tensors(torch.eq),
    "Erf": of_tensors(torch.erf),
    "Exp": of_tensors(torch.exp),
    "Expand": expanded,
    "Flatten": lambda inputs, attributes: inputs[0].flatten(attributes.get("axis", 1)),
    "Floor": of_tensors(torch.floor),
    "Gather": picked,
    "Gelu": lambda inputs, attributes: F.gelu(inputs[0], approximate=attributes.get("approximate", b"none").decode()),
    "Gemm": _product,
    "GlobalAveragePool": lambda inputs, _: inputs[0].mean(tuple(range(2, inputs[0].ndim)), keepdim=True),
    "GlobalMaxPool": lambda inputs, _: inputs[0].amax(tuple(range(2, inputs[0].ndim)), keepdim=True),
    "Greater": of_tensors(torch.gt),
    "GreaterOrEqual": of_tensors(torch.ge),
    "GroupNormalization": _group_norm,
    "HardSigmoid": lambda inputs, attributes: torch.clamp(
        attributes.get("alpha", 0.2) * inputs[0] + attributes.get("beta", 0.5), 0, 1
    ),
    "HardSwish": of_tensors(F.hardswish),
    "Identity": lambda inputs, _: inputs[0],
    "InstanceNormalization": lambda inputs, attributes: F.instance_norm(
        inputs[0], weight=inputs[1], bias=inputs[2], eps=attributes.get("epsilon", 1e-5)
    ),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda inputs, attributes: F.leaky_relu(inputs[0], attributes.get("alpha", 0.01)),
    "Less": of_tensors(torch.lt),
    "LessOrEqual": of_tensors(torch.le),
    "Log": of_tensors(torch.log),
    "LogSoftmax": lambda inputs, attributes: torch.log_softmax(inputs[0], attributes.get("axis", -1)),
    "MatMul": of_tensors(torch.matmul),
    "Max": lambda inputs, _: functools.reduce(torch.maximum, inputs),
    "MaxPool": max_pool,
    "Min": lambda inputs, _: functools.reduce(torch.minimum, inputs),
    "Mish": of_tensors(F.mish),
    "Mul": of_tensors(torch.mul),
    "Neg": of_tensors(torch.neg),
    "Not": of_tensors(torch.logical_not),
    "Or": of_tensors(torch.logical_or),
    "PRelu": lambda inputs, _: torch.where(inputs[0] < 0, inputs[1] * inputs[0], inputs[0]),
    "Pad": padded_all,
    "Pow": of_tensors(torch.pow),
    "QuantizeLinear": _quantized,
    "Range": counted,
    "Reciprocal": of_tensors(torch.reciprocal),
    "ReduceL1": _over_axes(lambda x, dim, keepdim: x.abs().sum(dim, keepdim)),
    "ReduceL2": _over_axes(torch.linalg.vector_norm),
    "ReduceMax": _over_axes(torch.amax),
    "ReduceMean": _over_axes(torch.mean),
    "ReduceMin": _over_axes(torch.amin),
    "ReduceSum": _over_axes(torch.sum),
    "ReduceSumSquare": _over_axes(lambda x, dim, keepdim: x.square().sum(dim, keepdim)),
    "Relu": of_tensors(torch.relu),
    "Reshape": reshaped,
    "Resize": resized,
    "Round": of_tensors(torch.round),
    "ScatterND": scattered,
    "Selu": of_tensors(F.selu),
    "Shape": lambda inputs, attributes: torch.tensor(inputs[0].shape[attributes.get("start", 0) : attributes.get("end")]),
    "Sigmoid": of_tensors(torch.sigmoid),
    "Sign": of_tensors(torch.sign),
    "Sin": of_tensors(torch.sin),
    "Slice": sliced,
    "Softmax": lambda inputs, attributes: torch.softmax(inputs[0], attributes.get("axis", -1)),
    "Softplus": of_tensors(F.softplus),
    "Softsign": of_tensors(F.softsign),
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Sqrt": of_tensors(torch.sqrt),
    "Squeeze": squeezed,
    "Sub": of_tensors(torch.sub),
    "Sum": lambda inputs, _: functools.reduce(torch.add, inputs),
    "Tanh": of_tensors(torch.tanh),
    "Tile": tiled,
    "Transpose": lambda inputs, attributes: inputs[0].permute(attributes["perm"]),
    "Unsqueeze": unsqueezed,
    "Where": of_tensors(torch.where),
}

READ = {
    "ArgMax": "axis keepdims",
    "AveragePool": "kernel_shape strides pads ceil_mode count_include_pad",
    "BatchNormalization": "epsilon momentum",
    "Cast": "to saturate",
    "Celu": "alpha",
    "Concat": "axis",
    "Constant": "value value_float value_floats value_int value_ints",
    "ConstantOfShape": "value",
    "Conv": "kernel_shape strides dilations pads group",
    "ConvTranspose": "kernel_shape strides dilations pads group output_padding",
    "DepthToSpace": "mode blocksize",
    "DequantizeLinear": "axis",
    "Einsum": "equation",
    "Elu": "alpha",
    "Flatten": "axis",
    "Gather": "axis",
    "Gelu": "approximate",
    "Gemm": "transB alpha",
    "GroupNormalization": "epsilon num_groups stash_type",
    "HardSigmoid": "alpha beta",
    "InstanceNormalization": "epsilon",
    "LayerNormalization": "axis epsilon stash_type",
    "LeakyRelu": "alpha",
    "LogSoftmax": "axis",
    "MaxPool": "kernel_shape strides pads ceil_mode",
    "Pad": "mode",
    "QuantizeLinear": "axis",
    "ReduceL1": "keepdims",
    "ReduceL2": "keepdims",
    "ReduceMax": "keepdims",
    "ReduceMean": "keepdims",
    "ReduceMin": "keepdims",
    "ReduceSum": "keepdims",
    "ReduceSumSquare": "keepdims",
    "Reshape": "allowzero",
    "Resize": "mode coordinate_transformation_mode nearest_mode cubic_coeff_a",
    "Shape": "start end",
    "Softmax": "axis",
    "SpaceToDepth": "blocksize",
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
