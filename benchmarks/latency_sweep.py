"""Plans under latency budgets, for networks of several kinds: predicted and measured latency.

    python benchmarks/latency_sweep.py [MODEL --weights FILE --data cifar10:DIR] [--precision int8] [--json OUT]

The embedded model, a network of your own if one is given, and three with random weights whose convolutions are like VGG's,
ResNet-50's and WRN's at 32x32 (up to 256 channels, so that their statistics take a minute). One thread, batch 1, the fastest
engine on both sides. "first" is the first plan, as predicted and as it then ran; "kept" the best after corrections.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gdws
from gdws import data, models
from gdws.calibration.method import ATTACK
from gdws.core.sites import find_convolutions
from gdws.planning.latency.measure import measure_latencies
from gdws.planning.latency.search import closest_within, search_plans
from gdws.structures import select_structures

FRACTIONS = (1.0, 0.6, 0.4)


class Residual(nn.Module):
    """x + body(x), through a 1x1 convolution where shapes differ."""

    def __init__(self, body: nn.Module, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def conv(before: int, after: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)]


def with_head(layers: list[nn.Module], channels: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)).eval()


def vgg_like() -> nn.Module:
    layers: list[nn.Module] = []
    before = 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 256, 256, 256):
        layers += [nn.MaxPool2d(2)] if width == 0 else [*conv(before, width, 3), nn.ReLU()]
        before = width or before
    return with_head(layers, before)


def resnet50_like() -> nn.Module:
    layers, before = [*conv(3, 64, 3), nn.ReLU()], 64
    for width, blocks, stride in ((32, 3, 1), (64, 4, 2), (128, 6, 2), (256, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            body = [*conv(before, width, 1), nn.ReLU(), *conv(width, width, 3, step), nn.ReLU(), *conv(width, 4 * width, 1)]
            layers.append(Residual(nn.Sequential(*body), before, 4 * width, step))
            before = 4 * width
    return with_head(layers, before)


def wrn_like() -> nn.Module:
    layers, before = [*conv(3, 16, 3), nn.ReLU()], 16
    for width, stride in ((64, 1), (128, 2), (256, 2)):
        for block in range(3):
            step = stride if block == 0 else 1
            body = [*conv(before, width, 3, step), nn.ReLU(), *conv(width, width, 3)]
            layers.append(Residual(nn.Sequential(*body), before, width, step))
            before = width
    return with_head(layers, before)


def networks(options: argparse.Namespace) -> Iterator[tuple[str, nn.Module, list[Any]]]:
    """Names, networks and batches to calibrate on."""
    torch.manual_seed(0)
    yield "embedded", models.embedded(), list(data.load("demo", "train").take(32))
    if options.model:
        yield options.model, models.resolve(options.model, options.weights), list(data.load(options.data, "train").take(500))
    for name, build in (("VGG-like", vgg_like), ("ResNet-50-like", resnet50_like), ("WRN-like", wrn_like)):
        yield name, build(), [torch.rand(32, 3, 32, 32)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", default="demo")
    parser.add_argument("--cache", type=Path, help="statistics of MODEL, kept by gdws compress")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    structures = select_structures("auto")
    for name, model, batches in networks(options):
        own = name == options.model  # its statistics as `gdws compress` keeps them
        attack, cache = (ATTACK, options.cache) if own else (None, None)
        statistics = gdws.calibrate(model, batches, gdws.Calibrated(attack=attack), cache=cache)
        sites = [site for site in find_convolutions(model, statistics.images[:1]) if site.reason is None]
        table = measure_latencies(model, sites, structures, statistics, gdws.Target(precision=options.precision, threads=1))
        for fraction in FRACTIONS:
            try:
                found = list(search_plans(model, sites, structures, statistics, gdws.Latency(fraction), table))
            except gdws.GdwsError as error:
                print(f"{name:20s} Latency({fraction:g}) {error}", flush=True)
                continue
            first = found[0][1]
            _, last = closest_within(found, gdws.Latency(fraction))
            row = {
                "network": name,
                "budget": fraction,
                "engine": last.engine,
                "dense": last.dense_engine,
                "dense ms": 1e3 * last.dense_seconds,
                "first": (first.predicted, first.latency),
                "kept": last.latency,
                "plans": len(found),
            }
            rows.append(row)
            print(
                f"{name:20s} Latency({fraction:g}) {last.engine:12s} first {first.predicted:.3f} -> {first.latency:.3f} "
                f"({first.latency / first.predicted - 1:+.1%})  kept {last.latency:.3f} of {1e3 * last.dense_seconds:.2f} ms "
                f"after {len(found)} plans",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
