"""Which channels of a network can go, and their removal.

Channels that depend on each other (through chains, sums, concatenations, depthwise convolutions) are found by Torch-Pruning.
One of them can be left out of all tensors that it is in if every layer that reads it

    has zeros for it in its weights,
    or reads zeros whatever the image: the channel is a constant, since nothing that makes it depends on the image, and
    that constant, which any one pass shows, is zero.

A constant other than zero stays, since zero padding makes it something else at the borders, but one of each group is enough
(gdws.compression.compaction.constants).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gdws.compression.compaction.dependencies import (
    MAKERS,
    READERS,
    Item,
    constants_read,
    dependency_graph,
    group_of,
    is_depthwise,
    is_known,
    items_of,
    varying_roots,
    without,
)
from gdws.compression.compaction.layers import SelectChannels, SpreadChannels, selected_norm, spread_norm
from gdws.core.inputs import Inputs
from gdws.core.sites import replace_modules


def remove_channels(model: nn.Module, example: Inputs) -> bool:
    """Remove in place what can go, once for each group of channels. Whether anything did."""
    graph = dependency_graph(model, example)
    zeros = {layer: values == 0 for layer, values in constants_read(model, example).items()}
    changed = False
    for layer in list(graph.module2node):
        if isinstance(layer, MAKERS) and not is_depthwise(layer):
            chosen = _removable(graph, layer, zeros)
            if chosen:
                group = group_of(graph, layer, chosen)
                items = list(items_of(graph, group))
                group.prune(record_history=False)
                for item in items:
                    if not item.makes and item.layer in zeros:
                        zeros[item.layer] = without(zeros[item.layer], item.indices)
                changed = True
    return changed


def split_norms(model: nn.Module, example: Inputs) -> None:
    """Where channels of a BatchNorm are zero but not those of the tensor around it, let it work on a selection, in place.

    After a convolution that nothing else reads, it is spread out again; elsewhere it selects what it reads.
    """
    graph = dependency_graph(model, example)
    replacements: dict[nn.Module, nn.Module] = {}
    for norm, node in graph.module2node.items():
        if type(norm) is not nn.BatchNorm2d or norm.weight is None or _is_partial(model, norm):
            continue
        idle = norm.weight == 0
        before = node.inputs[0] if len(node.inputs) == 1 else None
        private = before is not None and isinstance(before.module, nn.Conv2d) and before.outputs == [node]
        width = torch.arange(norm.num_features, device=norm.weight.device)
        if private and bool((idle & (norm.bias == 0)).any()):
            replacements[norm] = spread_norm(norm, width)
        elif not private and bool(idle.any()):
            replacements[norm] = selected_norm(norm, width, norm.num_features)
    for norm, partial in replacements.items():
        partial.training = norm.training
    replace_modules(model, replacements)


def join_norms(model: nn.Module) -> None:
    """Make what works on all channels after all a plain BatchNorm again, in place."""
    replacements: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if not isinstance(module, nn.Sequential) or len(module) != 2:
            continue
        first, second = module
        whole = isinstance(first, SelectChannels) and len(first.channels) == first.width
        if whole or (isinstance(second, SpreadChannels) and second.count == len(second.sources)):
            replacements[module] = second if whole else first
    replace_modules(model, replacements)


def _is_partial(model: nn.Module, norm: nn.Module) -> bool:
    """Whether a BatchNorm works on a selection already."""
    parts = (SelectChannels, SpreadChannels)
    return any(
        norm in parent._modules.values() and any(isinstance(child, parts) for child in parent.children())
        for parent in model.modules()
    )


def _removable(graph: Any, layer: nn.Module, zeros: dict[nn.Module, Tensor]) -> list[int]:
    """Channels that a layer makes and that can go, with all that depend on them."""
    chosen = set(range(graph.get_out_channels(layer)))
    while chosen:
        items = list(items_of(graph, group_of(graph, layer, sorted(chosen))))
        if not all(map(is_known, items)):
            return []
        varying = {root for item in items if item.makes for root in varying_roots(item)}
        bad = {root for item in items for root in _needed(item, zeros, varying)}
        if not bad:
            # No layer may be left with nothing.
            sizes = [(graph.get_out_channels if item.makes else graph.get_in_channels)(item.layer) for item in items]
            emptied = any(size is not None and len(item.indices) >= size for size, item in zip(sizes, items, strict=True))
            bad = {max(chosen)} if emptied else set()
        if not bad:
            return sorted(chosen)
        chosen -= bad
    return []


def _needed(item: Item, zeros: dict[nn.Module, Tensor], varying: set[int]) -> Iterator[int]:
    """Roots of the channels that this layer cannot do without."""
    layer = item.layer
    if item.makes and not item.after:
        needed = [True] * len(item.indices)  # what the network returns
    elif isinstance(layer, SpreadChannels) and item.makes:  # these go with the channels that they come from
        needed = (layer.sources != layer.count)[item.indices].tolist()
    elif isinstance(layer, SelectChannels) and not item.makes:  # and these with what is selected
        needed = torch.isin(torch.arange(layer.width), layer.channels.cpu())[item.indices].tolist()
    elif isinstance(layer, READERS) and not item.makes:
        reads = None if isinstance(layer, SpreadChannels) else (layer.weight != 0).transpose(0, 1).flatten(1).any(1).tolist()
        silent = zeros[layer].tolist()
        needed = [
            (reads is None or reads[index]) and (root in varying or not silent[index])
            for index, root in zip(item.indices, item.roots, strict=True)
        ]
    else:
        return
    yield from (root for root, is_needed in zip(item.roots, needed, strict=True) if is_needed)
