"""MobileNets with the strides that 32x32 images want: 32x32 maps at the start, 2x2 for V1 and 4x4 for V2 at the end.

State-dict names: of V1 as in pytorch-cifar (layers.0.conv1, linear), of V2 as in torchvision (features.2.conv.0.0,
classifier.1).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from gdws.models.zoo.initial import kaiming
from gdws.models.zoo.normalize import CIFAR10, Normalize

V1_STAGES = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
"""(width, stride) of each block."""

V2_STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""(expansion, width, blocks, stride) of each stage."""


class SeparableBlock(nn.Module):
    """A depthwise 3x3 and a 1x1 convolution, each with BatchNorm and ReLU."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class MobileNetV1(nn.Module):
    """(B, 3, H, W) in [0, 1] to logits (B, num_classes): a 3x3 convolution and thirteen separable blocks."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.normalize = Normalize(*CIFAR10)
        self.conv1 = nn.Conv2d(3, 32, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        inputs = (32, *(width for width, _ in V1_STAGES))
        blocks = (SeparableBlock(channels, *stage) for channels, stage in zip(inputs, V1_STAGES, strict=False))
        self.layers = nn.Sequential(*blocks)
        self.linear = nn.Linear(inputs[-1], num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.bn1(self.conv1(self.normalize(x)))))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def _conv_norm_relu6(channels: int, width: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels, width, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU6())


class InvertedResidual(nn.Module):
    """1x1 to `expansion` times the channels, depthwise 3x3, 1x1 to `width`; added to the input where the shape stays."""

    def __init__(self, channels: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = expansion * channels
        self.adds = stride == 1 and channels == width
        self.conv = nn.Sequential(
            *([] if expansion == 1 else [_conv_norm_relu6(channels, hidden, 1)]),
            _conv_norm_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


class MobileNetV2(nn.Module):
    """(B, 3, H, W) in [0, 1] to logits (B, num_classes): a 3x3 convolution, seventeen inverted residuals, a 1x1 convolution."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.normalize = Normalize(*CIFAR10)
        layers: list[nn.Module] = [_conv_norm_relu6(3, 32, 3)]
        channels = 32
        for expansion, width, blocks, stride in V2_STAGES:
            for index in range(blocks):
                layers.append(InvertedResidual(channels, width, stride if index == 0 else 1, expansion))
                channels = width
        self.features = nn.Sequential(*layers, _conv_norm_relu6(channels, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(self.normalize(x)).mean((2, 3)))
        return logits


def mobilenetv1(num_classes: int = 10) -> MobileNetV1:
    """MobileNetV1 for CIFAR-10: 3.22 M parameters, 12.3 MB."""
    return MobileNetV1(num_classes)


def mobilenetv2(num_classes: int = 10) -> MobileNetV2:
    """MobileNetV2 for CIFAR-10: 2.24 M parameters, 8.5 MB."""
    return MobileNetV2(num_classes)
