"""Wide ResNets for small images, with the state-dict names of WideResNet-pytorch: block1.layer.0.convShortcut, fc."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from gdws.models.zoo.initial import kaiming


class WideBlock(nn.Module):
    """Two 3x3 convolutions, each after BatchNorm and ReLU; a 1x1 shortcut of the activated input where channels change."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.convShortcut = None if channels == width else nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        skipped = x if self.convShortcut is None else self.convShortcut(activated)
        residual: Tensor = self.conv2(F.relu(self.bn2(self.conv1(activated))))
        return skipped + residual


class WideStage(nn.Module):
    """Blocks of one width, the first of which changes the shape. A module of its own only for the name `layer`."""

    def __init__(self, blocks: int, channels: int, width: int, stride: int) -> None:
        super().__init__()
        first = WideBlock(channels, width, stride)
        self.layer = nn.Sequential(first, *(WideBlock(width, width, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class WideResNet(nn.Module):
    """(B, 3, H, W) in [0, 1], taken as they are, to logits (B, num_classes): three stages of (depth - 4) / 6 blocks."""

    def __init__(self, depth: int, factor: int, num_classes: int) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.block1 = WideStage(blocks, 16, 16 * factor, 1)
        self.block2 = WideStage(blocks, 16 * factor, 32 * factor, 2)
        self.block3 = WideStage(blocks, 32 * factor, 64 * factor, 2)
        self.bn1 = nn.BatchNorm2d(64 * factor)
        self.fc = nn.Linear(64 * factor, num_classes)
        kaiming(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        logits: Tensor = self.fc(F.relu(self.bn1(x)).mean((2, 3)))
        return logits


def wrn28_4(num_classes: int = 10) -> WideResNet:
    """WRN-28-4 for CIFAR-10 and SVHN, HYDRA's too: 5.85 M parameters, 22.3 MB."""
    return WideResNet(28, 4, num_classes)
