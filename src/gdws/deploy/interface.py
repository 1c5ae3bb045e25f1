"""What a network takes and gives, as files and engines have it: one tensor, or several by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdws.core.checks import check_values, unpack_batch
from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments, Inputs, tensors_of

Given = Inputs | Mapping[str, Tensor] | Sequence[Tensor]
"""Inputs, or a dictionary or tuple of tensors that stands for Arguments."""
Outputs = Tensor | dict[str, Tensor]
"""One tensor, or several by the names that a file has for them."""
IMAGES, OUTPUT, LOGITS = "images", "output", "logits"
"""Names of what has none of its own: the only tensor that is taken; what is given; and the answers of a classifier."""


def checked_inputs(given: Given) -> Inputs:
    """What a network is called with; a dictionary or a tuple of tensors as Arguments.

    Raises GdwsError for what is no tensor of numbers in memory with at least one row.

    >>> import torch
    >>> checked_inputs({"image": torch.rand(2, 3, 8, 8), "sigma": torch.rand(2)}).names
    ['image', 'sigma']
    """
    if isinstance(given, Mapping):
        inputs: Inputs = Arguments(**given)
    elif isinstance(given, list | tuple) and given:
        inputs = Arguments(*given)
    elif isinstance(given, Tensor | Arguments):
        inputs = given
    else:
        raise GdwsError(f"the network would be called with a {type(given).__name__}: expected a tensor or gdws.Arguments")
    for value in tensors_of(inputs):
        check_values(value, "images are")
    return inputs


def check_range(inputs: Inputs) -> None:
    """Refuse images for a classifier that are not (B, C, H, W) in [0, 1]; one that came from a file has a range of its own."""
    if isinstance(inputs, Tensor):
        unpack_batch(inputs)


def is_alone(output: Any, inputs: Inputs) -> bool:
    """Whether this is a sample without a batch, which convolutions take too: the answer has other rows than it."""
    if not isinstance(inputs, Tensor) or not isinstance(output, Tensor):
        return False
    return inputs.ndim == 3 and output.shape[:1] != inputs.shape[:1]


def named_outputs(output: Any, taken: Iterable[str] = ()) -> Outputs:
    """The tensors of an output, in the order of `gdws.core.inputs.floats_in`; what is no tensor is left out.

    A tensor stays one. Those in dictionaries and dataclasses have their keys as names, joined by dots, those in lists and
    tuples "output", "output1", "output2" and so on. taken: names that are somebody else's. Raises GdwsError without a tensor.

    >>> import torch
    >>> x = torch.zeros(1)
    >>> list(named_outputs({"boxes": x, "maps": [x, x], "steps": 3})), list(named_outputs((x, [x, x])))
    (['boxes', 'maps', 'maps1'], ['output', 'output1', 'output2'])
    """
    if isinstance(output, Tensor):
        return output
    found: dict[str, Tensor] = {}
    for path, value in _leaves(output, ()):
        wanted = name = ".".join(path) or OUTPUT
        number = 0
        while name in found or name in taken:
            number += 1
            name = f"{wanted}{number}"
        found[name] = value
    if not found:
        raise GdwsError(f"the model gives {type(output).__name__} without a tensor: expected tensors")
    return found


def unpacked(named: dict[str, Tensor]) -> Outputs:
    """The only one of them by itself."""
    return next(iter(named.values())) if len(named) == 1 else named


def are_logits(output: Any, inputs: Inputs) -> bool:
    """Whether this can be what a classifier gives: (B, classes)."""
    rows = len(tensors_of(inputs)[0])
    return isinstance(output, Tensor) and output.is_floating_point() and output.ndim == 2 and len(output) == rows


def on_cpu(output: Any) -> Outputs:
    """As the engines of CPUs give it, floats in float32."""
    named = named_outputs(output)
    moved = {name: _moved(value) for name, value in ({OUTPUT: named} if isinstance(named, Tensor) else named).items()}
    return unpacked(moved)


def _moved(value: Tensor) -> Tensor:
    return value.to("cpu", torch.float32 if value.is_floating_point() else None)


def _leaves(output: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    if isinstance(output, Tensor):
        yield path, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _leaves(value, path)
    elif hasattr(output, "__dataclass_fields__"):
        for name in output.__dataclass_fields__:
            yield from _leaves(getattr(output, name), (*path, name))
