"""Channels that are a constant other than zero: of those that the same layers read, one is enough.

A filter of zeros gives its BatchNorm nothing, which makes a constant c_i of it whatever the image. A convolution cannot have
it as a bias, since at the borders zeros are read in its place; but another constant c_j is cut off in the same way:

    W_i * c_i + W_j * c_j = (W_j + c_i / c_j W_i) * c_j.

So W_j takes it over, and nothing reads channel i any more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gdws.compression.compaction.dependencies import (
    MAKERS,
    Item,
    constants_read,
    dependency_graph,
    group_of,
    is_depthwise,
    is_known,
    items_of,
    varying_roots,
)
from gdws.core.inputs import Inputs


@torch.no_grad()
def merge_constants(model: nn.Module, example: Inputs) -> bool:
    """Let one constant channel stand for all in what reads a group of channels, in place. Whether any did."""
    graph, values = dependency_graph(model, example), constants_read(model, example)
    merged = False
    for layer in list(graph.module2node):
        if isinstance(layer, MAKERS) and not is_depthwise(layer):
            items = list(items_of(graph, group_of(graph, layer, range(graph.get_out_channels(layer)))))
            merged |= all(map(is_known, items)) and _merge(items, values)
    return merged


def _merge(items: list[Item], values: dict[nn.Module, Tensor]) -> bool:
    """Merge the constants of one group of channels."""
    readers = [item for item in items if not item.makes and not isinstance(item.layer, nn.BatchNorm2d)]
    readers = [item for item in readers if item.layer in values or type(item.layer) in MAKERS]
    if not readers or not all(type(item.layer) in (nn.Conv2d, nn.Linear) for item in readers):
        return False
    if any(item.makes and not item.after for item in items):
        return False
    varying = {root for item in items if item.makes for root in varying_roots(item)}
    places = [dict(zip(item.roots, item.indices, strict=True)) for item in readers]
    if any(len(place) < len(item.indices) for place, item in zip(places, readers, strict=True)):
        return False  # several of a flattened map
    found = [values[item.layer].tolist() for item in readers]
    roots = set.intersection(*(set(place) for place in places)) - varying
    roots = {r for r in roots if all(abs(c[place[r]]) > 0 for c, place in zip(found, places, strict=True))}
    if len(roots) < 2:
        return False
    kept = max(sorted(roots), key=lambda r: abs(found[0][places[0][r]]))
    for item, constants, place in zip(readers, found, places, strict=True):
        weight = item.layer.weight
        assert isinstance(weight, Tensor)
        for root in sorted(roots - {kept}):
            share = constants[place[root]] / constants[place[kept]]
            weight[:, place[kept]] += share * weight[:, place[root]]
            weight[:, place[root]] = 0
    return True
