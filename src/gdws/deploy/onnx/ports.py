"""Names, types and dynamic axes of the inputs and outputs of an ONNX file that was just made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.signature import Port, Signature, signature_in
from gdws.deploy.packages import require

AXES = {0: "batch", 2: "height", 3: "width"}
"""What the dynamic axes of inputs are called."""
SYMBOL = r"\bs\d+\b"
"""A size that torch.export left free, as it stands in expressions such as 4*s77."""


def name_ports(proto: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give inputs and outputs their names; a value inside that has one of these gets another."""
    graph = proto.graph
    wanted = dict(zip([value.name for value in (*graph.input, *graph.output)], [*inputs, *outputs], strict=True))
    values = {name for node in graph.node for name in (*node.input, *node.output)} | {each.name for each in graph.initializer}
    for name in (set(wanted.values()) & values) - wanted.keys():
        wanted[name] = _unused(f"{name}.inner", values)
    _rename(graph, wanted)


def name_sizes(proto: Any) -> None:
    """Call dynamic axes "batch", "height" and "width" instead of the symbols that torch.export has for them."""
    graph, names = proto.graph, dict[str, str]()
    for value in graph.input:
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if re.fullmatch(SYMBOL, size.dim_param) and size.dim_param not in names:
                name = AXES.get(axis, f"size{axis}")
                names[size.dim_param] = f"{value.name}.{name}" if name in names.values() else name
    _replace_symbols((*graph.input, *graph.output, *graph.value_info), names)


def take_signature(proto: Any, signature: Signature) -> None:
    """Make inputs and outputs those of another file: their order, names, types and names of dynamic axes.

    Raises GdwsError when there are more or fewer of them than there.
    """
    graph, own = proto.graph, signature_in(proto)
    for what, ours, theirs in (("takes", own.inputs, signature.inputs), ("gives", own.outputs, signature.outputs)):
        if len(ours) != len(theirs):
            count = f"{what} {len(ours)} tensors"
            raise GdwsError(f"the model {count}: expected {len(theirs)}, as in the file that it came from")
    inputs, outputs = _in_order(graph.input, signature.inputs), _in_order(graph.output, signature.outputs)
    for kept, ordered in ((graph.input, inputs), (graph.output, outputs)):
        del kept[:]
        kept.extend(ordered)
    name_ports(proto, [port.name for port in signature.inputs], [port.name for port in signature.outputs])
    for value, port in zip(graph.input, signature.inputs, strict=True):
        _cast_input(graph, value, port)
    for value, port in zip(graph.output, signature.outputs, strict=True):
        _cast_output(graph, value, port)
    for values, ports in ((graph.input, signature.inputs), (graph.output, signature.outputs)):
        for value, port in zip(values, ports, strict=True):
            _name_free_sizes(value, port)
    del graph.value_info[:]  # which have names that are not those of the inputs now


def _in_order(values: Sequence[Any], ports: Sequence[Port]) -> list[Any]:
    """Copies, by name where the file has the name, the others in their order."""
    known = {value.name: value for value in values}
    names = {port.name for port in ports}
    others = iter([value for value in values if value.name not in names])
    found = [known.get(port.name) or next(others) for port in ports]
    copies = []
    for value in found:
        copies.append(type(value)())
        copies[-1].CopyFrom(value)
    return copies


def _cast_input(graph: Any, value: Any, port: Port) -> None:
    """The port's type outside; inside the type that the graph was traced for."""
    onnx, tensor = require("onnx"), value.type.tensor_type
    inside, outside = tensor.elem_type, _type_of(port)
    if inside != outside:
        name = f"{port.name}.inside"
        for node in graph.node:
            node.input[:] = [name if each == port.name else each for each in node.input]
        graph.node.insert(0, onnx.helper.make_node("Cast", [port.name], [name], f"{port.name}.cast", to=inside))
        tensor.elem_type = outside


def _cast_output(graph: Any, value: Any, port: Port) -> None:
    onnx, tensor = require("onnx"), value.type.tensor_type
    outside = _type_of(port)
    if tensor.elem_type != outside:
        name = f"{port.name}.inside"
        for node in graph.node:
            node.input[:] = [name if each == port.name else each for each in node.input]
            node.output[:] = [name if each == port.name else each for each in node.output]
        graph.node.append(onnx.helper.make_node("Cast", [name], [port.name], f"{port.name}.cast", to=outside))
        tensor.elem_type = outside


def _type_of(port: Port) -> int:
    types = require("onnx").TensorProto
    kind = {"float32": "FLOAT", "float64": "DOUBLE"}.get(port.dtype, port.dtype.upper())
    number: int = types.DataType.Value(kind)
    return number


def _name_free_sizes(value: Any, port: Port) -> None:
    sizes = value.type.tensor_type.shape.dim
    if len(sizes) == len(port.shape):
        for size, wanted in zip(sizes, port.shape, strict=True):
            if size.dim_param and not isinstance(wanted, int):
                size.Clear()
                if wanted is not None:
                    size.dim_param = wanted


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.value_info, *graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _replace_symbols(values: Sequence[Any], names: Mapping[str, str]) -> None:
    for value in values:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = re.sub(SYMBOL, lambda found: names.get(found[0], found[0]), size.dim_param)
