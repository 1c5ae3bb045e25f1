"""Networks by name. Each takes NCHW floats in [0, 1], normalises inside if it was trained so, and returns logits."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from gdws.errors import GdwsError
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


def build(name: str, num_classes: int | None = None) -> nn.Module:
    """A network of the zoo with fresh weights, in eval mode, with its own number of classes (ImageNet's 1000, else 10) or the
    given one."""
    if name not in NETWORKS:
        raise GdwsError(f"the zoo has no network {name!r}: expected one of {', '.join(sorted(NETWORKS))}")
    if num_classes is None:
        return NETWORKS[name]().eval()
    if num_classes < 1:
        raise GdwsError(f"{name} got num_classes {num_classes}: expected at least 1")
    return NETWORKS[name](num_classes=num_classes).eval()
