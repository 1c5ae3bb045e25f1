"""An ONNX file as a module through which gradients pass, straight through its rounding: what an attack on an int8 file needs.

Rounding has a gradient of zero, so an attack that honours it sees a flat loss: the gradient is masked, which looks like
robustness. Here the values are those of the file, rounded where it rounds, and gradients pass a rounding as if it were none,
within the range that int8 represents (Bengio et al. 2013).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.deploy.runtimes import existing_file, require, unreadable_file
from gdws.errors import GdwsError

Attributes = dict[str, Any]


class StraightThrough(nn.Module):
    """The graph of an ONNX file, float or quantized (QuantizeLinear and DequantizeLinear): images (B, C, H, W) to logits."""

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        onnx = require("onnx")
        try:
            graph = onnx.load(existing_file(Path(path))).graph
        except Exception as error:
            raise unreadable_file(Path(path), "onnx", error) from None
        unknown = sorted({node.op_type for node in graph.node} - OPERATORS.keys())
        if unknown:
            raise GdwsError(f"{path} has the operators {', '.join(unknown)}: expected among {', '.join(OPERATORS)}")
        value_of = onnx.helper.get_attribute_value
        self._steps = [
            (node.op_type, list(node.input), node.output[0], {each.name: value_of(each) for each in node.attribute})
            for node in graph.node
        ]
        self._input, self._output = graph.input[0].name, graph.output[0].name
        self._names: dict[str, str] = {}
        for constant in graph.initializer:
            self._keep(constant.name, torch.from_numpy(onnx.numpy_helper.to_array(constant).copy()))
        self._fold()

    def forward(self, images: Tensor) -> Tensor:
        values: dict[str, Tensor] = {self._input: images, **{name: getattr(self, own) for name, own in self._names.items()}}
        for kind, inputs, output, attributes in self._steps:
            values[output] = OPERATORS[kind]([values[name] if name else None for name in inputs], attributes)
        return values[self._output]

    def _fold(self) -> None:
        """Compute once what depends on constants alone: mostly weights, from int8."""
        steps = []
        for kind, inputs, output, attributes in self._steps:
            if all(not name or name in self._names for name in inputs):
                arguments = [getattr(self, self._names[name]) if name else None for name in inputs]
                operator = _dequantized if kind == "DequantizeLinear" else OPERATORS[kind]
                self._keep(output, operator(arguments, attributes))
            else:
                steps.append((kind, inputs, output, attributes))
        self._steps = steps

    def _keep(self, name: str, value: Tensor) -> None:
        """A constant under a name that a module may have; a parameter, by which a model's device is known, if it is float."""
        self._names[name] = f"constant{len(self._names)}"
        if value.is_floating_point():
            self.register_parameter(self._names[name], nn.Parameter(value.detach(), requires_grad=False))
        else:
            self.register_buffer(self._names[name], value)


def _dequantized(inputs: list[Any], attributes: Attributes) -> Tensor:
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


def _pooled(inputs: list[Any], attributes: Attributes) -> Tensor:
    padded = _padded(inputs[0], attributes, -torch.inf)
    size, stride = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    return F.max_pool2d(padded, size, stride, ceil_mode=bool(attributes.get("ceil_mode", 0)))


def _product(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, weight, bias = [*inputs, None][:3]
    matrix = weight if attributes.get("transB", 0) else weight.T
    return F.linear(x, attributes.get("alpha", 1.0) * matrix, bias)


def _mean(inputs: list[Any], attributes: Attributes) -> Tensor:
    mean: Tensor = inputs[0].mean(inputs[1].tolist(), keepdim=bool(attributes.get("keepdims", 1)))
    return mean


def _normalized(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, scale, shift, mean, variance = inputs
    return F.batch_norm(x, mean, variance, scale, shift, eps=attributes.get("epsilon", 1e-5))


OPERATORS: dict[str, Callable[[list[Any], Attributes], Tensor]] = {
    "Add": lambda inputs, _: inputs[0] + inputs[1],
    "BatchNormalization": _normalized,
    "Clip": lambda inputs, _: torch.clamp(inputs[0], *inputs[1:]),
    "Concat": lambda inputs, attributes: torch.cat(inputs, attributes["axis"]),
    "Conv": _convolution,
    "DequantizeLinear": lambda inputs, _: inputs[0],
    "Div": lambda inputs, _: inputs[0] / inputs[1],
    "Flatten": lambda inputs, attributes: inputs[0].flatten(attributes.get("axis", 1)),
    "Gather": lambda inputs, attributes: inputs[0].index_select(attributes.get("axis", 0), inputs[1]),
    "Gemm": _product,
    "GlobalAveragePool": lambda inputs, _: inputs[0].mean((2, 3), keepdim=True),
    "MaxPool": _pooled,
    "Mul": lambda inputs, _: inputs[0] * inputs[1],
    "QuantizeLinear": _quantized,
    "ReduceMean": _mean,
    "Relu": lambda inputs, _: torch.relu(inputs[0]),
    "Reshape": lambda inputs, _: inputs[0].reshape([len(inputs[0]) if n == 0 else n for n in inputs[1].tolist()]),
    "Sigmoid": lambda inputs, _: torch.sigmoid(inputs[0]),
    "Sub": lambda inputs, _: inputs[0] - inputs[1],
}
