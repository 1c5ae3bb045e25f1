"""Networks by name. Each takes NCHW floats in [0, 1], normalises inside and returns logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.errors import GdwsError

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2471, 0.2435, 0.2616)


class Normalize(nn.Module):
    """(x - mean) / std for each channel. The constants are no part of the state dict: they belong to the network."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after BatchNorm and ReLU; a 1x1 shortcut of the activated input where shapes change."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False)) if stride != 1 or channels != width else None
        )

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        skipped = x if self.shortcut is None else self.shortcut(activated)
        residual: Tensor = self.conv2(F.relu(self.bn2(self.conv1(activated))))
        return skipped + residual


class PreActResNet(nn.Module):
    """A pre-activation ResNet for small images: one stage for each width, each stage after the first halves the map."""

    def __init__(self, widths: Sequence[int], blocks: Sequence[int], num_classes: int = 10) -> None:
        super().__init__()
        self.stages = len(widths)
        self.normalize = Normalize(CIFAR10_MEAN, CIFAR10_STD)
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        channels = widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True), start=1):
            layers = []
            for index in range(count):
                layers.append(PreActBlock(channels, width, stride=2 if stage > 1 and index == 0 else 1))
                channels = width
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.normalize(x))
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        x = F.relu(self.bn(x))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def preactresnet18(num_classes: int = 10) -> PreActResNet:
    """Pre-activation ResNet-18 for CIFAR-10 and SVHN: 11.17 M parameters, 42.6 MB."""
    return PreActResNet((64, 128, 256, 512), (2, 2, 2, 2), num_classes)


def tiny(num_classes: int = 10) -> PreActResNet:
    """The architecture of the embedded demo model: 3x3 layers of 32, 64 and 128 channels, about 1 M parameters."""
    return PreActResNet((32, 64, 128), (2, 2, 3), num_classes)


NETWORKS: dict[str, Callable[..., nn.Module]] = {"preactresnet18": preactresnet18, "tiny": tiny}


def build(name: str, num_classes: int = 10) -> nn.Module:
    """A network of the zoo with fresh weights, in eval mode."""
    if name not in NETWORKS:
        raise GdwsError(f"the zoo has no network {name!r}: expected one of {', '.join(sorted(NETWORKS))}")
    return NETWORKS[name](num_classes=num_classes).eval()
