"""Super-resolution networks of the npm packages @upscalerjs: RRDN (thick) and RDN (medium, slim), trained on DIV2K.

They are Keras networks converted to TensorFlow.js: a description, and float32 weights one after another in shards. The modules
here are the same networks in PyTorch, images (B, 3, H, W) in [0, 1] in, images scale times as large out, not clamped.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from foreign.packages import from_npm
from gdws.core.reading.weights import load_weights

VERSION = "1.0.0"
SIZES = ("thick", "medium", "slim")
SCALES = (2, 3, 4, 8)


class DenseBlock(nn.Module):
    """Convolutions that see all maps before them, then one that takes them together, added to the input."""

    def __init__(self, channels: int, growth: int, count: int, kernel: int) -> None:
        super().__init__()
        widths = [channels + growth * index for index in range(count)]
        self.convs = nn.ModuleList(nn.Conv2d(width, growth, 3, padding=1) for width in widths)
        self.fusion = nn.Conv2d(channels + growth * count, channels, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        maps = x
        for conv in self.convs:
            maps = torch.cat([maps, conv(maps).relu()], 1)
        answer: Tensor = x + self.fusion(maps)
        return answer


class ResidualOfBlocks(nn.Module):
    """Dense blocks, their sum weighted and added to the input."""

    def __init__(self, channels: int, growth: int, count: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(DenseBlock(channels, growth, count, 3) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = x + 0.2 * self.blocks(x)
        return answer


class RRDN(nn.Module):
    """Residual in residual dense network: ten residuals of three dense blocks of four convolutions and a fusing one."""

    def __init__(self, scale: int, channels: int = 64, growth: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.residuals = nn.Sequential(*(ResidualOfBlocks(channels, growth, 4, 3) for _ in range(10)))
        self.last = nn.Conv2d(channels, channels, 3, padding=1)
        self.widen = nn.Conv2d(channels, 3 * scale**2, 3, padding=1)
        self.shuffle = nn.PixelShuffle(scale)
        self.output = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.first(image)
        x = x + self.last(self.residuals(x))
        answer: Tensor = self.output(self.shuffle(self.widen(x)))
        return answer


class RDN(nn.Module):
    """Residual dense network: dense blocks of one convolution each, the output of all of them fused."""

    def __init__(self, scale: int, blocks: int, growth: int, channels: int = 64) -> None:
        super().__init__()
        self.shallow = nn.Conv2d(3, channels, 3, padding=1)
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.blocks = nn.ModuleList(DenseBlock(channels, growth, 1, 1) for _ in range(blocks))
        self.fuse = nn.Conv2d(channels * blocks, channels, 1)
        self.last = nn.Conv2d(channels, channels, 3, padding=1)
        self.up1 = nn.Conv2d(channels, 64, 5, padding=2)
        self.up2 = nn.Conv2d(64, 32, 3, padding=1)
        self.up3 = nn.Conv2d(32, 3 * scale**2, 3, padding=1)
        self.upsample = nn.Upsample(scale_factor=scale, mode="nearest")
        self.output = nn.Conv2d(3 * scale**2, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        shallow = self.shallow(image)
        x = self.first(shallow)
        maps = []
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        x = shallow + self.last(self.fuse(torch.cat(maps, 1)))
        x = self.up3(self.up2(self.up1(x).relu()).relu())
        answer: Tensor = self.output(self.upsample(x))
        return answer


def super_resolution(size: str, scale: int, cache: Path) -> nn.Module:
    """The network of @upscalerjs/esrgan-SIZE for a scale of SCALES, in eval mode."""
    files = from_npm(f"@upscalerjs/esrgan-{size}", VERSION, cache) / "models" / f"x{scale}"
    weights = read_tfjs(files / "model.json")
    if size == "thick":
        model: nn.Module = RRDN(scale)
        named = rrdn_names()
        # TensorFlow's depth to space has the colors innermost, PyTorch's pixel shuffle outermost.
        for part in ("PreShuffle/kernel", "PreShuffle/bias"):
            weights[part] = weights[part].unflatten(-1, (scale**2, 3)).transpose(-1, -2).flatten(-2)
    else:
        blocks, growth = (10, 64) if size == "medium" else (2, 4)
        model = RDN(scale, blocks, growth)
        named = rdn_names(blocks)
    state = {}
    for name, layer in named.items():
        state[f"{name}.weight"] = weights[f"{layer}/kernel"].permute(3, 2, 0, 1).contiguous()
        state[f"{name}.bias"] = weights[f"{layer}/bias"]
    if size == "thick":  # What it multiplies the output of each dense block by.
        state = {name: value * 0.2 if ".fusion." in name else value for name, value in state.items()}
    else:  # These take and give [0, 255]: in [0, 1] only the biases differ.
        state = {name: value / 255 if name.endswith("bias") else value for name, value in state.items()}
    load_weights(model, state, f"@upscalerjs/esrgan-{size}")
    return model.eval()


def rrdn_names() -> dict[str, str]:
    """{module: Keras layer}."""
    names = {"first": "Pre_blocks_conv", "last": "post_blocks_conv", "widen": "PreShuffle", "output": "SR"}
    for residual in range(10):
        for block in range(3):
            inside = f"residuals.{residual}.blocks.{block}"
            names |= {f"{inside}.convs.{conv}": f"F_{residual + 1}_{block + 1}_{conv + 1}" for conv in range(4)}
            names[f"{inside}.fusion"] = f"LFF_{residual + 1}_{block + 1}"
    return names


def rdn_names(blocks: int) -> dict[str, str]:
    """{module: Keras layer}."""
    names = {"shallow": "F_m1", "first": "F_0", "fuse": "GFF_1", "last": "GFF_2", "output": "SR"}
    names |= {"up1": "UPN1", "up2": "UPN2", "up3": "UPN3"}
    for block in range(blocks):
        names |= {f"blocks.{block}.convs.0": f"F_{block + 1}_1", f"blocks.{block}.fusion": f"LFF_{block + 1}"}
    return names


def read_tfjs(description: Path) -> dict[str, Tensor]:
    """The float32 weights that a model.json of TensorFlow.js lists, by name, in the shapes of TensorFlow."""
    weights = {}
    for group in json.loads(description.read_text())["weightsManifest"]:
        values = np.frombuffer(b"".join((description.parent / path).read_bytes() for path in group["paths"]), "<f4")
        start = 0
        for entry in group["weights"]:
            end = start + prod(entry["shape"])
            weights[entry["name"]] = torch.tensor(values[start:end]).reshape(entry["shape"])
            start = end
    return weights
