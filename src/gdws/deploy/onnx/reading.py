"""ONNX files that may come from anyone, checked before an engine has them: engines trust files, and some end the process.

What is taken is what networks are exported as: one graph from one input of images (B, C, H, W) to one output of logits
(B, classes), both float32, without loops, branches and functions, whose tensors are as large as they say and fit into memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdws.core.reading.limits import check_bytes, read_file
from gdws.deploy.packages import require
from gdws.errors import GdwsError

CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
"""Operators that run other graphs: how long and on what is not known from the file."""
IMAGES, LOGITS = "images (B, C, H, W)", "logits (B, classes)"
SMALL = 1024
"""Elements of constants that shapes may be computed from."""
IMAGE = (1, 3, 224, 224)
"""Stands for the sizes that a file leaves open when memory is counted."""


def read_onnx(path: Path, reader: str) -> Any:
    """The onnx.ModelProto of a file, checked for the `reader` that will run it."""
    proto = parse_onnx(path, reader)
    check_onnx(proto, path, reader)
    return proto


def parse_onnx(path: Path, reader: str) -> Any:
    """The onnx.ModelProto of a file, as it is."""
    onnx = require("onnx")
    try:
        proto = onnx.load_model_from_string(read_file(existing_file(path)))
        if not proto.graph.node:
            raise ValueError("it has no operators")
        if not all(isinstance(name, str) for name in _names(proto.graph)):
            raise ValueError("a name is not UTF-8")
        return proto
    except Exception as error:
        raise unreadable_file(path, reader, error) from None


def check_onnx(proto: Any, path: Path, reader: str) -> None:
    """Refuse what is not such a network, in a sentence. Tensors that the file keeps in others are read into it."""
    onnx = require("onnx")
    try:
        _check_kind(onnx, proto, path)
        _check_images_to_logits(onnx, proto, path)
        _check_logits(_check_content(onnx, proto, path, strict=True), path)
    except Exception as error:
        raise unreadable_file(path, reader, error) from None


def check_graph(proto: Any, path: Path, reader: str) -> None:
    """As `check_onnx`, for a network of any inputs and outputs."""
    onnx = require("onnx")
    try:
        _check_kind(onnx, proto, path)
        _check_content(onnx, proto, path, strict=False)
    except Exception as error:
        raise unreadable_file(path, reader, error) from None


def inputs_of(graph: Any) -> list[Any]:
    """The inputs that are no weights: older files list those as well."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def operator_set(proto: Any) -> int:
    """The version of ONNX's own operators that a file is of; 0 if it names none."""
    return max((each.version for each in proto.opset_import if each.domain in ("", "ai.onnx")), default=0)


def existing_file(path: Path) -> Path:
    if not os.path.isfile(path):
        raise GdwsError(f"there is no file {path}: expected an ONNX model")
    return path


def unreadable_file(path: Path, reader: str, error: Exception) -> GdwsError:
    if isinstance(error, GdwsError):
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return GdwsError(
        f"{path} is not an ONNX model that {reader} reads (truncated?): {lines[-1] if lines else type(error).__name__}"
    )


def _check_content(onnx: Any, proto: Any, path: Path, strict: bool) -> Any:
    """Refuse tensors that are not what they say and values that do not fit into memory; the graph with all shapes.

    strict: also where shapes contradict each other, which they may for images of a size that the network does not take.
    """
    _check_outside(onnx, proto, path)
    for tensor in _tensors(proto):
        onnx.numpy_helper.to_array(tensor)  # a view of as many bytes as its shape says, or an error
    onnx.checker.check_model(proto)
    shapes = onnx.shape_inference.infer_shapes(_without_weights(onnx, proto), strict_mode=strict, data_prop=True).graph
    check_bytes(f"the values between the layers of {path}", _most_alive(onnx, shapes), path.stat().st_size)
    return shapes


def _check_kind(onnx: Any, proto: Any, path: Path) -> None:
    """One graph of ONNX's operators without loops, branches and functions."""
    graph = proto.graph
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    control = sorted({node.op_type for node in graph.node} & CONTROL)
    if control or any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        raise GdwsError(f"{path} has the operators {', '.join(control) or 'of other graphs'}: expected none of these")
    if proto.functions or graph.sparse_initializer:
        raise GdwsError(f"{path} has functions or sparse weights of its own: expected a plain graph (onnx.inliner makes one)")
    version, latest = operator_set(proto), onnx.defs.onnx_opset_version()
    if not 1 <= version <= latest:
        raise GdwsError(f"{path} is of operator set {version}: expected 1 to {latest}, which onnx {onnx.__version__} knows")


def _check_images_to_logits(onnx: Any, proto: Any, path: Path) -> None:
    """From one input of images to one output of logits, in float32."""
    graph = proto.graph
    given = inputs_of(graph)
    for verb, values, what, rank in (("takes", given, IMAGES, 4), ("gives", graph.output, LOGITS, 2)):
        found = [_shown(onnx, value) for value in values]
        ranks = [len(value.type.tensor_type.shape.dim) for value in values if value.type.tensor_type.HasField("shape")]
        if [kind for _, kind in found] != ["float32"] or ranks not in ([], [rank]):
            shown = ", ".join(f"{name} of {kind}" for name, kind in found[:4]) or "nothing"
            axes = f" with {ranks[0]} axes" if len(ranks) == 1 and ranks[0] != rank else ""
            raise GdwsError(f"{path} {verb} {shown}{axes}: expected one tensor of {what} in float32")


def _check_logits(graph: Any, path: Path) -> None:
    """Logits must come out for as many images as went in, as far as the shapes of the graph are known."""
    logits = graph.output[0].type.tensor_type
    sizes = [size.dim_value for size in logits.shape.dim]
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_value  # the images come before the weights
    if logits.HasField("shape") and (len(sizes) != 2 or sizes[0] not in (0, batch)):
        raise GdwsError(f"{path} gives {tuple(sizes)} for {batch} images: expected {LOGITS}")


def _shown(onnx: Any, value: Any) -> tuple[str, str]:
    """Name and type of an input or output."""
    kind = value.type.tensor_type.elem_type
    names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    return repr(value.name[:40]), "float32" if kind == onnx.TensorProto.FLOAT else names.get(kind, f"type {kind}")


def _check_outside(onnx: Any, proto: Any, path: Path) -> None:
    """Tensors in files of their own: only in the folder of this one, and only as large as those are."""
    outside = [tensor for tensor in _tensors(proto) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in outside:
        entry = {each.key: each.value for each in tensor.external_data}
        place = (path.parent / entry.get("location", "")).resolve()
        if path.parent.resolve() not in place.parents or not place.is_file():
            raise GdwsError(f"{path} keeps {tensor.name[:40]!r} in {place}: expected a file in its own folder")
        wanted = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        start, length = int(entry.get("offset") or 0), int(entry.get("length") or wanted)
        if min(start, *tensor.dims, 0) < 0 or length != wanted or start + length > place.stat().st_size:
            raise GdwsError(f"{path} keeps {tensor.name[:40]!r} in {place}: expected {wanted:,} bytes of it there")
    if outside:
        onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))


def _names(graph: Any) -> Iterator[Any]:
    """Of all that is named; protobuf gives bytes where they are no text."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer))


def _tensors(proto: Any) -> Iterator[Any]:
    yield from proto.graph.initializer
    for node in proto.graph.node:
        for attribute in node.attribute:
            yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)


def _without_weights(onnx: Any, proto: Any) -> Any:
    """The graph for images of one size, with shapes for large constants, and without what it claims of its own shapes."""
    light = type(proto)()
    light.ir_version = proto.ir_version
    light.opset_import.extend(proto.opset_import)
    graph = light.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    weights = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            sizes = [size.dim_value for size in tensor.shape.dim] if tensor.HasField("shape") else [0] * len(IMAGE)
            usual = IMAGE if len(sizes) == len(IMAGE) else (1, *IMAGE[2:3] * (len(sizes) - 1))
            shape = [own if own > 0 else other for own, other in zip(sizes, usual, strict=False)]
            graph.input.append(onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= SMALL:
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for value in proto.graph.output:
        graph.output.append(onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, None))
    return light


def _most_alive(onnx: Any, graph: Any) -> int:
    """Bytes of the values that are needed at one time, at most; those of unknown shapes not counted."""
    sizes = {value.name: _bytes(onnx, value) for value in (*graph.value_info, *graph.output)}
    last = {name: place for place, node in enumerate(graph.node) for name in (*node.output, *node.input)}
    alive, most, made = 0, 0, {name for node in graph.node for name in node.output}
    for place, node in enumerate(graph.node):
        alive += sum(sizes.get(name, 0) for name in node.output)
        most = max(most, alive)
        alive -= sum(sizes.get(name, 0) for name in {*node.input, *node.output} if last[name] == place and name in made)
    return most


def _bytes(onnx: Any, value: Any) -> int:
    """Of a value whose shape is known; 0 for others."""
    tensor = value.type.tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else 0 for size in tensor.shape.dim]
    known = tensor.HasField("shape") and tensor.elem_type
    return math.prod(sizes) * onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize if known else 0
