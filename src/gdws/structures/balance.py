"""Factors of equal length, for training: one learning rate then suits both."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gdws.structures.layers import FactoredConv2d


@torch.no_grad()
def balance(model: nn.Module) -> dict[str, Tensor]:
    """Give every filter of every factored layer the length of what is made of it, and return what it was multiplied by.

    The layer stays the same function. But the steepness of a loss along one factor grows with the square of the other: after
    compression filters are many times as long as their mixing (docs/explanation/training.md), and no learning rate suits both.
    """
    scales = {}
    for name, layer in model.named_modules():
        if isinstance(layer, FactoredConv2d):
            lengths = layer.filters.flatten(1).norm(dim=1)
            squares = layer.mixing.flatten(2).square().sum(2)
            mixed = squares.view(layer.groups, layer.out_channels // layer.groups, -1).sum(1).sqrt().flatten()
            scales[name] = (mixed / lengths).sqrt().where((lengths > 0) & (mixed > 0), 1.0)
            layer.rescale(scales[name])
    return scales


def unbalance(model: nn.Module, scales: Mapping[str, Tensor]) -> None:
    """Take back what `balance` did, in place: the same function."""
    for name, factors in scales.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, FactoredConv2d)
        layer.rescale(1 / factors)
