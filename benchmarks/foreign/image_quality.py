"""How near an image is to the truth: PSNR and SSIM, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def psnr(image: Tensor, truth: Tensor, *, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio in dB: 10 log10(peak^2 / mean squared error); infinite where they are equal.

    image, truth  tensors of one shape.
    peak          the largest value that a pixel can have.
    """
    error = float((image.double() - truth.double()).square().mean())
    return 10 * math.log10(peak**2 / error) if error > 0 else math.inf


def ssim(image: Tensor, truth: Tensor, *, peak: float = 1.0) -> float:
    """Structural similarity (Wang et al., 2004): a Gaussian window of 11x11 and sigma 1.5, the mean of all places and channels.

    image, truth  (B, C, H, W) of one shape, at least 11x11.
    peak          the largest value that a pixel can have.
    """
    distance = torch.arange(11, dtype=torch.float64) - 5
    window = (-(distance**2) / (2 * 1.5**2)).exp()
    window = window / window.sum()

    def mean(x: Tensor) -> Tensor:
        x = x.flatten(0, 1).unsqueeze(1)
        return functional.conv2d(functional.conv2d(x, window.view(1, 1, 11, 1)), window.view(1, 1, 1, 11))

    x, y = image.double(), truth.double()
    mean_x, mean_y = mean(x), mean(y)
    variances = mean(x * x) - mean_x**2 + mean(y * y) - mean_y**2
    covariance = mean(x * y) - mean_x * mean_y
    small, large = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    similarity = (2 * mean_x * mean_y + small) * (2 * covariance + large)
    return float((similarity / ((mean_x**2 + mean_y**2 + small) * (variances + large))).mean())


def luma(image: Tensor) -> Tensor:
    """The luma Y of BT.601, (B, 1, H, W) in [16, 235] / 255, of RGB images (B, 3, H, W) in [0, 1]: what papers measure on."""
    red, green, blue = image.double().unbind(1)
    return ((65.481 * red + 128.553 * green + 24.966 * blue + 16) / 255).unsqueeze(1)
