"""Operators that choose among values: how much they give follows from the values, and how much at most from the sizes.

A bound is no size. What is computed from the number of values that were chosen, or counted from their end, may become larger
when they are fewer. A file is therefore judged by its bounds only where nothing does that: chosen values may go through
operators that give no more for less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Shape = tuple[int, ...]
CHOOSING = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}
GROWING = {"Abs", "Add", "And", "Cast", "Clip", "Concat", "Div", "Equal", "Exp", "Flatten", "Floor", "Gather"}
GROWING |= {"GatherElements", "GatherND", "Greater", "Identity", "Less", "MatMul", "Max", "Min", "Mul", "Neg", "Not"}
GROWING |= {"Or", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "ScatterElements"}
GROWING |= {"ScatterND", "Sigmoid", "Softmax", "Sqrt", "Squeeze", "Sub", "TopK", "Transpose", "Unsqueeze", "Where"} | CHOOSING
"""Operators of which no output becomes larger when an input has fewer rows."""


def largest_outputs(node: Any, shapes: Mapping[str, Shape], values: Mapping[str, np.ndarray]) -> list[Shape]:
    """The shapes of what an operator of CHOOSING gives at most.

    shapes  of its inputs, by name.
    values  of constants, by name.
    """
    given = shapes[node.input[0]]
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)
    if node.op_type == "NonZero":
        return [(len(given), math.prod(given))]
    if node.op_type == "NonMaxSuppression":
        batches, classes, boxes = shapes[node.input[1]]
        most = values.get(node.input[2]) if len(node.input) > 2 else None
        chosen = boxes if most is None or most.size != 1 or most.item() < 1 else min(boxes, most.item())
        return [(batches * classes * chosen, 3)]
    rows = math.prod(given) if axis is None else given[axis]
    return [(rows,) if axis is None else given, *[(rows,) for _ in node.output[1:]]]


def beyond_bounds(graph: Any) -> Any | None:
    """The first operator that is given chosen values and could make more of fewer."""
    chosen = set[str]()
    for node in graph.node:
        own = node.domain in ("", "ai.onnx")
        if not chosen.isdisjoint(node.input) and not (own and node.op_type in GROWING):
            return node
        if own and (node.op_type in CHOOSING or not chosen.isdisjoint(node.input)):
            chosen |= {*node.output}
    return None
