"""One GDWS layer beside the dense convolution it stands for, in the engines of this CPU.

    python benchmarks/layer_speed.py [--g 2] [--threads 1] [--json OUT]

C = M, kernel 3x3, g random with the given mean, batch 1. The dense side is the fastest of ONNX Runtime, OpenVINO and PyTorch
with packed weights; eager PyTorch, which packs them again on every call, is shown beside it. All take turns; lower quartiles.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import gdws
from gdws.planning.latency.target import device_name
from gdws.structures.layers import GDWSConv2d

LAYERS = ((64, 32), (128, 16), (256, 8), (512, 4), (64, 56), (128, 28), (256, 14), (512, 7))
"""Channels and height."""
ENGINES = ("torch", "onnxruntime", "openvino")


def pair(channels: int, mean: float, generator: torch.Generator) -> tuple[nn.Module, nn.Module]:
    """A dense convolution and a GDWS layer of its shape, with maps flattened into something like logits."""
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    kernels = round(mean * channels)
    chosen = torch.randperm(9 * channels, generator=generator)[:kernels] // 9
    layer = GDWSConv2d.like(conv, chosen.sort().values)
    for parameter in layer.parameters():
        nn.init.kaiming_normal_(parameter, generator=generator)
    return nn.Sequential(conv, nn.Flatten()).eval(), nn.Sequential(layer, nn.Flatten()).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--g", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator, rows = torch.Generator().manual_seed(0), []
    print(f"{device_name()}, {options.threads} thread(s), g of mean {options.g:g}")
    for channels, height in LAYERS:
        dense, layer = pair(channels, options.g, generator)
        example = torch.rand(1, channels, height, height, generator=generator)
        runs: dict[str, Callable[[Tensor], Tensor]] = {"dense eager": dense, "gdws eager": layer}
        for kind, model in (("dense", dense), ("gdws", layer)):
            for engine in ENGINES:
                runs[f"{kind} {engine}"] = gdws.compile(model, engine, example=example, threads=options.threads)
        timings = gdws.bench(runs, example, 20, options.repeats)
        micro = {name: 1e6 * timing.quartile for name, timing in timings.items()}
        best = {kind: min((micro[f"{kind} {engine}"], engine) for engine in ENGINES) for kind in ("dense", "gdws")}
        limit = 9 * channels / (options.g * (9 + channels))
        row = {
            "layer": f"{channels}@{height}",
            "limit": limit,
            "microseconds": micro,
            "dense": best["dense"],
            "gdws": best["gdws"],
            "speedup": best["dense"][0] / best["gdws"][0],
            "over eager dense": micro["dense eager"] / best["gdws"][0],
            "busy": timings["dense eager"].busy,
        }
        rows.append(row)
        print(
            f"{row['layer']:8s} limit {limit:.2f}  dense {best['dense'][0]:7.1f} us ({best['dense'][1]})  "
            f"gdws {best['gdws'][0]:7.1f} us ({best['gdws'][1]})  {row['speedup']:.2f}x, {row['speedup'] / limit:.2f} of it, "
            f"{row['over eager dense']:.2f}x eager dense",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"device": device_name(), "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
