"""Weights to start training from."""

from __future__ import annotations

from torch import nn


def kaiming(network: nn.Module) -> None:
    """Give every convolution normal weights that keep the variance of gradients through a ReLU, and no bias."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
