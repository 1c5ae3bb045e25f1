"""Denoising and doubling networks of the PyPI package waifu2x (Chainer; weights as npz), trained on drawings.

Images (B, 3, H, W) in [0, 1]. The networks convolve without padding; as in the package, the image is first padded by what they
take off its edges, with the values at its edges. `vgg7` and `resnet10` give the size back, `upconv7` and `upresnet10` twice it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from foreign.packages import from_pypi
from gdws.core.reading.weights import load_weights

VERSION = "2024.0.1"
STYLES = {
    "vgg7": "anime_style_noise{noise}_rgb",
    "resnet10": "anime_style_noise{noise}_rgb",
    "upconv7": "anime_style_noise{noise}_scale_rgb",
    "upresnet10": "anime_style_noise{noise}_scale_rgb",
}
"""Network: its files, one for each strength of the JPEG noise that it takes away, 0 to 3."""


class Plain(nn.Module):
    """Seven convolutions, the last perhaps transposed, as in VGG7 and UpConv7."""

    def __init__(self, widths: tuple[int, ...], doubles: bool) -> None:
        super().__init__()
        self.padding = 7
        pairs = zip((3, *widths[:-1]), widths, strict=True)
        for index, (before, after) in enumerate(pairs, 1):
            setattr(self, f"conv{index}", nn.Conv2d(before, after, 3))
        last = widths[-1]
        self.conv7 = nn.ConvTranspose2d(last, 3, 4, 2, 3, bias=False) if doubles else nn.Conv2d(last, 3, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = functional.pad(image, (self.padding,) * 4, "replicate")
        for index in range(1, 7):
            x = functional.leaky_relu(getattr(self, f"conv{index}")(x), 0.1)
        answer: Tensor = self.conv7(x)
        return answer


class Residual(nn.Module):
    """Two convolutions, perhaps with channels squeezed and excited, added to the middle of the input."""

    def __init__(self, squeezes: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(64, 64, 3), nn.Conv2d(64, 64, 3)
        if squeezes:
            self.fc1, self.fc2 = nn.Linear(64, 16), nn.Linear(16, 64)
        self.squeezes = squeezes

    def forward(self, x: Tensor) -> Tensor:
        y = functional.leaky_relu(self.conv2(functional.leaky_relu(self.conv1(x), 0.1)), 0.1)
        if self.squeezes:
            y = y * self.fc2(self.fc1(y.mean((2, 3))).relu()).sigmoid()[:, :, None, None]
        return x[:, :, 2:-2, 2:-2] + y


class ResNet10(nn.Module):
    """Five residual blocks and a bridge over them, as in ResNet10 and UpResNet10."""

    def __init__(self, doubles: bool) -> None:
        super().__init__()
        self.padding = 13
        self.conv_pre = nn.Conv2d(3, 64, 3)
        for index in range(1, 6):
            setattr(self, f"res{index}", Residual(doubles))
        self.conv_bridge = nn.Conv2d(64, 64, 3)
        self.conv_post = nn.ConvTranspose2d(64, 3, 4, 2, 3, bias=False) if doubles else nn.Conv2d(64, 3, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = functional.leaky_relu(self.conv_pre(functional.pad(image, (self.padding,) * 4, "replicate")), 0.1)
        bridge = x[:, :, 11:-11, 11:-11]
        for index in range(1, 6):
            x = getattr(self, f"res{index}")(x)
        answer: Tensor = self.conv_post(functional.leaky_relu(self.conv_bridge(x), 0.1) + bridge)
        return answer


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vgg7": lambda: Plain((32, 32, 64, 64, 128, 128), False),
    "upconv7": lambda: Plain((16, 32, 64, 128, 256, 256), True),
    "resnet10": lambda: ResNet10(False),
    "upresnet10": lambda: ResNet10(True),
}


def drawing_network(name: str, noise: int, cache: Path) -> nn.Module:
    """The network of a name of STYLES for JPEG noise of a strength from 0 to 3, in eval mode."""
    model = NETWORKS[name]()
    file = from_pypi("waifu2x", VERSION, cache) / "waifu2x" / "models" / name / f"{STYLES[name].format(noise=noise)}.npz"
    with np.load(file, allow_pickle=False) as arrays:
        state = {_torch_name(key): torch.tensor(arrays[key]) for key in arrays}
    load_weights(model, state, str(file))
    return model.eval()


def _torch_name(key: str) -> str:
    """`res1/conv1/W` is `res1.conv1.weight`."""
    *modules, kind = key.split("/")
    return ".".join([*modules, {"W": "weight", "b": "bias"}[kind]])
