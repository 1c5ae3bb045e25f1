"""Weights to start training from."""

from __future__ import annotations

import math

from torch import nn


def kaiming(network: nn.Module) -> None:
    """Give every convolution normal weights that keep the variance of gradients through a ReLU, and no bias.

    The variance is 2 / fan-out. PyTorch's own function takes the fan-out of a depthwise convolution for that of a dense one:
    its weights come out too small by the square root of the channels.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.weight[0, 0].numel() * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
