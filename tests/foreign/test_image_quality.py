"""PSNR and SSIM of the benchmarks against scikit-image."""

import math

import numpy as np
import pytest
import torch
from foreign.image_quality import luma, psnr, ssim


def pair(channels=3, height=24, width=31):
    generator = torch.Generator().manual_seed(0)
    truth = torch.nn.functional.avg_pool2d(torch.rand(1, channels, height + 4, width + 4, generator=generator), 5, 1)
    return (truth + 0.05 * torch.randn(truth.shape, generator=generator)).clamp(0, 1), truth


def test_psnr_by_hand():
    truth = torch.zeros(1, 1, 4, 4)
    assert psnr(truth + 0.1, truth) == pytest.approx(20, abs=1e-5)
    assert psnr(truth + 25.5, truth, peak=255) == pytest.approx(20, abs=1e-5)
    assert psnr(truth, truth) == math.inf


def test_ssim_of_constants_and_of_equals():
    image, truth = pair()
    assert ssim(truth, truth) == pytest.approx(1)
    assert ssim(image, truth) == pytest.approx(ssim(truth, image)) != 1
    light, dark = torch.full((1, 1, 11, 11), 0.75), torch.full((1, 1, 11, 11), 0.25)  # only the term of the means is left
    assert ssim(light, dark) == pytest.approx((2 * 0.1875 + 1e-4) / (0.5625 + 0.0625 + 1e-4))


@pytest.mark.parametrize("channels", [1, 3])
def test_as_in_scikit_image(channels):
    metrics = pytest.importorskip("skimage.metrics")
    image, truth = pair(channels)
    x, y = (np.moveaxis(value[0].double().numpy(), 0, -1) for value in (image, truth))
    assert psnr(image, truth) == pytest.approx(metrics.peak_signal_noise_ratio(y, x, data_range=1), abs=1e-9)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1, "channel_axis": -1}
    assert ssim(image, truth) == pytest.approx(metrics.structural_similarity(y, x, **options), abs=1e-9)


def test_luma_as_in_scikit_image():
    color = pytest.importorskip("skimage.color")
    image, _ = pair()
    expected = color.rgb2ycbcr(np.moveaxis(image[0].double().numpy(), 0, -1))[..., 0] / 255
    assert np.abs(luma(image)[0, 0].numpy() - expected).max() < 1e-6
