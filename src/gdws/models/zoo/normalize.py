"""How a network of the zoo treats the [0, 1] images that it is given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
"""Mean and standard deviation of each channel of CIFAR-10's images in [0, 1]."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of each channel of ImageNet's images in [0, 1]."""


class Normalize(nn.Module):
    """The layer that normalizes images: (x - mean) / std for each channel.

    mean  of each channel, (C,).
    std   the standard deviation of each channel, (C,).

    The constants are no part of the state dict: they belong to the network.

    >>> import torch
    >>> from gdws import zoo
    >>> zoo.Normalize(mean=[0.5], std=[0.25])(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalized images, for images x (B, C, H, W) in [0, 1]."""
        return (x - self.mean) / self.std
