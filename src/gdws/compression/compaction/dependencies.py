"""What Torch-Pruning finds out about a network: which channels of which layers depend on each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gdws.compression.compaction.layers import SelectChannels, SpreadChannels
from gdws.core.errors import GdwsError, first_line
from gdws.core.inputs import Inputs, call_model
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
        layer.channels = without(layer.channels, idxs)
        return layer

    def prune_in_channels(self, layer: SelectChannels, idxs: Sequence[int]) -> SelectChannels:
        left = without(torch.arange(layer.width), idxs)
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
        layer.sources = without(layer.sources, idxs)
        return layer

    def prune_in_channels(self, layer: SpreadChannels, idxs: Sequence[int]) -> SpreadChannels:
        left = without(torch.arange(layer.count), idxs).to(layer.sources)
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
class Item:
    """One side of one layer in a group: of its channels `indices` belong to those of the root that `roots` says."""

    layer: nn.Module
    makes: bool
    indices: list[int]
    roots: list[int]
    after: list[nn.Module]
    """What reads its output; nothing at the end of the network."""


def dependency_graph(model: nn.Module, example: Inputs) -> Any:
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


def group_of(graph: Any, layer: nn.Module, chosen: Sequence[int]) -> Any:
    handler = graph.get_pruner_of_module(layer).prune_out_channels
    return graph.get_pruning_group(layer, handler, list(chosen))


def items_of(graph: Any, group: Any) -> Iterator[Item]:
    for item in group:
        dep, indices = item
        node = dep.target
        makes = graph.is_out_channel_pruning_fn(dep.handler)
        yield Item(node.module, makes, list(indices), list(item.root_idxs), [after.module for after in node.outputs])


def is_known(item: Item) -> bool:
    """Whether removing channels here does what it does in the weights, and nothing else."""
    layer = item.layer
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 or is_depthwise(layer)
    match type(layer).__name__:  # what stands for a function in the graph
        case "_ElementWiseOp":
            name, own = str(layer._grad_fn).partition("Backward")[0], [type(after) for after in item.after]
            return name in WITHIN_CHANNELS or (name == "ConstantPadNd" and own == [SpreadChannels])
        case "_SliceOp":
            return bool(layer.dim > 1)  # type: ignore[operator]
        case "_ConcatOp" | "_SplitOp" | "_ReshapeOp":
            return True
    return isinstance(layer, (*READERS, *MAKERS, nn.BatchNorm2d, nn.BatchNorm1d, nn.PReLU))


def is_depthwise(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels == layer.out_channels > 1


def without(values: Tensor, indices: Sequence[int]) -> Tensor:
    left = torch.ones(len(values), dtype=torch.bool, device=values.device)
    left[list(indices)] = False
    return values[left]


@torch.no_grad()
def constants_read(model: nn.Module, example: Inputs) -> dict[nn.Module, Tensor]:
    """For every layer that reads channels, the value that each has everywhere in this pass; NaN where it has several."""
    found: dict[nn.Module, Tensor] = {}

    def note(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        x = inputs[0] if inputs else next(iter(named.values()))
        values = x.movedim(-1 if isinstance(layer, nn.Linear) else -3, 0).flatten(1).double()
        same = torch.where((values == values[:, :1]).all(1), values[:, 0], torch.nan)
        found[layer] = torch.where(found[layer] == same, same, torch.nan) if layer in found else same

    handles = [
        layer.register_forward_pre_hook(note, with_kwargs=True) for layer in model.modules() if isinstance(layer, READERS)
    ]
    try:
        call_model(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return found


def varying_roots(item: Item) -> Iterator[int]:
    """Roots of the channels that this layer makes of images."""
    layer = item.layer
    if isinstance(layer, SpreadChannels):
        idle = layer.sources == layer.count
    elif isinstance(layer, SelectChannels):
        idle = torch.zeros(len(layer.channels), dtype=torch.bool)
    elif isinstance(layer, nn.Conv2d | nn.Linear) and not is_depthwise(layer):
        idle = (layer.weight == 0).flatten(1).all(1)
    else:
        return
    if len(item.after) == 1 and isinstance(item.after[0], nn.BatchNorm2d) and item.after[0].weight is not None:
        idle = idle | (item.after[0].weight == 0)  # nothing gets through
    quiet = idle.tolist()
    yield from (root for index, root in zip(item.indices, item.roots, strict=True) if not quiet[index])
