"""Sizes that a file computes, from sizes and constants, and what has none.

onnx follows whole numbers through a graph, but no floats, in which exporters scale sizes. What is computed from sizes alone is
therefore computed here, and put into the graph as a constant. A value that has no size then has it from other values, such as
those of an image, which may say anything.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from gdws.deploy.onnx.bounds import CHOOSING, largest_outputs

ARITHMETIC = {"Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Equal", "Floor", "Gather", "Greater", "Identity", "Less"}
ARITHMETIC |= {"Max", "Min", "Mod", "Mul", "Neg", "Not", "Pow", "ReduceProd", "Reshape", "Round", "Slice", "Sqrt", "Squeeze"}
ARITHMETIC |= {"Sub", "Unsqueeze", "Where"}
"""Operators on a few numbers that give a few."""
FILLING = {"ConstantOfShape", "Expand", "Range", "Tile"}
"""Those that may give many; computed where it is known that they do not."""
ALIKE = {"GroupNormalization", "MeanVarianceNormalization"}
"""Operators that onnx infers nothing of: what they give is as large as what they are given."""
WHOLE = {"NonMaxSuppression", "NonZero"}
"""Operators whose first output is of whole numbers, whatever they are given."""
FEW = 64
"""Numbers: of sizes, not of pixels."""
MOST = 5000
"""Operators that are computed; each takes some tenths of a millisecond."""


def fold_sizes(onnx: Any, light: Any, known: Any) -> bool:
    """Put what is computed from sizes alone into the graph of a model, as constants; whether there was anything.

    known: the graph with the shapes that were inferred.
    """
    graph, shapes = light.graph, sizes_of(known)
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if math.prod(tensor.dims) <= FEW}
    kept, folded, outputs = [], 0, {value.name: value for value in graph.output}
    for node in graph.node:
        value = _computed(onnx, node, light.opset_import, shapes, values) if folded < MOST else None
        if value is None or value.size > FEW:
            kept.append(node)
            for told in _told(onnx, node, known, shapes, values):
                (outputs[told.name] if told.name in outputs else graph.value_info.add()).CopyFrom(told)
                folded += 1
            continue
        folded += 1
        values[node.output[0]] = value
        graph.initializer.append(onnx.numpy_helper.from_array(value, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    return folded > 0


def _told(onnx: Any, node: Any, known: Any, shapes: dict[str, tuple[int, ...]], values: dict[str, np.ndarray]) -> list[Any]:
    """What an operator gives of which onnx does not know the size: as large as what it is given, or so much at most."""
    sized = node.op_type in ALIKE | CHOOSING and {*node.input[: 1 + (node.op_type == "NonMaxSuppression")]} <= {*shapes}
    if not sized or node.domain not in ("", "ai.onnx") or all(name in shapes for name in node.output if name):
        return []
    largest = [shapes[node.input[0]]] if node.op_type in ALIKE else largest_outputs(node, shapes, values)
    given = next(each for each in (*known.input, *known.value_info, *known.output) if each.name == node.input[0])
    whole = onnx.TensorProto.INT64
    kinds = [whole if node.op_type in WHOLE else given.type.tensor_type.elem_type, whole, whole, whole]
    made = zip(node.output, kinds, largest, strict=False)
    return [onnx.helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in made if name and name not in shapes]


def without_size(graph: Any) -> Any | None:
    """The first operator of ONNX's own that is given values of known sizes and gives one of unknown size."""
    shapes = sizes_of(graph) | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        given, made = (all(name in shapes for name in names if name) for names in (node.input, node.output))
        if node.domain in ("", "ai.onnx") and given and not made:
            return node
    return None


def sizes_of(graph: Any) -> dict[str, tuple[int, ...]]:
    """The shapes by name, where all sizes are known."""
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(size.HasField("dim_value") for size in tensor.shape.dim):
            found[value.name] = tuple(size.dim_value for size in tensor.shape.dim)
    return found


def _computed(
    onnx: Any, node: Any, opsets: Any, shapes: dict[str, tuple[int, ...]], values: dict[str, np.ndarray]
) -> np.ndarray | None:
    """What an operator gives, where that follows from sizes and constants."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
        shape = shapes[node.input[0]]
        if node.op_type == "Size":
            return np.array(math.prod(shape), np.int64)
        given = {attribute.name: attribute.i for attribute in node.attribute}
        return np.array(shape[given.get("start", 0) : given.get("end", len(shape))], np.int64)
    if node.op_type == "Constant":
        tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        few = tensors and math.prod(tensors[0].dims) <= FEW
        return np.array(onnx.numpy_helper.to_array(tensors[0])) if few else None
    few = node.op_type in FILLING and math.prod(shapes.get(node.output[0], (FEW + 1,))) <= FEW
    if not (few or node.op_type in ARITHMETIC) or not all(name in values for name in node.input if name):
        return None
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator
    given = {name: values[name] for name in node.input if name}
    try:
        function = onnx.helper.make_function("gdws", "one", [*given], [*node.output], [node], opsets)  # as its set has it
        (found,) = evaluator(function).run(None, given, {})
    except Exception:  # what cannot be computed is not known
        return None
    return np.asarray(found)
