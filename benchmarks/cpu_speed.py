"""Networks in the engines of this CPU, float32 and int8: speed, natural accuracy, and accuracy on given attacked images.

    python benchmarks/cpu_speed.py zoo:preactresnet18 FOLDER ... --weights FILE --data cifar10:DIR [--attacked NAME=FILE ...]

One thread, batch 1. Every network is built in every engine and all of them take turns in one run; a network's time is its
fastest engine's, and ratios are to the first network's in the same precision. Int8 is calibrated on 300 training images.
Accuracy is on the first --n test images, in the engine that was fastest; --attacked gives for a network a safetensors file
with `images`, made from these test images by an attack on its float32 original.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

import gdws
from gdws import data, models
from gdws.deploy.engines import Compiled

ENGINES = {"float32": ("torch", "onnxruntime", "openvino"), "int8": ("onnxruntime", "openvino")}


def accuracy(run: Compiled, images: Tensor, labels: Tensor) -> float:
    right = [int((run(x).argmax(1) == y).sum()) for x, y in zip(images.split(1), labels.split(1), strict=True)]
    return 100 * sum(right) / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", default="demo")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--attacked", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    test = data.load(options.data, "test").take(options.n)
    images, labels = test.images.float() / 255, test.labels
    calibration = data.load(options.data, "train").take(300).images.float() / 255
    attacked = {name: load_file(file)["images"] for name, file in (entry.split("=", 1) for entry in options.attacked)}
    built: dict[tuple[str, str, str], Compiled] = {}
    for index, name in enumerate(options.models):
        network = models.resolve(name, options.weights if index == 0 else None)
        for precision, engines in ENGINES.items():
            for engine in engines:
                built[name, precision, engine] = gdws.compile(
                    network, engine, example=images[:1], threads=1, precision=precision, calibration=calibration
                )
        print(f"built {name}", flush=True)
    timings = gdws.bench({" | ".join(key): run for key, run in built.items()}, images[:1], 20, options.repeats)
    rows = []
    for precision, engines in ENGINES.items():
        for name in options.models:
            taken = {engine: timings[f"{name} | {precision} | {engine}"] for engine in engines}
            fastest = min(engines, key=lambda engine: taken[engine].quartile)
            row = {
                "model": name,
                "precision": precision,
                "engine": fastest,
                "ms": {engine: 1e3 * timing.quartile for engine, timing in taken.items()},
                "busy": taken[fastest].busy,
                "natural": accuracy(built[name, precision, fastest], images, labels),
                "attacked": accuracy(built[name, precision, fastest], attacked[name], labels) if name in attacked else None,
            }
            rows.append(row)
            dense = min(rows[0 if precision == "float32" else len(options.models)]["ms"].values())
            print(
                f"{precision} {name}: {fastest} {row['ms'][fastest]:.2f} ms, {dense / row['ms'][fastest]:.2f}x, {row}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
