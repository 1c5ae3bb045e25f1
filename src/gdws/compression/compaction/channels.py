"""Which channels of a network can go, and their removal.

Channels that depend on each other (through chains, sums, concatenations, depthwise convolutions) are found by Torch-Pruning.
One of them can be left out of all tensors that it is in if every layer that reads it

    has zeros for it in its weights,
    or reads zeros whatever the image: the channel is a constant, since nothing that makes it depends on the image, and
    that constant, which any one pass shows, is zero.

A constant other than zero stays: zero padding makes it something else at the borders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gdws.compression.compaction.layers import SelectChannels, SpreadChannels, selected_norm, spread_norm
from gdws.core.errors import GdwsError, first_line
from gdws.core.inputs import Inputs, call_model
from gdws.core.sites import replace_modules
from gdws.deploy.packages import require

READERS = (nn.Conv2d, nn.Linear, SpreadChannels)
"""Layers that mix or place what they read: here a channel must be zero to go."""
MAKERS = (nn.Conv2d, nn.Linear, SelectChannels)
"""Layers that make channels."""
WITHIN_CHANNELS = (
    *("Add", "Sub", "Mul", "Div", "Neg", "Relu", "LeakyRelu", "Hardtanh", "Clamp", "ClampMin", "Silu", "Gelu", "Elu", "Tanh"),
    *("Hardswish", "Hardsigmoid", "Sigmoid", "Softplus", "Mish", "NativeDropout", "Clone", "Alias", "Mean", "Sum", "Stack"),
    *("MaxPool2DWithIndices", "AvgPool2D", "AdaptiveAvgPool2D", "UpsampleNearest2D", "UpsampleBilinear2D"),
    *("Squeeze", "Unsqueeze", "T"),
)
"""Functions, by the names that autograd has for them, which leave channels where they are. T is that of a linear weight."""


class _SelectPruner:
    """What Torch-Pruning asks of a SelectChannels."""

    pruning_dim = 1

    def prune_out_channels(self, layer: SelectChannels, idxs: Sequence[int]) -> SelectChannels:
        layer.channels = _without(layer.channels, idxs)
        return layer

    def prune_in_channels(self, layer: SelectChannels, idxs: Sequence[int]) -> SelectChannels:
        left = _without(torch.arange(layer.width), idxs)
        layer.channels = torch.searchsorted(left.to(layer.channels), layer.channels)
        layer.width = len(left)
        return layer

    def get_out_channels(self, layer: SelectChannels) -> int:
        return len(layer.channels)

    def get_in_channels(self, layer: SelectChannels) -> int:
        return layer.width

    def get_in_channel_groups(self, layer: SelectChannels) -> int:
        return 1

    get_out_channel_groups = get_in_channel_groups


class _SpreadPruner:
    """What Torch-Pruning asks of a SpreadChannels."""

    pruning_dim = 1

    def prune_out_channels(self, layer: SpreadChannels, idxs: Sequence[int]) -> SpreadChannels:
        layer.sources = _without(layer.sources, idxs)
        return layer

    def prune_in_channels(self, layer: SpreadChannels, idxs: Sequence[int]) -> SpreadChannels:
        left = _without(torch.arange(layer.count), idxs).to(layer.sources)
        gone = torch.isin(layer.sources, torch.tensor(idxs).to(layer.sources))
        placed = torch.searchsorted(left, layer.sources)
        layer.count = len(left)
        layer.sources = torch.where(gone, layer.count, placed)
        return layer

    def get_out_channels(self, layer: SpreadChannels) -> int:
        return len(layer.sources)

    def get_in_channels(self, layer: SpreadChannels) -> int:
        return layer.count

    def get_in_channel_groups(self, layer: SpreadChannels) -> int:
        return 1

    get_out_channel_groups = get_in_channel_groups


@dataclass
class _Item:
    """One side of one layer in a group: of its channels `indices` belong to those of the root that `roots` says."""

    layer: nn.Module
    makes: bool
    indices: list[int]
    roots: list[int]
    after: list[nn.Module]
    """What reads its output; nothing at the end of the network."""


def remove_channels(model: nn.Module, example: Inputs) -> bool:
    """Remove in place what can go, once for each group of channels. Whether anything did."""
    graph = _graph(model, example)
    zeros = _zero_inputs(model, example)
    changed = False
    for layer in list(graph.module2node):
        if isinstance(layer, MAKERS) and not _is_depthwise(layer):
            chosen = _removable(graph, layer, zeros)
            if chosen:
                group = _group(graph, layer, chosen)
                items = list(_items(graph, group))
                group.prune(record_history=False)
                for item in items:
                    if not item.makes and item.layer in zeros:
                        zeros[item.layer] = _without(zeros[item.layer], item.indices)
                changed = True
    return changed


def split_norms(model: nn.Module, example: Inputs) -> None:
    """Where channels of a BatchNorm are zero but not those of the tensor around it, let it work on a selection, in place.

    After a convolution that nothing else reads, it is spread out again; elsewhere it selects what it reads.
    """
    graph = _graph(model, example)
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


def _graph(model: nn.Module, example: Inputs) -> Any:
    """Torch-Pruning's graph of what depends on what."""
    pruning = require("torch_pruning", "pruning")

    def forward(network: nn.Module, given: Any) -> Any:
        return call_model(network, given[0])

    pruners = {SelectChannels: _SelectPruner(), SpreadChannels: _SpreadPruner()}
    try:
        with torch.enable_grad():
            return pruning.DependencyGraph().build_dependency(
                model, [example[:1]], forward_fn=forward, customized_pruners=pruners, verbose=False
            )
    except Exception as error:  # it knows what networks are usually made of
        raise GdwsError(
            f"the layers of {type(model).__name__} cannot be traced ({first_line(error)}): expected a network that "
            "Torch-Pruning understands; it stays as it is"
        ) from error


def _group(graph: Any, layer: nn.Module, chosen: Sequence[int]) -> Any:
    handler = graph.get_pruner_of_module(layer).prune_out_channels
    return graph.get_pruning_group(layer, handler, list(chosen))


def _items(graph: Any, group: Any) -> Iterator[_Item]:
    for item in group:
        dep, indices = item
        node = dep.target
        makes = graph.is_out_channel_pruning_fn(dep.handler)
        yield _Item(node.module, makes, list(indices), list(item.root_idxs), [after.module for after in node.outputs])


def _removable(graph: Any, layer: nn.Module, zeros: dict[nn.Module, Tensor]) -> list[int]:
    """Channels that a layer makes and that can go, with all that depend on them."""
    chosen = set(range(graph.get_out_channels(layer)))
    while chosen:
        items = list(_items(graph, _group(graph, layer, sorted(chosen))))
        if not all(map(_is_known, items)):
            return []
        varying = {root for item in items if item.makes for root in _varying(item)}
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


def _is_known(item: _Item) -> bool:
    """Whether removing channels here does what it does in the weights, and nothing else."""
    layer = item.layer
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 or _is_depthwise(layer)
    match type(layer).__name__:  # what stands for a function in the graph
        case "_ElementWiseOp":
            name, own = str(layer._grad_fn).partition("Backward")[0], [type(after) for after in item.after]
            return name in WITHIN_CHANNELS or (name == "ConstantPadNd" and own == [SpreadChannels])
        case "_SliceOp":
            return bool(layer.dim > 1)  # type: ignore[operator]
        case "_ConcatOp" | "_SplitOp" | "_ReshapeOp":
            return True
    return isinstance(layer, (*READERS, *MAKERS, nn.BatchNorm2d, nn.BatchNorm1d, nn.PReLU))


def _is_depthwise(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels == layer.out_channels > 1


def _varying(item: _Item) -> Iterator[int]:
    """Roots of the channels that this layer makes of images."""
    layer = item.layer
    if isinstance(layer, SpreadChannels):
        idle = layer.sources == layer.count
    elif isinstance(layer, SelectChannels):
        idle = torch.zeros(len(layer.channels), dtype=torch.bool)
    elif isinstance(layer, nn.Conv2d | nn.Linear) and not _is_depthwise(layer):
        idle = (layer.weight == 0).flatten(1).all(1)
    else:
        return
    if len(item.after) == 1 and isinstance(item.after[0], nn.BatchNorm2d) and item.after[0].weight is not None:
        idle = idle | (item.after[0].weight == 0)  # nothing gets through
    quiet = idle.tolist()
    yield from (root for index, root in zip(item.indices, item.roots, strict=True) if not quiet[index])


def _needed(item: _Item, zeros: dict[nn.Module, Tensor], varying: set[int]) -> Iterator[int]:
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


def _zero_inputs(model: nn.Module, example: Inputs) -> dict[nn.Module, Tensor]:
    """For every layer that reads channels, which of them are zero everywhere in this pass."""
    found: dict[nn.Module, Tensor] = {}

    def note(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        x = inputs[0] if inputs else next(iter(named.values()))
        silent = (x == 0).movedim(-1 if isinstance(layer, nn.Linear) else -3, 0).flatten(1).all(1)
        found[layer] = found[layer] & silent if layer in found else silent

    readers = [layer for layer in model.modules() if isinstance(layer, READERS)]
    handles = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in readers]
    try:
        with torch.no_grad():
            call_model(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _without(values: Tensor, indices: Sequence[int]) -> Tensor:
    left = torch.ones(len(values), dtype=torch.bool, device=values.device)
    left[list(indices)] = False
    return values[left]
