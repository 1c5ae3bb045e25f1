"""Which layer of a network the nodes of an engine's own graph belong to, and what each layer took.

An engine fuses nodes, renames them, and puts changes of layout between them. The names of the exported graph
(gdws.deploy.onnx.export) lead back: a fused node bears the name of its convolution or of the last operation that was fused into
it, and a suffix of the engine's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gdws.deploy.runtimes import NodeTime

FOLLOWERS = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "BatchNormalization", "Add")
"""What an engine fuses into the convolution before it."""


def owners(graph: Any) -> dict[str, set[str]]:
    """Names that an engine may give a node after fusion, and the convolutions that it may then stand for."""
    consumers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    found: dict[str, set[str]] = {}
    for node in graph.node:
        if node.op_type in ("Conv", "Gather"):
            found.setdefault(node.name, set()).add(node.name)
            value = node.output[0]
            while node.op_type == "Conv":
                found.setdefault(value, set()).add(node.name)
                after = consumers.get(value, [])
                if len(after) != 1 or after[0].op_type not in FOLLOWERS:
                    break
                value = after[0].output[0]
    return found


def layer_seconds(passes: list[list[NodeTime]], owned: dict[str, set[str]], layers: Sequence[str]) -> dict[str, list[float]]:
    """What each layer's nodes took in each pass, with the changes of layout before them. owned: what `owners` gave."""
    taken: dict[str, list[float]] = {layer: [] for layer in layers}
    for nodes in passes:
        spent = dict.fromkeys(layers, 0.0)
        names = [_plain(node.name) for node in nodes]
        alone = {next(iter(owned[name])) for name in names if len(owned.get(name, ())) == 1}
        moved = 0.0
        for name, node in zip(names, nodes, strict=True):
            if node.kind.startswith(("Reorder", "Transpose")):
                moved += node.seconds
                continue
            # Of two convolutions that are added, one takes the sum's name; the other keeps its own.
            found = owned.get(name, set())
            mine = next(iter(found - alone if len(found) > 1 else found), "")
            layer = next((layer for layer in layers if mine == layer or mine.startswith(f"{layer}.")), None)
            if layer is not None:
                spent[layer] += node.seconds + moved
            if node.seconds:
                moved = 0.0
        for layer, seconds in spent.items():
            taken[layer].append(seconds)
    return taken


def _plain(name: str) -> str:
    """A node's name without what the engines add."""
    return re.sub(r"(_token_\d+|_nchwc|/WithoutBiases)+$", "", name)
