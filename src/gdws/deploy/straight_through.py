"""An ONNX file as a module through which gradients pass, straight through its rounding: what an attack on a file needs.

Rounding has a gradient of zero, so an attack that honors it sees a flat loss: the gradient is masked, which looks like
robustness. Here the values are those of the file, rounded where it rounds, and gradients pass a rounding as if it were none,
within the range that int8 represents (Bengio et al. 2013).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gdws.deploy.onnx_operators import NUMBERS, OPERATORS, dequantize
from gdws.deploy.runtimes import existing_file, require, unreadable_file, wrong_shape
from gdws.errors import GdwsError


class StraightThrough(nn.Module):
    """The graph of an ONNX file, float or quantized (QuantizeLinear and DequantizeLinear): images (B, C, H, W) to logits.

    path: the file, which is not read again.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        onnx = require("onnx")
        self.path = Path(path)
        try:
            graph = onnx.load(existing_file(self.path)).graph
        except Exception as error:
            raise unreadable_file(self.path, "onnx", error) from None
        unknown = sorted({node.op_type for node in graph.node} - OPERATORS.keys())
        if unknown:
            raise GdwsError(f"{path} has the operators {', '.join(unknown)}: expected those of gdws.deploy.onnx_operators")
        value_of = onnx.helper.get_attribute_value
        self._steps: list[tuple[str, list[Any], list[str], dict[str, Any]]] = [
            (node.op_type, list(node.input), list(node.output), {each.name: value_of(each) for each in node.attribute})
            for node in graph.node
        ]
        self._input, self._output = graph.input[0].name, graph.output[0].name
        self._shape = [size.dim_value or None for size in graph.input[0].type.tensor_type.shape.dim]
        self._names: dict[str, str] = {}
        for constant in graph.initializer:
            self._keep(constant.name, torch.from_numpy(onnx.numpy_helper.to_array(constant).copy()))
        self._fold()

    def forward(self, images: Tensor) -> Tensor:
        if any(size is not None and size != given for size, given in zip(self._shape, images.shape, strict=False)):
            raise wrong_shape(images, [size or "B" for size in self._shape])
        values: dict[str, Tensor] = {self._input: images, **{name: getattr(self, own) for name, own in self._names.items()}}
        for kind, inputs, outputs, attributes in self._steps:
            found = OPERATORS[kind]([values[given] if isinstance(given, str) else given for given in inputs], attributes)
            values.update(zip(outputs, [found] if isinstance(found, Tensor) else found, strict=True))
        return values[self._output]

    def _fold(self) -> None:
        """Compute once what depends on constants alone: mostly weights, from int8. And read numbers from constants."""
        steps = []
        for kind, names, outputs, attributes in self._steps:
            if all(not name or name in self._names for name in names):
                arguments = [getattr(self, self._names[name]) if name else None for name in names]
                found = (dequantize if kind == "DequantizeLinear" else OPERATORS[kind])(arguments, attributes)
                for output, value in zip(outputs, [found] if isinstance(found, Tensor) else found, strict=True):
                    self._keep(output, value)
            else:
                numbers = names[1:] if kind in NUMBERS else []
                inputs = [
                    getattr(self, self._names[name]).tolist() if name in numbers and name in self._names else name or None
                    for name in names
                ]
                steps.append((kind, inputs, outputs, attributes))
        self._steps = steps

    def _keep(self, name: str, value: Tensor) -> None:
        """A constant under a name that a module may have; a parameter, by which a model's device is known, if it is float."""
        self._names[name] = f"constant{len(self._names)}"
        if value.is_floating_point():
            self.register_parameter(self._names[name], nn.Parameter(value.detach(), requires_grad=False))
        else:
            self.register_buffer(self._names[name], value)
