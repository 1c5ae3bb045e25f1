"""The networks of the paper, by name, with fresh weights (docs/reference/zoo.md).

Each takes floats (B, 3, H, W) in [0, 1], normalizes inside if the original was trained that way, and returns logits.

>>> from gdws import zoo
>>> sorted(zoo.NETWORKS)[:3]
['mobilenetv1', 'mobilenetv2', 'preactresnet18']
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from gdws.core.errors import GdwsError
from gdws.models.zoo.mobile import mobilenetv1, mobilenetv2
from gdws.models.zoo.normalize import IMAGENET, Normalize
from gdws.models.zoo.preact import preactresnet18, preactresnet18_dws, preactresnet18_msd, preactresnet50, tiny
from gdws.models.zoo.resnet import resnet18, resnet20, resnet20_wide, resnet50_imagenet
from gdws.models.zoo.robnet import robnet_free
from gdws.models.zoo.vgg import vgg16, vgg16_hydra
from gdws.models.zoo.wide import wrn28_4

__all__ = ["IMAGENET", "NETWORKS", "Normalize", "build"]

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    factory.__name__: factory
    for factory in (
        mobilenetv1,
        mobilenetv2,
        preactresnet18,
        preactresnet18_dws,
        preactresnet18_msd,
        preactresnet50,
        resnet18,
        resnet20,
        resnet20_wide,
        resnet50_imagenet,
        robnet_free,
        tiny,
        vgg16,
        vgg16_hydra,
        wrn28_4,
    )
}
"""Every network: its name, and a function of num_classes that builds it."""


def build(name: str, num_classes: int | None = None) -> nn.Module:
    """Build a network of the zoo with fresh weights, in eval mode.

    name         one of NETWORKS, such as "resnet18".
    num_classes  by default the network's own number: 1000 for ImageNet, else 10.

    Returns an nn.Module that takes images (B, 3, 32, 32), or (B, 3, 224, 224) for ImageNet, in [0, 1] and returns logits.
    Raises GdwsError when the name is unknown or num_classes is below 1.

    >>> import torch
    >>> from gdws import zoo
    >>> zoo.build("resnet20", num_classes=100)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    """
    if name not in NETWORKS:
        raise GdwsError(f"the zoo has no network {name!r}: expected one of {', '.join(sorted(NETWORKS))}")
    if num_classes is None:
        return NETWORKS[name]().eval()
    if num_classes < 1:
        raise GdwsError(f"{name} got num_classes {num_classes}: expected at least 1")
    return NETWORKS[name](num_classes=num_classes).eval()
