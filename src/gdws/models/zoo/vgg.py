"""VGG-16 with BatchNorm for 32x32 images, in the form of pytorch-cifar and ADMM and in HYDRA's; images taken as they are."""

from __future__ import annotations

from torch import Tensor, nn

from gdws.models.zoo.initial import kaiming

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def _features(bias: bool, last_pool: bool) -> nn.Sequential:
    """3x3 convolutions with BatchNorm and ReLU, each stage but perhaps the last followed by pooling: 32x32 to 1x1, or 2x2."""
    layers: list[nn.Module] = []
    channels = 3
    for index, stage in enumerate(STAGES):
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, 1, 1, bias=bias), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        if last_pool or index < len(STAGES) - 1:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


class VGG(nn.Module):
    """(B, 3, 32, 32) in [0, 1] to logits (B, num_classes)."""

    def __init__(self, features: nn.Sequential, map_size: int, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.pool = nn.AdaptiveAvgPool2d(map_size)
        self.classifier = classifier
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pool(self.features(x)).flatten(1))
        return logits


def vgg16(num_classes: int = 10) -> VGG:
    """VGG-16 for CIFAR-10 and SVHN, ADMM's too: one linear layer at the end; 14.73 M parameters, 56.2 MB."""
    return VGG(_features(bias=True, last_pool=True), 1, nn.Linear(512, num_classes))


def vgg16_hydra(num_classes: int = 10) -> VGG:
    """HYDRA's VGG-16: no biases in convolutions, four poolings, three linear layers; 15.31 M parameters, 58.4 MB."""
    classifier = nn.Sequential(
        nn.Linear(512 * 2 * 2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, num_classes)
    )
    return VGG(_features(bias=False, last_pool=False), 2, classifier)
