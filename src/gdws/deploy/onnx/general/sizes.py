"""Arithmetic on shapes, as files write it (Shape, Gather, Mul, Concat, Reshape), in Python's own numbers.

A shape that is computed with tensors is not known to a trace. In numbers the free sizes of a network stay free when it is
exported again. A value is a number, or a list of numbers for an array of one axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

Attributes = dict[str, Any]
Size = Any
"""A number, PyTorch's symbol of one, or a list of either."""
FLOATS = (1, 10, 11, 16)


def _each(function: Callable[..., Any]) -> Callable[[list[Any], Attributes], Size]:
    """A function of numbers, for lists of some as well."""

    def apply(inputs: list[Any], attributes: Attributes) -> Size:
        lengths = [len(value) for value in inputs if isinstance(value, list)]
        if not lengths:
            return function(*inputs)
        longest = max(lengths)
        lists = [value * longest if isinstance(value, list) and len(value) == 1 else value for value in inputs]
        return [function(*(value[k] if isinstance(value, list) else value for value in lists)) for k in range(longest)]

    return apply


def _cast(inputs: list[Any], attributes: Attributes) -> Size:
    def to_float(value: Any) -> Any:
        return torch.sym_float(value)

    def to_whole(value: Any) -> Any:
        return bool(value) if attributes["to"] == 9 else torch.sym_int(value) if _is_float(value) else value

    return _each(to_float if attributes["to"] in FLOATS else to_whole)(inputs, {})


def _is_float(value: Any) -> bool:
    return isinstance(value, float | torch.SymFloat)


def _divided(left: Any, right: Any) -> Any:
    if _is_float(left) or _is_float(right):
        return left / right
    return left // right if left >= 0 and right > 0 else int(left / right)


def _gather(inputs: list[Any], attributes: Attributes) -> Size:
    values, index = inputs
    return [values[each] for each in index] if isinstance(index, list) else values[index]


def _slice(inputs: list[Any], attributes: Attributes) -> Size:
    values, (start, *_), (end, *_) = inputs[:3]
    step = inputs[4][0] if len(inputs) > 4 and inputs[4] is not None else 1
    return values[start:end:step]


def _concat(inputs: list[Any], attributes: Attributes) -> Size:
    return [each for part in inputs for each in part]


def _unsqueeze(inputs: list[Any], attributes: Attributes) -> Size:
    return _listed(inputs[0], isinstance(inputs[0], list))


def _listed(value: Any, is_list: bool) -> Size:
    if is_list:
        raise ValueError("numbers of two axes")
    return [value]


def _squeeze(inputs: list[Any], attributes: Attributes) -> Size:
    (value,) = inputs[0]
    return value


def _reshape(inputs: list[Any], attributes: Attributes) -> Size:
    values, shape = inputs[0] if isinstance(inputs[0], list) else [inputs[0]], inputs[1]
    if len(shape) > 1:
        raise ValueError("numbers of two axes")
    return values if shape else values[0]


def _product(inputs: list[Any], attributes: Attributes) -> Size:
    values = inputs[0] if isinstance(inputs[0], list) else [inputs[0]]
    made = 1
    for value in values:
        made = made * value
    return [made] if attributes.get("keepdims", 1) else made


def _split(inputs: list[Any], attributes: Attributes) -> list[Size]:
    """Several values, each a list."""
    values, counts = [*inputs, None][:2]
    if counts is None:
        most = -(-len(values) // attributes["num_outputs"])
        return [values[start : start + most] for start in range(0, len(values), most)]
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


SIZES: dict[str, Callable[[list[Any], Attributes], Size]] = {
    "Add": _each(lambda left, right: left + right),
    "Cast": _cast,
    "Ceil": _each(math.ceil),
    "Concat": _concat,
    "Div": _each(_divided),
    "Equal": _each(lambda left, right: left == right),
    "Floor": _each(math.floor),
    "Gather": _gather,
    "Identity": lambda inputs, _: inputs[0],
    "Max": _each(lambda *values: functools.reduce(torch.sym_max, values)),
    "Min": _each(lambda *values: functools.reduce(torch.sym_min, values)),
    "Mod": _each(lambda left, right: left % right),
    "Mul": _each(lambda left, right: left * right),
    "Neg": _each(lambda value: -value),
    "ReduceProd": _product,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Sqrt": _each(math.sqrt),
    "Squeeze": _squeeze,
    "Sub": _each(lambda left, right: left - right),
    "Unsqueeze": _unsqueeze,
    "Where": _each(lambda condition, yes, no: yes if condition else no),
}
