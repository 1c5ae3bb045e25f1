"""ONNX files that may come from anyone, checked before an engine has them: engines trust files, and some end the process.

What is taken is what networks are exported as: one graph from tensors of numbers to tensors of numbers, without loops, branches
and functions, whose tensors are as large as they say and fit into memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gdws.core.errors import GdwsError
from gdws.core.reading.limits import DEFAULT, VARIABLE, check_bytes, max_bytes, read_file
from gdws.deploy.onnx.bounds import beyond_bounds
from gdws.deploy.onnx.folding import fold_sizes, without_size
from gdws.deploy.onnx.signature import Signature, signature_in
from gdws.deploy.packages import require

CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
"""Operators that run other graphs: how long and on what is not known from the file."""
NUMBERS = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Types of what goes in and comes out: those that PyTorch, ONNX Runtime and OpenVINO all have."""
SMALL = 1024
"""Elements of constants that shapes may be computed from."""
IMAGES = ((3, 224, 224), (3, 256, 256))
"""Stand for the sizes that a file leaves open when memory is counted: the second for networks that halve them more often."""
ROUNDS = 20
"""Sizes that are computed from those of what has a computed size."""
OTHER = 64
"""Stands for open sizes of what is no batch of images."""


def read_onnx(path: Path, reader: str) -> Any:
    """The onnx.ModelProto of a file, checked for the `reader` that will run it."""
    proto = parse_onnx(path, reader)
    check_onnx(proto, path, reader)
    return proto


def read_signature(path: Path | str) -> Signature:
    """Names, types and shapes of what an ONNX file takes and gives; sizes that it leaves free have names there.

    >>> import gdws, torch
    >>> gdws.to_onnx(torch.nn.Conv2d(3, 4, 3, padding=1), "free.onnx", torch.rand(1, 3, 16, 16))
    >>> read_signature("free.onnx").inputs
    (Port(name='images', dtype='float32', shape=('batch', 3, 'height', 'width')),)
    """
    return signature_in(read_onnx(Path(path), "onnx"))


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


def check_onnx(proto: Any, path: Path, reader: str, *, strict: bool = True) -> None:
    """Refuse what is not such a network, in a sentence. Tensors that the file keeps in others are read into it.

    strict: also where shapes contradict each other, which they may for images of a size that the network does not take.
    """
    onnx = require("onnx")
    try:
        _check_kind(onnx, proto, path)
        _check_outside(onnx, proto, path)
        for tensor in _tensors(proto):
            onnx.numpy_helper.to_array(tensor)  # a view of as many bytes as its shape says, or an error
        onnx.checker.check_model(proto)
        shapes = _inferred(onnx, proto, strict)
        check_bytes(f"the values between the layers of {path}", _most_alive(onnx, shapes), path.stat().st_size)
        if strict or _contradicts_nothing(onnx, proto):
            _check_sizes(shapes, proto.graph, path)
    except Exception as error:
        raise unreadable_file(path, reader, error) from None


def images_together(path: Path) -> int:
    """How many images the file's network can take at a time without more memory than the content of a file may take.

    For n images it may have n * n values, so that what one of them takes does not tell.
    """
    onnx = require("onnx")
    proto, most = parse_onnx(path, "ONNX Runtime"), max_bytes(path.stat().st_size)
    count = max(1, most // max(1, _most_alive(onnx, _inferred(onnx, proto, True))))
    while count > 1 and _most_alive(onnx, _inferred(onnx, proto, True, count)) > most:
        count //= 2
    return count


def _contradicts_nothing(onnx: Any, proto: Any) -> bool:
    try:
        _inferred(onnx, proto, True)
        return True
    except Exception:
        return False


def _check_sizes(sized: Any, graph: Any, path: Path) -> None:
    """Refuse a size that comes from the values of an image, which may say anything, unless it has a bound or the user raised
    the limit.

    sized: the graph with the sizes that are known, or with bounds of them.
    """
    node = without_size(sized) or beyond_bounds(graph)
    if node is not None and max_bytes() <= DEFAULT:
        raise GdwsError(
            f"{path} has {node.op_type}, whose size is not known before it is run: expected sizes that follow from those of "
            f"the inputs (where you trust it, raise {VARIABLE})"
        )


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


def _check_kind(onnx: Any, proto: Any, path: Path) -> None:
    """One graph, from tensors of numbers to tensors of numbers."""
    graph = proto.graph
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    control = sorted({node.op_type for node in graph.node} & CONTROL)
    if control or any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        raise GdwsError(f"{path} has the operators {', '.join(control) or 'of other graphs'}: expected none of these")
    if proto.functions or graph.sparse_initializer:
        raise GdwsError(f"{path} has functions or sparse weights of its own: expected a plain graph (onnx.inliner makes one)")
    version, latest = operator_set(proto), onnx.defs.onnx_opset_version()
    if not 1 <= version <= latest:
        raise GdwsError(f"{path} has opset {version}: expected 1 to {latest}, which onnx {onnx.__version__} knows")
    signature = signature_in(proto)
    for verb, ports in (("takes", signature.inputs), ("gives", signature.outputs)):
        if not ports or any(port.dtype not in NUMBERS for port in ports):
            shown = ", ".join(f"{port.name[:40]!r} of {port.dtype}" for port in ports[:4]) or "nothing"
            raise GdwsError(f"{path} {verb} {shown}: expected tensors of {', '.join(NUMBERS)}")
    names = [port.name for port in (*signature.inputs, *signature.outputs)]
    if len(set(names)) < len(names) or not all(names):
        raise GdwsError(f"{path} has inputs and outputs of the names {', '.join(names)[:80]!r}: expected one for each")


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


def _inferred(onnx: Any, proto: Any, strict: bool, count: int = 1) -> Any:
    """The graph with the shapes of all values that are known, for so many images of a usual size."""
    failed: Exception = ValueError()
    for image in IMAGES:
        try:
            light = _without_weights(onnx, proto, (count, *image))
            for _ in range(ROUNDS):
                known = onnx.shape_inference.infer_shapes(light, strict_mode=strict).graph
                made = _without_long_numbers(onnx, light, known)
                computed = onnx.shape_inference.infer_shapes(made, strict_mode=strict, data_prop=True).graph
                found = _with_sizes_of(onnx, known, computed)
                if without_size(found) is None or not fold_sizes(onnx, light, found):
                    break
            return found
        except Exception as error:
            failed = error
    raise failed


def _without_long_numbers(onnx: Any, light: Any, known: Any) -> Any:
    """The graph with whole numbers as inputs of unknown size where there may be many of them: shapes are computed from whole
    numbers, for which onnx would write down every one, and a file of some bytes can make billions.

    known: the graph with the shapes that are known without computing any.
    """
    shapes = {value.name: value for value in (*known.value_info, *known.output)}
    made = type(light)()
    made.CopyFrom(light)
    del made.graph.node[:], made.graph.input[:]
    values = list(light.graph.input)
    for node in light.graph.node:
        own = [shapes[name] for name in node.output if name in shapes]
        if any(_may_be_long(onnx, value) for value in own):
            values += own
        else:
            made.graph.node.append(node)
    for value in values:
        made.graph.input.append(value)
        if _may_be_long(onnx, value):
            made.graph.input[-1].type.tensor_type.ClearField("shape")
    return made


def _with_sizes_of(onnx: Any, known: Any, computed: Any) -> Any:
    """The graph `known`, with the sizes of values that are only known in `computed`."""
    sizes = {value.name: value for value in (*computed.value_info, *computed.output)}
    for value in (*known.value_info, *known.output):
        other = sizes.pop(value.name, value)
        if _bytes(onnx, other) > _bytes(onnx, value):
            value.CopyFrom(other)
    known.value_info.extend(sizes.values())
    return known


def _may_be_long(onnx: Any, value: Any) -> bool:
    """Whether these are whole numbers, and more than SMALL of them or nobody knows how many."""
    tensor = value.type.tensor_type
    whole = tensor.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    sizes = [size.dim_value if size.HasField("dim_value") else SMALL + 1 for size in tensor.shape.dim]
    return whole and (not tensor.HasField("shape") or math.prod(sizes) > SMALL)


def _without_weights(onnx: Any, proto: Any, image: Sequence[int]) -> Any:
    """The graph for images of one size, with shapes for large constants, and without what it claims of its own shapes."""
    light = type(proto)()
    light.ir_version = proto.ir_version
    light.opset_import.extend(proto.opset_import)
    graph = light.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    weights = {tensor.name for tensor in proto.graph.initializer}
    shapes = _sized(signature_in(proto), image)
    for value in proto.graph.input:
        if value.name not in weights:
            kind = value.type.tensor_type.elem_type
            graph.input.append(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= SMALL:
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for value in proto.graph.output:
        graph.output.append(onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, None))
    return light


def _sized(signature: Signature, image: Sequence[int]) -> dict[str, list[int]]:
    """The shapes of inputs by name, with what stands for the sizes that are open; those of one name are one size."""
    named: dict[str, int] = {}
    found: dict[str, list[int]] = {}
    for port in sorted(signature.inputs, key=lambda port: len(port.shape) not in (0, len(image))):  # images first
        shape = port.shape or (None,) * len(image)
        usual = image if len(shape) == len(image) else (image[0], *[OTHER] * len(shape))
        found[port.name] = [
            named.setdefault(size, usual[axis]) if isinstance(size, str) else size or usual[axis]
            for axis, size in enumerate(shape)
        ]
    return found


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
