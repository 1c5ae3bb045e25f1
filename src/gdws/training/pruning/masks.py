"""Which weights of a layer are kept: the same share in every layer, the largest.

What is pruned together is a *group*: a weight, a filter, a column, a channel of a BatchNorm. A layer with n groups keeps
max(1, round(keep n)) of them, whatever ties there are. To set the others to zero is the Euclidean projection onto the weights
with at most so many groups that are not zero: it removes the least of sum |w|^2.

A mask is True where a parameter is kept; it has the parameter's number of dimensions and broadcasts to its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gdws.core.errors import GdwsError
from gdws.structures.layers import FactoredConv2d

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Kind:
    """What is pruned together.

    groups     as errors call them.
    layers     those that have such groups.
    lengths    the Euclidean lengths of a weight's groups, in a shape that broadcasts to the weight's.
    with_bias  whether a group has its entry of the bias, too: a channel without it emits nothing.
    """

    groups: str
    layers: tuple[type[nn.Module], ...]
    lengths: Callable[[Tensor], Tensor]
    with_bias: bool


def _filters(weight: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.ndim)), keepdim=True)
    return lengths


def _columns(weight: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(weight, dim=0, keepdim=True)
    return lengths


KINDS = {
    "irregular": Kind("weights", (*CONVOLUTIONS, nn.Linear), torch.abs, with_bias=False),
    "batchnorm": Kind("BatchNorm channels", (_BatchNorm,), torch.abs, with_bias=True),
    "filter": Kind("filters", CONVOLUTIONS, _filters, with_bias=True),
    "column": Kind("columns", CONVOLUTIONS, _columns, with_bias=False),
}
"""A column is what all filters of a convolution have at one input channel and tap."""


def kept_of(keep: float, groups: int) -> int:
    """How many groups of a layer a share of them is."""
    return max(1, round(keep * groups))


def largest(lengths: Tensor, keep: float) -> Tensor:
    """True at the `keep` largest; of any shape. It waits for no device, so a CUDA graph may record it."""
    flat = lengths.flatten()
    chosen = flat.topk(kept_of(keep, flat.numel()), sorted=False).indices
    return torch.zeros_like(flat, dtype=torch.bool).scatter_(0, chosen, True).view(lengths.shape)


def mask_of(weight: Tensor, kind: str, keep: float) -> Tensor:
    """The mask of a layer's weight; it broadcasts to the weight's shape."""
    return largest(KINDS[kind].lengths(weight), keep)


def project(weight: Tensor, kind: str, keep: float) -> Tensor:
    """The nearest weight of which at most `keep` of the groups are not zero."""
    return torch.where(mask_of(weight, kind, keep), weight, 0.0)


def prunable_layers(model: nn.Module, kind: str, keep: float) -> dict[str, nn.Module]:
    """The layers by name that are pruned.

    Raises GdwsError where there is none, or one whose weight is not its own or has too few groups that are not zero.
    """
    chosen = KINDS[kind]
    if factored := [name for name, module in model.named_modules() if isinstance(module, FactoredConv2d)]:
        raise GdwsError(f"{factored[0]} is a factored layer: expected the network before its compression (prune first)")
    found = {name: module for name, module in model.named_modules() if isinstance(module, chosen.layers)}
    for name, module in found.items():
        if "weight" not in module._parameters:
            raise GdwsError(
                f"the weight of {name} is made from other tensors (a mask or a parametrization): expected parameters "
                "(torch.nn.utils.prune.remove and parametrize.remove_parametrizations leave such)"
            )
    layers = {name: module for name, module in found.items() if module._parameters["weight"] is not None}
    if not layers:
        raise GdwsError(f"the model has no {chosen.groups} that could be pruned: expected some, or pruning of another kind")
    owners = sorted(layers, key=lambda name: id(layers[name].weight))
    for one, other in pairwise(owners):
        if layers[one].weight is layers[other].weight:
            raise GdwsError(f"{one} and {other} have one weight between them: expected each layer to have its own")
    for name, module in layers.items():
        assert isinstance(module.weight, Tensor)
        lengths = chosen.lengths(module.weight.detach())
        least, there = kept_of(keep, lengths.numel()), int(lengths.count_nonzero())
        if there < least:
            raise GdwsError(
                f"{name} has {there} {chosen.groups} that are not zero: expected at least {least}, the share {keep:g} of them"
            )
    return layers


def masks_of(layers: Mapping[str, nn.Module], kind: str, keep: float) -> dict[str, Tensor]:
    """The masks of all parameters that are pruned, by their names in the network."""
    masks = {}
    for name, module in layers.items():
        assert isinstance(module.weight, Tensor)
        mask = mask_of(module.weight.detach(), kind, keep)
        masks[parameter_name(name, "weight")] = mask
        if KINDS[kind].with_bias and isinstance(module.bias, Tensor):
            masks[parameter_name(name, "bias")] = mask.flatten()
    return masks


@torch.no_grad()
def set_zeros(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set to zero what the masks do not keep, in place."""
    for name, mask in masks.items():
        model.get_parameter(name).masked_fill_(~mask, 0.0)


@torch.no_grad()
def groups_left(model: nn.Module, kind: str) -> dict[str, tuple[int, int]]:
    """For every layer by name: how many groups are not zero, and of how many."""
    chosen = KINDS[kind]
    layers = {name: module.weight for name, module in model.named_modules() if isinstance(module, chosen.layers)}
    lengths = {name: chosen.lengths(weight) for name, weight in layers.items() if isinstance(weight, Tensor)}
    return {name: (int(found.count_nonzero()), found.numel()) for name, found in lengths.items()}


def parameter_name(layer: str, name: str) -> str:
    """What a layer's parameter is called in the network, which may be the layer itself."""
    return f"{layer}.{name}".removeprefix(".")
