"""ResNets with the activation after the addition: ResNet-20 and -18 for small images, ResNet-50 for ImageNet.

State-dict names: of the small ones as in pytorch-cifar and pytorch_resnet_cifar10 (layer2.0.shortcut.0, linear), of the large
one as in torchvision (layer2.0.downsample.0, fc).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from gdws.models.zoo.initial import kaiming
from gdws.models.zoo.normalize import IMAGENET, Normalize


class BasicBlock(nn.Module):
    """Two 3x3 convolutions. Where the shape changes, the shortcut is a 1x1 convolution with BatchNorm if `project`, else every
    second pixel with channels of zeros on both sides."""

    def __init__(self, channels: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride = stride
        self.zeros = (width - channels) // 2
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
            if project and (stride != 1 or channels != width)
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(residual + self._skipped(x))

    def _skipped(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            projected: Tensor = self.shortcut(x)
            return projected
        if self.stride == 1:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.zeros, self.zeros))


class ResNet(nn.Module):
    """(B, 3, H, W) in [0, 1] to logits (B, num_classes): one stage for each width, each after the first halves the map."""

    def __init__(
        self, widths: Sequence[int], blocks: Sequence[int], num_classes: int, *, project: bool, normalize: nn.Module
    ) -> None:
        super().__init__()
        self.stages = len(widths)
        self.normalize = normalize
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        channels = widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True), start=1):
            layers = []
            for index in range(count):
                layers.append(BasicBlock(channels, width, 2 if stage > 1 and index == 0 else 1, project))
                channels = width
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.linear = nn.Linear(channels, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(self.normalize(x))))
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


class Bottleneck(nn.Module):
    """1x1 to `width`, 3x3, 1x1 to four times `width`; a 1x1 shortcut with BatchNorm where shapes change."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = self.expansion * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample = (
            nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride != 1 or channels != out
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        residual = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        skipped = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn3(self.conv3(residual)) + skipped)


class ImageNetResNet(nn.Module):
    """(B, 3, 224, 224) in [0, 1] to logits (B, num_classes): 7x7 and pooling first, then four stages of bottlenecks."""

    def __init__(self, blocks: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.normalize = Normalize(*IMAGENET)
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, count in enumerate(blocks, start=1):
            width = 32 * 2**stage
            layers = []
            for index in range(count):
                layers.append(Bottleneck(channels, width, 2 if stage > 1 and index == 0 else 1))
                channels = Bottleneck.expansion * width
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.stages = len(blocks)
        self.fc = nn.Linear(channels, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(self.normalize(x)))), 3, 2, 1)
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet20(num_classes: int = 10) -> ResNet:
    """The ResNet-20 of He et al. for CIFAR-10: 16, 32 and 64 channels, shortcuts without weights; 0.27 M parameters, 1.03 MB.

    It normalizes with ImageNet's constants, as the public checkpoints of pytorch_resnet_cifar10 want.
    """
    return ResNet((16, 32, 64), (3, 3, 3), num_classes, project=False, normalize=Normalize(*IMAGENET))


def resnet20_wide(num_classes: int = 10) -> ResNet:
    """ResNet-20 with 40, 80 and 160 channels: 1.68 M parameters, the 6.4 MB that table 2 gives for "ResNet-20"."""
    return ResNet((40, 80, 160), (3, 3, 3), num_classes, project=False, normalize=Normalize(*IMAGENET))


def resnet18(num_classes: int = 10) -> ResNet:
    """ResNet-18 for CIFAR-10 as ADMM's code trains it: images as they are; 11.17 M parameters, 42.6 MB."""
    return ResNet((64, 128, 256, 512), (2, 2, 2, 2), num_classes, project=True, normalize=nn.Identity())


def resnet50_imagenet(num_classes: int = 1000) -> ImageNetResNet:
    """ResNet-50 for ImageNet (table 5): 25.56 M parameters, 97.5 MB."""
    return ImageNetResNet((3, 4, 6, 3), num_classes)
