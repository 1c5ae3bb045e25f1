"""ONNX files with one part of their graph changed, which stay files that a protobuf reader takes."""

from __future__ import annotations

from random import Random
from typing import Any

import onnx
from onnx import TensorProto, helper

from chaos.mutants.bytewise import bytewise

OPERATORS = (
    *("Add", "Relu", "Conv", "Gemm", "Gather", "Resize", "Loop", "If", "Identity", "Softmax", "Pow", "Reshape", "Expand"),
    *("Tile", "Range", "ConstantOfShape", "Split", "Pad", "Clip", "Max", "Xyz", "Concat", "MaxPool", "QuantizeLinear"),
    *("NonZero", "NonMaxSuppression", "Compress", "Unique", "Shape", "Slice"),
)
NUMBERS = (-1, 0, 1, 2, 3, 7, 255, 10**6, 10**9, 2**40, 2**62, -(2**40))


def onnx_file(content: bytes, random: Random) -> bytes:
    proto = onnx.load_from_string(content)
    for _ in range(random.choice((1, 1, 2))):
        random.choice(CHANGES)(proto, random)
    try:
        return proto.SerializeToString()
    except ValueError:
        return bytewise(content, random)


def _operator(proto: Any, random: Random) -> None:
    random.choice(proto.graph.node).op_type = random.choice(OPERATORS)


def _names(proto: Any) -> list[str]:
    given = [name for node in proto.graph.node for name in (*node.input, *node.output)]
    return [*given, *(each.name for each in proto.graph.initializer), "", "nowhere", "images", "logits"]


def _input(proto: Any, random: Random) -> None:
    """Also loops: a node that reads what comes after it, or itself."""
    node = random.choice(proto.graph.node)
    if node.input:
        node.input[random.randrange(len(node.input))] = random.choice(_names(proto))


def _fewer_or_more(proto: Any, random: Random) -> None:
    node = random.choice(proto.graph.node)
    part = random.choice((node.input, node.output))
    if part and random.random() < 0.6:
        del part[-1]
    else:
        part.append(random.choice(_names(proto)))


def _output(proto: Any, random: Random) -> None:
    node = random.choice(proto.graph.node)
    if node.output:
        node.output[0] = random.choice(_names(proto))


def _attribute(proto: Any, random: Random) -> None:
    node = random.choice([node for node in proto.graph.node if node.attribute] or list(proto.graph.node))
    if not node.attribute:
        node.attribute.append(helper.make_attribute("axis", random.choice(NUMBERS)))
        return
    chosen = random.choice(node.attribute)
    what = random.choice(("value", "value", "value", "kind", "drop", "name", "length"))
    if what == "drop":
        node.attribute.remove(chosen)
    elif what == "name":
        chosen.name = random.choice(("group", "axis", "pads", "strides", "dilations", "\x1b[31m", "transB", "keepdims"))
    elif what == "kind":
        made = helper.make_attribute(chosen.name, random.choice((1.5, "x", [1, 2], [0.5], [1] * 1000, float("nan"))))
        chosen.CopyFrom(made)
    elif chosen.ints:
        if what == "length":
            chosen.ints.append(random.choice(NUMBERS))
        else:
            chosen.ints[random.randrange(len(chosen.ints))] = random.choice(NUMBERS)
    else:
        chosen.i, chosen.f = random.choice(NUMBERS), random.choice((0.0, -1.0, float("nan"), 1e30))


def _constant(proto: Any, random: Random) -> None:
    tensor = random.choice(proto.graph.initializer)
    what = random.choice(("dims", "dims", "kind", "data", "number", "external", "name", "grow"))
    if what == "dims" and tensor.dims:
        tensor.dims[random.randrange(len(tensor.dims))] = random.choice(NUMBERS)
    elif what == "grow":
        tensor.dims.append(random.choice((1, 1, 2, 10**9)))
    elif what == "kind":
        tensor.data_type = random.choice((0, *(value for _, value in TensorProto.DataType.items()), 99))
    elif what == "name":
        tensor.name = random.choice(_names(proto))
    elif what == "external":
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=random.choice(("/etc/hostname", "../../../etc/hostname", "nowhere", "")))
    elif tensor.raw_data:
        data = bytearray(bytewise(bytes(tensor.raw_data), random))
        tensor.raw_data = (
            bytes(data[: len(tensor.raw_data)].ljust(len(tensor.raw_data), b"\0")) if what == "number" else bytes(data)
        )


def _interface(proto: Any, random: Random) -> None:
    """The inputs and outputs that the file declares."""
    graph = proto.graph
    what = random.choice(("dims", "dims", "type", "name", "drop", "add", "swap"))
    part = random.choice((graph.input, graph.output))
    if not part:
        return
    chosen = part[0]
    if what == "dims":
        dims = chosen.type.tensor_type.shape.dim
        if dims and random.random() < 0.8:
            random.choice(dims).dim_value = random.choice((-1, 0, 1, 2, 3, 9, 10**9, 2**62))
        else:
            dims.add().dim_value = 3
    elif what == "type":
        chosen.type.tensor_type.elem_type = random.choice((0, 2, 7, 9, 10, 11, 8, 99))
    elif what == "name":
        chosen.name = random.choice(_names(proto))
    elif what == "drop":
        del part[0]
    elif what == "add":
        part.append(
            helper.make_tensor_value_info(random.choice(_names(proto)), 1, random.choice(([], [1], ["n", 4], [1, 3, 8, 8])))
        )
    else:
        kept = type(chosen)()
        kept.CopyFrom(graph.output[0] if part is graph.input and graph.output else graph.input[0] if graph.input else chosen)
        part[0].CopyFrom(kept)


def _nodes(proto: Any, random: Random) -> None:
    nodes = list(proto.graph.node)
    what = random.choice(("drop", "double", "shuffle", "reverse", "domain"))
    chosen = random.randrange(len(nodes))
    if what == "drop":
        del nodes[chosen]
    elif what == "double":
        nodes.insert(chosen, nodes[chosen])
    elif what == "shuffle":
        random.shuffle(nodes)
    elif what == "reverse":
        nodes.reverse()
    else:
        nodes[chosen].domain = random.choice(("com.microsoft", "x", "\x1b[1m"))
    copies = [type(node)() for node in nodes]
    for copy, node in zip(copies, nodes, strict=True):
        copy.CopyFrom(node)
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def _versions(proto: Any, random: Random) -> None:
    if random.random() < 0.5 and proto.opset_import:
        proto.opset_import[0].version = random.choice((-1, 0, 1, 6, 7, 9, 11, 12, 13, 17, 25, 99, 2**40))
    else:
        proto.ir_version = random.choice((-1, 0, 1, 3, 13, 99, 2**40))


CHANGES = (
    *(_operator, _input, _input, _fewer_or_more, _output),
    *(_attribute, _attribute, _attribute),
    *(_constant, _constant, _constant),
    *(_interface, _interface, _nodes, _versions),
)
"""Each as often as it is drawn."""
