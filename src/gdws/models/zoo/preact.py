"""Pre-activation ResNets for small images, dense and depthwise-separable.

State-dict names are those of pytorch-cifar's PreActResNet and of what robust training made of it: conv1, layer1.0.bn1,
layer2.0.shortcut.0, bn, linear.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from gdws.models.zoo.normalize import CIFAR10, Normalize

Conv3x3 = Callable[[int, int, int], nn.Module]
"""A layer from (channels, width, stride)."""


def dense_3x3(channels: int, width: int, stride: int) -> nn.Module:
    return nn.Conv2d(channels, width, 3, stride, 1, bias=False)


def separable_3x3(channels: int, width: int, stride: int) -> nn.Module:
    """One 3x3 kernel for each channel, then 1x1, with nothing between: GDWS with one kernel for each channel."""
    depthwise = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
    return nn.Sequential(OrderedDict(depthwise=depthwise, pointwise=nn.Conv2d(channels, width, 1, bias=False)))


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after BatchNorm and ReLU; a 1x1 shortcut of the activated input where shapes change."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, conv3x3: Conv3x3 = dense_3x3) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = conv3x3(channels, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, 1)
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        skipped = x if self.shortcut is None else self.shortcut(activated)
        residual: Tensor = self.conv2(F.relu(self.bn2(self.conv1(activated))))
        return skipped + residual


class PreActBottleneck(nn.Module):
    """1x1 to `width`, 3x3, 1x1 to four times `width`, each after BatchNorm and ReLU; the shortcut as in PreActBlock."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, conv3x3: Conv3x3 = dense_3x3) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, self.expansion * width, 1, bias=False)
        self.shortcut = _shortcut(channels, self.expansion * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        skipped = x if self.shortcut is None else self.shortcut(activated)
        residual: Tensor = self.conv3(F.relu(self.bn3(self.conv2(F.relu(self.bn2(self.conv1(activated)))))))
        return skipped + residual


def _shortcut(channels: int, width: int, stride: int) -> nn.Module | None:
    if stride == 1 and channels == width:
        return None
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False))


class PreActResNet(nn.Module):
    """(B, 3, H, W) in [0, 1] to logits (B, num_classes): one stage for each width, each after the first halves the map.

    last_norm: BatchNorm and ReLU before the pooling. The first public version of this network had none.
    """

    def __init__(
        self,
        widths: Sequence[int],
        blocks: Sequence[int],
        num_classes: int = 10,
        *,
        block: type[PreActBlock | PreActBottleneck] = PreActBlock,
        conv3x3: Conv3x3 = dense_3x3,
        normalize: nn.Module | None = None,
        last_norm: bool = True,
    ) -> None:
        super().__init__()
        self.stages = len(widths)
        self.normalize = Normalize(*CIFAR10) if normalize is None else normalize
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        channels = widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True), start=1):
            layers = []
            for index in range(count):
                layers.append(block(channels, width, 2 if stage > 1 and index == 0 else 1, conv3x3))
                channels = block.expansion * width
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.bn = nn.BatchNorm2d(channels) if last_norm else None
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.normalize(x))
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        if self.bn is not None:
            x = F.relu(self.bn(x))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def preactresnet18(num_classes: int = 10) -> PreActResNet:
    """Pre-activation ResNet-18 for CIFAR-10 and SVHN: 11.17 M parameters, 42.6 MB."""
    return PreActResNet((64, 128, 256, 512), (2, 2, 2, 2), num_classes)


def preactresnet18_msd(num_classes: int = 10) -> PreActResNet:
    """The ResNet-18 of MSD's checkpoints (table 6): no BatchNorm at the end, images as they are. 42.6 MB."""
    widths, blocks = (64, 128, 256, 512), (2, 2, 2, 2)
    return PreActResNet(widths, blocks, num_classes, normalize=nn.Identity(), last_norm=False)


def preactresnet50(num_classes: int = 10) -> PreActResNet:
    """Pre-activation ResNet-50 for CIFAR-10: 23.51 M parameters, 89.7 MB."""
    return PreActResNet((64, 128, 256, 512), (3, 4, 6, 3), num_classes, block=PreActBottleneck)


def preactresnet18_dws(num_classes: int = 10) -> PreActResNet:
    """Table 2's ResNet-18 of depthwise-separable convolutions, in all places but the first: 1.44 M parameters, 5.5 MB."""
    return PreActResNet((64, 128, 256, 512), (2, 2, 2, 2), num_classes, conv3x3=separable_3x3)


def tiny(num_classes: int = 10) -> PreActResNet:
    """The architecture of the embedded demo model: 3x3 layers of 32, 64 and 128 channels, about 1 M parameters."""
    return PreActResNet((32, 64, 128), (2, 2, 3), num_classes)
