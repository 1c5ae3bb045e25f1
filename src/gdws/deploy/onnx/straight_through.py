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

from gdws.core.errors import GdwsError, first_line
from gdws.core.inputs import Arguments, Inputs, tensors_of
from gdws.core.reading.limits import check_bytes
from gdws.deploy.interface import Outputs, unpacked
from gdws.deploy.onnx.operators import NUMBERS, OPERATORS, dequantize, unread_attribute
from gdws.deploy.onnx.reading import check_onnx, operator_set, parse_onnx, unreadable_file
from gdws.deploy.onnx.signature import attach_signature, match_ports, signature_in, wrong_shape
from gdws.deploy.packages import require

OLDEST = 18
"""The opset since which axes are inputs of all reductions: before, operators of the same names took other things."""


class StraightThrough(nn.Module):
    """The graph of an ONNX file, float or quantized (QuantizeLinear and DequantizeLinear).

    It is called with what the file takes, by name or in its order, and gives its output or, of several, {name: output}.

    path: the file, which is not read again.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        onnx = require("onnx")
        self.path = Path(path)
        proto = parse_onnx(self.path, "onnx")
        graph = proto.graph
        named = {".".join(filter(None, (node.domain.removeprefix("ai.onnx"), node.op_type))) for node in graph.node}
        if unknown := sorted(named - OPERATORS.keys()):
            raise GdwsError(f"{path} has the operators {', '.join(unknown)}: expected those of gdws.deploy.onnx.operators")
        check_onnx(proto, self.path, "onnx")
        version = operator_set(proto)
        if version < OLDEST:
            raise GdwsError(f"{path} has opset {version}: expected {OLDEST} or later (onnx.version_converter)")
        for node in graph.node:
            if found := unread_attribute(onnx, node, version):
                raise GdwsError(f"{path} has {node.op_type} with {found}: expected that left out, as gdws.to_onnx does")
        value_of = onnx.helper.get_attribute_value
        self._steps: list[tuple[str, list[Any], list[str], dict[str, Any]]] = [
            (node.op_type, list(node.input), list(node.output), {each.name: value_of(each) for each in node.attribute})
            for node in graph.node
        ]
        self._signature = signature_in(proto)
        attach_signature(self, self._signature)
        self._names: dict[str, str] = {}
        try:
            for constant in graph.initializer:
                self._keep(constant.name, torch.from_numpy(onnx.numpy_helper.to_array(constant).copy()))
            self._fold()
        except Exception as error:  # operators that are given something else than their own
            raise unreadable_file(self.path, "onnx", error) from None

    def forward(self, *positional: Tensor, **named: Tensor) -> Outputs:
        inputs: Inputs = positional[0] if len(positional) == 1 and not named else Arguments(*positional, **named)
        ports, tensors = self._signature.inputs, tensors_of(inputs)
        if told := wrong_shape(inputs, ports):
            raise told
        values: dict[str, Tensor] = {name: getattr(self, own) for name, own in self._names.items()}
        values |= {port.name: tensors[index] for index, port in zip(match_ports(inputs, ports), ports, strict=True)}
        for kind, names, outputs, attributes in self._steps:
            try:
                found = OPERATORS[kind]([values[given] if isinstance(given, str) else given for given in names], attributes)
                values.update(zip(outputs, [found] if isinstance(found, Tensor) else found, strict=True))
            except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
                raise GdwsError(f"{self.path} cannot be run: {kind} fails ({first_line(error)})") from None
        return unpacked({port.name: values[port.name] for port in self._signature.outputs})

    def _fold(self) -> None:
        """Compute once what depends on constants alone: mostly weights, from int8. And read numbers from constants."""
        steps = []
        for kind, names, outputs, attributes in self._steps:
            if all(not name or name in self._names for name in names):
                arguments = [getattr(self, self._names[name]) if name else None for name in names]
                found = (dequantize if kind == "DequantizeLinear" else OPERATORS[kind])(arguments, attributes)
                for output, value in zip(outputs, [found] if isinstance(found, Tensor) else found, strict=True):
                    check_bytes(f"{output[:40]!r} in {self.path}", value.numel() * value.element_size())
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
