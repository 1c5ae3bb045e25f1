"""A restoration network that nobody of this project made, made faster: quality against the truth and time, step by step.

    python benchmarks/restoration.py CACHE --out OUT [--network srmdnf-x2] [--speedups 1.5 2] [--steps 400]

CACHE is the folder of benchmarks/foreign_networks.py. The network is calibrated on patches of photographs that are not judged
on, planned for a speed on one core, repaired without labels on more patches of the same photographs, exported, and rounded to
int8. Each form is judged on eighteen other photographs and timed beside the dense network in its fastest engine, all by turns.
OUT gets a record after every step and pictures side by side; what is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from foreign import pictures
from foreign_networks import NETWORKS, SIGMA, quality, told, without_network
from PIL import Image
from torch import Tensor, nn

import gdws
from gdws.core.checks import AnyBatches
from gdws.core.files import write_atomically
from gdws.deploy.engines import Compiled
from gdws.planning.budgets import Budget
from gdws.planning.latency.target import device_name

PATCHES, MORE_PATCHES, SIDE = 128, 384, 48
"""Patches to calibrate on, patches to repair on, and their height and width as the network gets them."""
THREADS, ENGINES = 1, ("torch", "onnxruntime", "openvino")
SHOWN, CROP = ("china", "picosdeeuropa", "life"), 80
"""Photographs that are shown (CC BY), and how much of them: the side of the most detailed square."""


def patches_for(scale: int, cache: Path, count: int, seed: int) -> gdws.Arguments:
    """What a network is calibrated on: reduced patches, or noisy ones and the noise."""
    if scale == 1:
        clean = pictures.calibration_patches(cache, count, 2 * SIDE, seed) / 255
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed + 1))
        return told(clean + SIGMA * noise, scale)
    return told(pictures.reduced(pictures.calibration_patches(cache, count, scale * SIDE, seed), scale) / 255, scale)


def judged(truths: dict[str, Tensor], scale: int, run: nn.Module | Compiled) -> dict[str, float]:
    """Quality of a network, or of what an engine makes of it."""
    with torch.inference_mode():
        return quality(truths, scale, run if isinstance(run, Compiled) else lambda given: given.call(run))


class Records:
    """What was found, in a file that grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.values = path, json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        if name not in self.values:
            start = time.perf_counter()
            self.values[name] = measure()
            print(f"{name}: {self.values[name]} ({time.perf_counter() - start:.0f} s)", flush=True)
            write_atomically(self.path, json.dumps(self.values, indent=1))
        return self.values[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--network", default="srmdnf-x2", choices=NETWORKS)
    parser.add_argument("--speedups", nargs="*", type=float, default=[1.5, 2.0])
    parser.add_argument("--steps", type=int, default=400, help="of the repair; 0 leaves it out")
    parser.add_argument("--repair-threads", type=int, default=2)
    parser.add_argument("--sides", nargs="*", type=int, default=[64, 128], help="of the images that are timed")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    options.out.mkdir(parents=True, exist_ok=True)
    records = Records(options.out / "record.json")
    truths = pictures.test_pictures(options.cache)
    scale, build = NETWORKS[options.network]
    model, patches = build(options.cache), patches_for(scale, options.cache, PATCHES, seed=0)
    more = patches_for(scale, options.cache, MORE_PATCHES, seed=1).split(8)
    records.get("machine", lambda: {"device": device_name(), "torch": torch.__version__, "gdws": gdws.__version__})
    records.get("dense", partial(judged, truths, scale, model))
    forms: dict[str, nn.Module] = {"dense": model}
    batches, kept = patches.split(8), options.out / "statistics"
    target = gdws.Target("auto", threads=THREADS)
    for speedup in options.speedups:
        name = f"{speedup:g}x"
        folder, repaired = options.out / name, options.out / f"{name}-repaired"
        if not folder.exists():
            records.get(f"{name}, seconds", partial(compressed, model, batches, gdws.Speedup(speedup), target, kept, folder))
        forms[name] = gdws.load(folder, model)
        records.get(f"{name}, plan", partial(planned, forms[name]))
        records.get(name, partial(judged, truths, scale, forms[name]))
        if not options.steps:
            continue
        if not repaired.exists():
            torch.set_num_threads(options.repair_threads)
            settings = gdws.Repair(steps=options.steps)
            records.get(f"{name} repaired, seconds", partial(made_better, model, forms[name], more, settings, repaired))
            torch.set_num_threads(THREADS)
        forms[f"{name} repaired"] = gdws.load(repaired, model)
        records.get(f"{name} repaired", partial(judged, truths, scale, forms[f"{name} repaired"]))
    files = int8_files(forms, patches, options.out)
    for name, file in files.items():
        run = gdws.compile(file, "onnxruntime", example=patches[:1])
        records.get(f"{name} int8", partial(judged, truths, scale, run))
    timed = {name: network for name, network in forms.items() if "repaired" not in name}  # others have the same shapes
    for side in options.sides:
        records.get(f"ms at {side}", partial(times, timed, files, options.network, side))
    show(forms, truths, scale, options.out)


def compressed(
    model: nn.Module,
    batches: AnyBatches,
    budget: Budget,
    target: gdws.Target | None,
    cache: Path,
    folder: Path,
    method: gdws.Calibrated | None = None,
) -> float:
    """Compress and save; the seconds that it took."""
    start = time.perf_counter()
    gdws.save(gdws.compress(model, batches, budget, method, target=target, cache=cache), folder)
    return time.perf_counter() - start


def made_better(
    model: nn.Module,
    fast: nn.Module,
    batches: AnyBatches,
    settings: gdws.Repair,
    folder: Path,
) -> float:
    """Repair and save; the seconds that it took."""
    start = time.perf_counter()
    gdws.save(gdws.repair(model, fast, batches, settings), folder)
    return time.perf_counter() - start


def planned(network: nn.Module) -> dict[str, Any]:
    plan = gdws.plan_of(network)
    assert plan is not None
    return {"macs": plan.macs, "parameters": plan.parameters, "cost": str(plan.fidelity)}


def int8_files(forms: dict[str, nn.Module], patches: gdws.Arguments, folder: Path) -> dict[str, Path]:
    """Every network as an ONNX file in int8."""
    files = {}
    for name, network in forms.items():
        plain, files[name] = folder / f"{name}.onnx", folder / f"{name}-int8.onnx"
        if not files[name].exists():
            gdws.to_onnx(network, plain, patches[:1])
            gdws.quantize(plain, files[name], patches[:64])
    return files


def times(forms: dict[str, nn.Module], files: dict[str, Path], network: str, side: int) -> dict[str, float]:
    """Milliseconds of one image (3, side, side), lower quartiles, all in one interleaved run."""
    scale = NETWORKS[network][0]
    example = told(torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0)), scale)
    runs = {
        f"{name}, {engine}": gdws.compile(network, engine, example=example, threads=THREADS)
        for name, network in forms.items()
        for engine in ENGINES
    }
    for name in forms:
        for engine in ENGINES[1:]:
            runs[f"{name} int8, {engine}"] = gdws.compile(files[name], engine, example=example, threads=THREADS)
    return {name: 1e3 * timing.quartile for name, timing in gdws.bench(runs, example, 3, 15).items()}


def show(forms: dict[str, nn.Module], truths: dict[str, Tensor], scale: int, folder: Path) -> None:
    """Parts of some photographs, a row for each: the truth, what the networks get, and as each network restores it."""
    rows = []
    for truth in (truths[name] for name in SHOWN):
        noise = SIGMA * torch.randn(truth[None].shape, generator=torch.Generator().manual_seed(0))
        degraded = pictures.reduced(truth, scale)[None] / 255 if scale > 1 else truth[None] / 255 + noise
        given = told(degraded, scale)
        parts = [truth / 255, without_network(given, scale)[0]]
        with torch.inference_mode():
            parts += [given.call(network)[0] for network in forms.values()]
        height, width = truth.shape[1:]
        places = [(top, left) for top in range(0, height - CROP, CROP // 2) for left in range(0, width - CROP, CROP // 2)]
        top, left = max(places, key=lambda at: pictures.detail(truth[:, at[0] : at[0] + CROP, at[1] : at[1] + CROP]))
        rows.append(torch.cat([part[:, top : top + CROP, left : left + CROP] for part in parts], 2))
    picture = (255 * torch.cat(rows, 1).clamp(0, 1)).round().byte()
    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    image.resize((2 * image.width, 2 * image.height), Image.Resampling.NEAREST).save(folder / "side-by-side.png")
    print(f"side-by-side.png: truth, without a network, {', '.join(forms)}")


if __name__ == "__main__":
    main()
