"""The size of a network with pruned BatchNorm channels as the paper's table of ADMM counts it.

A chain, such as VGG-16, is counted as it is when it is compacted. Of a residual network each 3x3 convolution of a block (conv1,
conv2) is counted at the share of channels that the BatchNorm of its number keeps: on one side, though where that BatchNorm
stands between two convolutions, both could shrink. Everything else counts whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from gdws.compression.compaction.compact import compact
from gdws.core.inputs import Inputs
from gdws.core.unwrap import unwrap

MB = 2**20 / 4
"""Parameters in one, of four bytes each."""


def paper_size(model: nn.Module, example: Inputs) -> float:
    """MB of a network whose pruned channels are those of which BatchNorm's weight and bias are zero; `example`: an input.

    >>> import gdws, torch
    >>> round(paper_size(gdws.zoo.build("preactresnet18"), torch.rand(1, 3, 32, 32)), 1)
    42.6
    """
    network = unwrap(model)
    pairs = list(_pairs(network))
    if not pairs:
        network = compact(network, example)
    parameters = float(sum(parameter.numel() for parameter in network.parameters()))
    for conv, norm in pairs:
        gone = int(((norm.weight == 0) & (norm.bias == 0)).sum())
        parameters -= conv.weight.numel() * gone / norm.num_features
    return parameters / MB


def _pairs(network: nn.Module) -> Iterator[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """The 3x3 convolutions of residual blocks, each with the BatchNorm of its number."""
    for block in network.modules():
        parts = dict(block.named_children())
        if block is not network and {"conv1", "conv2", "bn1", "bn2"} <= parts.keys():
            for number in (1, 2):
                conv, norm = parts[f"conv{number}"], parts[f"bn{number}"]
                if isinstance(conv, nn.Conv2d) and conv.kernel_size == (3, 3) and isinstance(norm, nn.BatchNorm2d):
                    yield conv, norm
