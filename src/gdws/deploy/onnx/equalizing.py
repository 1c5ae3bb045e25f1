"""Channels between two convolutions brought to one scale, before an ONNX file is rounded to int8.

A factorized convolution is two convolutions with nothing in between. One step rounds all channels that pass from the first to
the second, and one all weights of an output. A channel that is at most r large, taken up by weights of at most w, may be
multiplied by any s and these weights divided by s: the same function, but in int8 another one. s = sqrt(w / r) makes both
ranges sqrt(r w) (cross-layer equalization: Nagel et al., 2019, there with the first convolution's weights for r).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdws.deploy.packages import require

Floats = NDArray[np.float64]


def equalize(proto: Any, batches: Iterable[Mapping[str, Any]]) -> None:
    """Rescale the channels between convolutions that follow each other, in place. batches: what calibrates, by input names."""
    pairs = _pairs(proto)
    if not pairs:
        return
    constants = {constant.name: constant for constant in proto.graph.initializer}
    to_array, from_array = (getattr(require("onnx").numpy_helper, name) for name in ("to_array", "from_array"))
    ranges = _ranges(proto, [first.output[0] for first, _ in pairs], batches)

    def multiply(name: str, factors: Floats) -> None:
        value = to_array(constants[name])
        constants[name].CopyFrom(from_array((value * factors).astype(value.dtype), name))

    for first, second in pairs:
        largest = ranges[first.output[0]]
        taken = np.abs(_by_channel(to_array(constants[second.input[1]]), len(largest))).max((0, 2, 3, 4))
        usable = (largest > 0) & (taken > 0)
        factors = np.sqrt(np.divide(taken, largest, where=usable, out=np.ones(len(largest))))
        for name in first.input[1:]:
            multiply(name, factors.reshape(-1, *(1 for _ in constants[name].dims[1:])))
        multiply(second.input[1], _per_weight(1 / factors, tuple(constants[second.input[1]].dims)))


def _pairs(proto: Any) -> list[tuple[Any, Any]]:
    """Convolutions of two dimensions with constant weights of their own, of which nobody but the second takes what the first
    gives."""
    graph = proto.graph
    constants = {constant.name: constant for constant in graph.initializer}
    uses = Counter(name for node in graph.node for name in node.input) + Counter(port.name for port in graph.output)
    made_by = {node.output[0]: node for node in graph.node if node.op_type == "Conv"}

    def is_own(node: Any) -> bool:
        weights = [name for name in node.input[1:] if name]
        return all(name in constants and uses[name] == 1 for name in weights) and len(constants[node.input[1]].dims) == 4

    return [
        (made_by[node.input[0]], node)
        for node in graph.node
        if node.op_type == "Conv" and node.input[0] in made_by and uses[node.input[0]] == 1
        if is_own(node) and is_own(made_by[node.input[0]])
    ]


def _ranges(proto: Any, names: list[str], batches: Iterable[Mapping[str, Any]]) -> dict[str, Floats]:
    """The largest size of each channel of these values."""
    onnx, runtime = require("onnx"), require("onnxruntime")
    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    watched.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = runtime.InferenceSession(watched.SerializeToString())
    found: dict[str, Floats] = {}
    for batch in batches:
        for name, value in zip(names, session.run(names, dict(batch)), strict=True):
            largest = np.abs(value).max((0, 2, 3)).astype(np.float64)
            found[name] = np.maximum(found.get(name, largest), largest)
    return found


def _by_channel(weight: NDArray[Any], channels: int) -> NDArray[Any]:
    """A weight (M, n, kh, kw) of a convolution of so many channels as (M / groups, channels, 1, kh, kw)."""
    groups = channels // weight.shape[1]
    return weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(0, 1).reshape(-1, channels, 1, *weight.shape[2:])


def _per_weight(factors: Floats, shape: tuple[int, ...]) -> Floats:
    """One factor for each channel as (M, n, 1, 1), for a weight of the shape (M, n, kh, kw)."""
    by_group = factors.reshape(-1, shape[1])
    rows: Floats = by_group.repeat(shape[0] // len(by_group), 0)
    return rows[:, :, None, None]
