"""Networks of files that were exported for one image: most of their graphs take any batch, once their shapes do not say 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.signature import Signature
from gdws.deploy.packages import require
from gdws.models.onnx.network import OnnxNetwork, outputs_of
from gdws.models.onnx.noise import is_single, noise

SAME = 1e-4
"""Share of the largest value by which a sample may differ, alone and in a batch: sums are rounded in another order."""


def take_any_batch(proto: Any, make: Callable[[Any], OnnxNetwork], signature: Signature) -> OnnxNetwork:
    """The network of a graph. Where the file has 1 for the first size of all inputs and outputs, one for any batch: the graph
    with free shapes, where it gives for two samples what it gives for each; else the graph as it is, one sample at a time."""
    network = make(proto)
    if not is_single(signature):
        return network
    free = make(_with_free_rows(proto))
    free.batching = "any"
    network.batching = "one by one"
    return free if _agree(free, network, signature) else network


def _agree(free: OnnxNetwork, network: OnnxNetwork, signature: Signature) -> bool:
    samples = noise(signature, rows=2)
    try:
        with torch.no_grad():
            together, apart = (outputs_of(each(*samples)) for each in (free, network))
    except GdwsError:
        return False
    return all(
        left.shape == right.shape and bool(((left - right).abs() <= SAME * right.abs().max()).all())
        for left, right in zip((each.double() for each in together), (each.double() for each in apart), strict=True)
    )


def _with_free_rows(proto: Any) -> Any:
    """A copy in which no Reshape says that there is one row."""
    onnx = require("onnx")
    freed = onnx.ModelProto()
    freed.CopyFrom(proto)
    graph = freed.graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    sizes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in (*graph.value_info, *graph.input)
    }
    for place, node in enumerate(graph.node):
        if node.op_type != "Reshape" or node.input[1] not in constants or len(constants[node.input[1]]) == 0:
            continue
        wanted = constants[node.input[1]].copy()
        if wanted[0] != 1:
            continue
        if sizes.get(node.input[0], [])[:1] == [1]:
            wanted[0] = 0  # as many as there were
        elif -1 not in wanted:
            wanted[0] = -1
        name = f"{node.input[1]} free {place}"
        graph.initializer.append(onnx.numpy_helper.from_array(wanted, name))
        node.input[1] = name
    return freed
