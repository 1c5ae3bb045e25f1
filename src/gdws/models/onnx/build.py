"""From the graph of a checked ONNX file to a network: constants computed once, layers made, shapes kept as numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError, first_line
from gdws.core.reading.limits import check_bytes
from gdws.deploy.onnx.general import MAKERS, NUMBERS, OPERATORS, arrays
from gdws.deploy.onnx.general.sizes import SIZES
from gdws.deploy.onnx.operators import dequantize
from gdws.deploy.onnx.signature import Signature
from gdws.deploy.packages import require
from gdws.models.onnx.layers import WEIGHTS, layer_of
from gdws.models.onnx.names import Names, constant_name
from gdws.models.onnx.network import Held, OnnxNetwork, Step, Value, with_parameters

SMALL = 1024
"""Elements of a constant that may be a shape."""
IDENTITIES = ("Identity", "Dropout")


def build(proto: Any, origin: str, signature: Signature) -> OnnxNetwork:
    """The network of a graph; its shapes may be inferred beforehand (onnx.shape_inference), which knows ranks.

    Raises GdwsError where a node cannot be computed or has no PyTorch form.
    """
    return _Builder(proto, origin, signature).network()


class _Builder:
    def __init__(self, proto: Any, origin: str, signature: Signature) -> None:
        self.onnx = require("onnx")
        self.graph, self.origin, self.signature = proto.graph, origin, signature
        self.constants = {tensor.name: self._tensor(tensor) for tensor in self.graph.initializer}
        self.learned = set(self.constants)
        self.numeric: set[str] = set()
        self.same: dict[str, str] = {}
        self.shapes = {
            value.name: [size.dim_value or None for size in value.type.tensor_type.shape.dim]
            for value in (*self.graph.input, *self.graph.value_info, *self.graph.output)
            if value.type.tensor_type.HasField("shape")
        }
        self.parameters: dict[str, nn.Parameter] = {}
        self.layers: dict[Any, str] = {}
        self.modules: dict[str, nn.Module] = {}
        self.held: dict[str, str] = {}
        self.names, self.taken = Names(), set[str]()
        self.steps: list[Step] = []

    def network(self) -> OnnxNetwork:
        for node in self.graph.node:
            try:
                self._add(node)
            except GdwsError as error:
                raise GdwsError(f"{self.origin} cannot be read: {error}") from None
            except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
                what = f"{node.op_type} does not fit what it is given ({first_line(error)})"
                raise GdwsError(f"{self.origin} cannot be read: {what}") from None
        outputs = [self._argument(output.name) for output in self.graph.output]
        made = OnnxNetwork(self.origin, self.signature, self.steps, outputs)
        for name, module in self.modules.items():
            _put(made, name, module)
        for name, held in self.held.items():
            self._hold(made.constants, name, held)
        self._forget_early(made, {output.name for output in outputs if isinstance(output, Value)})
        return with_parameters(made).eval()

    def _add(self, node: Any) -> None:
        attributes = {each.name: self._attribute(each) for each in node.attribute}
        inputs = [self.same.get(name, name) for name in node.input]
        outputs = [str(name) for name in node.output]
        if node.op_type == "Constant":
            self._keep(outputs, [self._constant(attributes)])
        elif node.op_type in IDENTITIES and inputs[0]:
            self.same[outputs[0]] = inputs[0]
        elif all(not name or name in self.constants for name in inputs):
            self._fold(node.op_type, inputs, outputs, attributes)
        elif node.op_type == "Shape" and inputs[0] in self.numeric and all(self.shapes.get(inputs[0]) or [None]):
            self._keep(outputs, [torch.tensor(self.shapes[inputs[0]], dtype=torch.int64)])  # how many numbers there are
        elif node.op_type == "Shape" or self._is_of_sizes(node.op_type, inputs, outputs):
            self.numeric.update(outputs)
            self.steps.append(Step(node.op_type, [self._number(name) for name in inputs], outputs, attributes, sizes=True))
        elif not self._add_layer(node, inputs, outputs, attributes):
            numbers = NUMBERS.get(node.op_type, ())
            if node.op_type == "Gather" and inputs[1] in self.constants and self.constants[inputs[1]].ndim:
                numbers = ()  # a list of channels moves with the network, as a tensor
            given = [self._number(name) if place in numbers else self._argument(name) for place, name in enumerate(inputs)]
            self.steps.append(Step(node.op_type, given, outputs, attributes))

    def _fold(self, operator: str, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
        """What depends on constants alone is computed now."""
        given = [self.constants[name] if name else None for name in inputs]
        if operator == "Shape":
            assert given[0] is not None
            sizes = given[0].shape[attributes.get("start", 0) : attributes.get("end")]
            found: Any = torch.tensor(list(sizes), dtype=torch.int64)
        elif operator == "DequantizeLinear":
            found = dequantize(given, attributes)
        else:
            more = {"float": torch.float32} if operator in MAKERS else {}
            with torch.no_grad():
                found = OPERATORS[operator](given, attributes | more)
        self._keep(outputs, [found] if isinstance(found, Tensor) else list(found))
        if any(name in self.learned for name in inputs):
            self.learned.update(outputs)

    def _keep(self, names: list[str], values: list[Tensor]) -> None:
        for name, value in zip(names, values, strict=False):
            check_bytes(f"{name[:40]!r} in {self.origin}", value.numel() * value.element_size())
            self.constants[name] = value

    def _is_of_sizes(self, operator: str, inputs: list[str], outputs: list[str]) -> bool:
        """Whether a node computes with shapes: they are known as numbers, as is what comes out."""
        numeric = [name in self.numeric for name in inputs if name]
        fits = all(not name or name in self.numeric or self._is_small(self.constants.get(name)) for name in inputs)
        axes = [len(self.shapes[name]) for name in outputs if name in self.shapes]
        return operator in SIZES and any(numeric) and fits and max(axes, default=0) <= 1

    @staticmethod
    def _is_small(value: Tensor | None) -> bool:
        return value is not None and value.ndim <= 1 and value.numel() <= SMALL

    def _number(self, name: str) -> Any:
        """As Python numbers where it is a constant, else what a step before gave."""
        value = self.constants.get(name)
        if value is not None:
            return value.tolist() if value.numel() <= SMALL else self._argument(name)
        return Value(name) if name else None

    def _argument(self, name: str) -> Any:
        name = self.same.get(name, name)
        if not name:
            return None
        if name not in self.constants:
            return Value(name)
        if name not in self.held:
            self.held[name] = constant_name(name, self.taken)
        return Held(self.held[name])

    def _hold(self, place: nn.Module, name: str, held: str) -> None:
        """What was learned, as far as one can tell, as a parameter: several floats that the file has a name for. The others are
        part of the architecture, and may be infinite, as masks are."""
        value = self.constants[name]
        several = value.is_floating_point() and value.numel() > 1 and bool(value.isfinite().all())
        if name in self.parameters or (name in self.learned and several):
            place.register_parameter(held, self._parameter(name))
        else:
            place.register_buffer(held, value, persistent=False)

    def _add_layer(self, node: Any, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> bool:
        places = [place for place in WEIGHTS.get(node.op_type, ()) if place < len(inputs)]
        names = [inputs[place] for place in places]
        if not places or any(name and name not in self.constants for name in names) or inputs[0] in self.constants:
            return False
        others = [name for place, name in enumerate(inputs) if place not in places]
        if node.op_type in ("LSTM", "GRU"):
            if any(len(inputs) > place and inputs[place] for place in (4, 7)):
                raise GdwsError(f"{node.op_type} has lengths of its own or peepholes: expected neither")
            others = [name for place, name in enumerate(inputs) if place in (0, 5, 6)]
        known = self.shapes.get(inputs[0], [])
        made = layer_of(
            node.op_type, [self._parameter(name) if name else None for name in names], attributes, len(known) or None, known[2:]
        )
        if made is None:
            return False
        module, pads = made
        key = (node.op_type, *names, str(sorted(attributes.items())), type(module), tuple(pads))
        if key not in self.layers:
            self.layers[key] = self.names.of_layer(node.name, names[0], node.op_type)
            self.modules[self.layers[key]] = module
        given = [self._argument(name) for name in others]
        if pads:
            padded = f"{outputs[0]} padded"
            count = len(pads) // 2
            whole = [0, 0, *pads[:count], 0, 0, *pads[count:]]
            self.steps.append(Step("Pad", [given[0], whole], [padded], {}))
            given[0] = Value(padded)
        self.steps.append(Step(node.op_type, given, outputs, {}, module=self.layers[key]))
        return True

    def _parameter(self, name: str) -> nn.Parameter:
        """One parameter for a constant, whoever uses it."""
        if name not in self.parameters:
            self.parameters[name] = nn.Parameter(self.constants[name].detach())
        return self.parameters[name]

    @staticmethod
    def _forget_early(made: OnnxNetwork, needed: set[str]) -> None:
        """Let go of each value after its last use."""
        seen = set(needed)
        for step in reversed(made.steps):
            used = {each.name for each in step.inputs if isinstance(each, Value)} | set(step.outputs)
            step.last = sorted(used - seen - {""})
            seen |= used

    def _tensor(self, proto: Any) -> Tensor:
        """In the types of a network: every float is float32."""
        kind = arrays.type_of(proto.data_type)
        array = self.onnx.numpy_helper.to_array(proto)
        if kind == torch.float32:
            array = array.astype("float32")
        return torch.from_numpy(array.copy()).to(kind)

    def _attribute(self, attribute: Any) -> Any:
        value = self.onnx.helper.get_attribute_value(attribute)
        return self._tensor(value) if isinstance(value, self.onnx.TensorProto) else value

    def _constant(self, attributes: dict[str, Any]) -> Tensor:
        ((name, value),) = attributes.items()
        if name == "value":
            found: Tensor = value
            return found
        if name in ("value_int", "value_ints"):
            return torch.tensor(value, dtype=torch.int64)
        if name in ("value_float", "value_floats"):
            return torch.tensor(value, dtype=torch.float32)
        raise GdwsError(f"Constant is a {name}: expected numbers")


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Under a name with dots, for which empty modules are made."""
    *above, last = name.split(".")
    for part in above:
        if part not in model._modules:
            model.add_module(part, nn.Module())
        model = model.get_submodule(part)
    model.add_module(last, module)
