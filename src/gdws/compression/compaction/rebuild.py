"""The sizes of a network that was made smaller: noted on it, read off it, and given to the network of original size."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from gdws.compression.compaction.layers import SelectChannels, SpreadChannels, selected_norm, spread_norm
from gdws.core.errors import GdwsError
from gdws.core.sites import replace_modules
from gdws.core.unwrap import innermost
from gdws.structures.layers import FactoredConv2d

Sizes = dict[str, tuple[int, int]]
"""Input and output channels of layers, by name. A BatchNorm of which they differ works on the smaller number."""


def note_smaller(model: nn.Module, names: Iterable[str]) -> None:
    """Note on a model which of its layers were made smaller."""
    model._gdws_smaller = tuple(names)  # type: ignore[assignment]


def smaller_layers(model: nn.Module) -> Sizes:
    """The present sizes of the layers that were made smaller; empty where none was."""
    network = innermost(model)
    names = getattr(network, "_gdws_smaller", ())
    return {name: size_of(network.get_submodule(name)) for name in names if isinstance(names, tuple)}


def size_of(layer: nn.Module) -> tuple[int, int]:
    """Input and output channels of a convolution, a linear layer, or a BatchNorm of all or some channels."""
    if isinstance(layer, nn.Conv2d | FactoredConv2d):
        return layer.in_channels, layer.out_channels
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d):
        return layer.num_features, layer.num_features
    if isinstance(layer, nn.Sequential) and isinstance(layer[0], SelectChannels):
        return layer[0].width, len(layer[0].channels)
    if isinstance(layer, nn.Sequential) and isinstance(layer[-1], SpreadChannels):
        return layer[-1].count, len(layer[-1].sources)
    raise GdwsError(f"a layer that was made smaller is a {type(layer).__name__} now: expected none of another kind")


def shrink(model: nn.Module, sizes: Mapping[str, tuple[int, int]], source: str) -> None:
    """Give layers of a network the sizes that a file says, in place and without values. source: the file, for messages."""
    for name, size in sizes.items():
        try:
            layer = model.get_submodule(name)
            own = size_of(layer)
        except (AttributeError, RuntimeError, GdwsError):
            raise GdwsError(f"{source} has a smaller layer {name!r}: expected one of the given model") from None
        if not all(1 <= new <= old for new, old in zip(size, own, strict=True)):
            raise GdwsError(f"{source} has sizes {size} of {name}: expected from 1 to the model's {own}")
        replace_modules(model, {layer: _empty_like(layer, size, f"{source} has sizes {size} of {name}")})
    if sizes:
        note_smaller(model, sizes)


def other_classes(model: nn.Module, sizes: Mapping[str, tuple[int, int]]) -> int | None:
    """The classes of a smaller network where the given one has others: its last layer gives them, and never gives fewer."""
    heads = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    size = sizes.get(heads[-1]) if heads else None
    return None if size is None or size[1] == size_of(model.get_submodule(heads[-1]))[1] else size[1]


def _empty_like(layer: nn.Module, size: tuple[int, int], wrong: str) -> nn.Module:
    """A layer of another size with zeros for weights, otherwise the same."""
    inputs, outputs = size
    made = copy.deepcopy(layer)
    if isinstance(made, nn.Conv2d):
        depthwise = made.groups == made.in_channels > 1
        if (depthwise and inputs != outputs) or (made.groups > 1 and not depthwise):
            raise GdwsError(f"{wrong}: expected as many inputs as outputs of a depthwise layer, and no other one with groups")
        made.in_channels, made.out_channels, made.groups = inputs, outputs, inputs if depthwise else 1
        made.weight = _zeros(made.weight, outputs, inputs // made.groups, *made.kernel_size)
        made.bias = None if made.bias is None else _zeros(made.bias, outputs)
        return made
    if isinstance(made, nn.Linear):
        made.in_features, made.out_features = inputs, outputs
        made.weight = _zeros(made.weight, outputs, inputs)
        made.bias = None if made.bias is None else _zeros(made.bias, outputs)
        return made
    if not isinstance(made, nn.BatchNorm2d) and (inputs != outputs or not isinstance(made, nn.BatchNorm1d)):
        raise GdwsError(f"{wrong}: expected the same number twice")
    made.num_features = few = min(size)
    for name, value in (*made.named_parameters(), *made.named_buffers()):
        if value.ndim:
            setattr(made, name, _zeros(value, few) if isinstance(value, nn.Parameter) else value.new_zeros(few))
    if inputs == outputs:
        return made
    assert isinstance(made, nn.BatchNorm2d)
    device = next((value.device for value in (*layer.parameters(), *layer.buffers())), None)
    if outputs < inputs:
        return selected_norm(made, torch.arange(outputs, device=device), inputs)
    return spread_norm(made, torch.arange(outputs, device=device).clamp(max=inputs))


def _zeros(like: Tensor, *shape: int) -> nn.Parameter:
    return nn.Parameter(like.detach().new_zeros(shape), requires_grad=like.requires_grad)
