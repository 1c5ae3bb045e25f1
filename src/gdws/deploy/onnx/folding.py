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

ARITHMETIC = {"Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Equal", "Floor", "Gather", "Greater", "Identity", "Less"}
ARITHMETIC |= {"Max", "Min", "Mod", "Mul", "Neg", "Not", "Pow", "ReduceProd", "Reshape", "Round", "Slice", "Sqrt", "Squeeze"}
ARITHMETIC |= {"Sub", "Unsqueeze", "Where"}
"""Operators on a few numbers that give a few."""
FEW = 64
"""Numbers: of sizes, not of pixels."""
MOST = 5000
"""Operators that are computed; each takes some tenths of a millisecond."""


def fold_sizes(onnx: Any, graph: Any, known: Any) -> bool:
    """Put what is computed from sizes alone into the graph, as constants; whether there was anything.

    known: the graph with the shapes that were inferred.
    """
    shapes = sizes_of(known)
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if math.prod(tensor.dims) <= FEW}
    kept, folded = [], 0
    for node in graph.node:
        value = _computed(onnx, node, shapes, values) if folded < MOST else None
        if value is None or value.size > FEW:
            kept.append(node)
            continue
        folded += 1
        values[node.output[0]] = value
        graph.initializer.append(onnx.numpy_helper.from_array(value, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    return folded > 0


def without_size(graph: Any) -> Any | None:
    """The first operator of ONNX's own that is given values of known sizes and gives one of unknown size."""
    shapes = sizes_of(graph) | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        own = node.domain in ("", "ai.onnx")
        if (
            own
            and all(name in shapes for name in node.input if name)
            and not all(name in shapes for name in node.output if name)
        ):
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


def _computed(onnx: Any, node: Any, shapes: dict[str, tuple[int, ...]], values: dict[str, np.ndarray]) -> np.ndarray | None:
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
    if node.op_type not in ARITHMETIC or not all(name in values for name in node.input if name):
        return None
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator
    try:
        (found,) = evaluator(node).run(None, {name: values[name] for name in node.input if name})
    except Exception:  # what cannot be computed is not known
        return None
    return np.asarray(found)
