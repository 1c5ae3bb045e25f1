"""A detector that exists only as an ONNX file, made faster: the same inputs and outputs, and do its boxes agree?

    python benchmarks/detector.py CACHE --out OUT [--speedup 1.5] [--steps 300]

CACHE is the folder of benchmarks/foreign_networks.py. The detector (PyPI ddddocr: YOLOX, boxes around characters) is
calibrated on drawn captchas, planned for a speed on one core, repaired without labels on more of them, and exported. Judged are
captchas on other photographs: of the original's confident boxes, how many does the fast file find with an IoU over 0.9, and how
many does it make up? Boxes are decoded here, with NumPy, from what ONNX Runtime makes of both files. OUT gets the files and a
record after every step; what is there is not made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from foreign import captchas, onnx_files
from numpy.typing import NDArray
from restoration import Records, compressed, made_better, planned
from torch import Tensor

import gdws
from gdws.deploy.packages import require
from gdws.objectives.base import Objective, random_signs
from gdws.planning.latency.target import device_name

CALIBRATION, MORE, TEST = 96, 384, 300
"""Pictures to calibrate on, to repair on, and to judge on."""
STRIDES = (8, 16, 32)
CONFIDENT, POSSIBLE, OVERLAP, AGREES = 0.5, 0.1, 0.45, 0.9
"""Scores of boxes that must be found again, and of those that may count as finding them; of two that overlap by more (IoU) the
better is kept; what the IoU of an original's box and the fast detector's must be over."""
THREADS, ENGINES = 1, ("torch", "onnxruntime", "openvino")

Floats = NDArray[np.float32]


class Boxes(Objective):
    """Keep boxes in proportion to their score, relative to their size, and scores: of outputs (B, places, 6) with the middle
    relative to the place and the logarithms of the sizes, all in strides, and two factors of the score. The squared error is

        sum over places of  score (dx^2 / w^2 + dy^2 / h^2 + dlog(w)^2 + dlog(h)^2) + dscore^2.
    """

    name: ClassVar[str] = "boxes"
    unit: ClassVar[str] = "squared error of a picture's boxes"

    def errors(self, before: Tensor, after: Tensor) -> Tensor:
        """What is squared, (B, places, 5): linear in small changes of the output."""
        first, second = (torch.cat([o[..., :4], o[..., 4:5] * o[..., 5:]], 2).float() for o in (before, after))
        score, sizes = first[..., 4:], first[..., 2:4].exp()
        weights = torch.cat([score.sqrt() / sizes, score.sqrt().expand_as(sizes), torch.ones_like(score)], 2)
        return weights.detach() * (second - first.detach())

    def cotangents(self, outputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        (output,) = outputs
        moving = output.detach().requires_grad_(True)
        with torch.enable_grad():
            errors = self.errors(output.detach(), moving)
            return list(torch.autograd.grad((errors * random_signs(errors, generator)).sum(), moving))

    def loss(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        return self.errors(before[0], after[0]).square().flatten(1).sum(1).mean()

    def distances(self, before: Any, after: Any) -> Tensor:
        return self.errors(before, after).double().square().flatten(1).sum(1).cpu()


def found(output: Floats) -> tuple[Floats, Floats]:
    """Corners (N, 4) in pixels and scores (N,) of the boxes in one output (places, 6), the best of those that overlap."""
    sides = [captchas.SIDE // stride for stride in STRIDES]
    grid = np.concatenate([np.stack(np.meshgrid(np.arange(n), np.arange(n)), -1).reshape(-1, 2) for n in sides])
    stride = np.repeat(STRIDES, [n * n for n in sides])[:, None]
    middle, half = (output[:, :2] + grid) * stride, np.exp(output[:, 2:4]) * stride / 2
    boxes, scores = np.concatenate([middle - half, middle + half], 1), output[:, 4] * output[:, 5]
    kept: list[int] = []
    for index in np.argsort(-scores):
        if scores[index] < POSSIBLE:
            break
        if not kept or overlaps(boxes[[index]], boxes[kept]).max() <= OVERLAP:
            kept.append(int(index))
    return boxes[kept], scores[kept]


def overlaps(first: Floats, second: Floats) -> Floats:
    """Intersection over union of boxes (N, 4) and (M, 4): (N, M)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clip(0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (first, second)]
    found: Floats = shared / (areas[0][:, None] + areas[1] - shared)
    return found


def agreement(original: Path, fast: Path, pictures: Tensor) -> dict[str, float]:
    """How the boxes of two files agree: per cent of the original's confident ones that the other has, and of the other's that
    the original has, with the other threshold for a match."""
    runs, counts, matched = [session(file) for file in (original, fast)], [0, 0], [0, 0]
    ious: list[float] = []
    for picture in pictures.split(1):
        sides = [found(run(picture)) for run in runs]
        for index, (boxes, scores) in enumerate(sides):
            others = sides[1 - index][0]
            wanted = boxes[scores >= CONFIDENT]
            best = overlaps(wanted, others).max(1) if len(others) and len(wanted) else np.zeros(len(wanted))
            counts[index] += len(wanted)
            matched[index] += int((best > AGREES).sum())
            if index == 0:
                ious += best.tolist()
    return {
        "confident": counts[0],
        "found, %": 100 * matched[0] / counts[0],
        "median IoU": float(np.median(ious)),
        "confident of the other": counts[1],
        "of these in the original, %": 100 * matched[1] / counts[1],
    }


def session(file: Path) -> Any:
    """A function of one picture, by ONNX Runtime itself."""
    onnxruntime = require("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    run = onnxruntime.InferenceSession(file, options)
    return lambda picture: run.run(["output"], {"images": picture.numpy()})[0][0]


def ports(file: Path) -> dict[str, list[str]]:
    """Names, types and shapes of a file's inputs and outputs."""
    onnxruntime = require("onnxruntime")
    run = onnxruntime.InferenceSession(file)
    return {
        kind: [f"{port.name} {port.type} {port.shape}" for port in of]
        for kind, of in (("inputs", run.get_inputs()), ("outputs", run.get_outputs()))
    }


def times(files: dict[str, Path], networks: dict[str, torch.nn.Module], example: Tensor) -> dict[str, float]:
    """Milliseconds of a picture, lower quartiles, all in one interleaved run."""
    runs = {
        f"{name}, {engine}": gdws.compile(
            networks[name] if engine == "torch" else file, engine, example=example, threads=THREADS
        )
        for name, file in files.items()
        for engine in (ENGINES if name in networks else ENGINES[1:])
    }
    return {name: 1e3 * timing.quartile for name, timing in gdws.bench(runs, example, 3, 20).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--speedup", type=float, default=1.5)
    parser.add_argument("--steps", type=int, default=300, help="of the repair; 0 leaves it out")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    options.out.mkdir(parents=True, exist_ok=True)
    records = Records(options.out / "record.json")
    records.get("machine", lambda: {"device": device_name(), "torch": torch.__version__, "gdws": gdws.__version__})
    original = onnx_files.detector(options.cache)
    model = gdws.models.from_onnx(original)
    pictures = captchas.calibration_captchas(options.cache, CALIBRATION + MORE)
    batches, more = list(pictures[:CALIBRATION].split(4)), list(pictures[CALIBRATION:].split(4))
    test = captchas.test_captchas(options.cache, TEST)
    objective, target = Boxes(), gdws.Target("auto", threads=THREADS)
    method = gdws.Calibrated(objective=objective, keep_1x1=False)
    name = f"{options.speedup:g}x"
    folder, repaired, files = options.out / name, options.out / f"{name}-repaired", {"dense": original}
    networks = {"dense": model}
    if not folder.exists():
        kept = options.out / "statistics"
        records.get(f"{name}, seconds", partial(compressed, model, batches, options.speedup, target, kept, folder, method))
    networks[name] = gdws.load(folder, model)
    records.get(f"{name}, plan", partial(planned, networks[name]))
    if options.steps:
        if not repaired.exists():
            settings = gdws.Repair(steps=options.steps, batch=4)
            making = partial(made_better, model, networks[name], more, settings, repaired, objective)
            records.get(f"{name} repaired, seconds", making)
        networks[f"{name} repaired"] = gdws.load(repaired, model)
    for form in [form for form in networks if form != "dense"]:
        files[form] = options.out / f"{form}.onnx"
        gdws.to_onnx(networks[form], files[form], test[:1])
        records.get(f"{form}, boxes", partial(agreement, original, files[form], test))
    for form, file in files.items():
        records.get(f"{form}, ports", partial(ports, file))
    records.get("ms", partial(times, files, networks, test[:1]))


if __name__ == "__main__":
    main()
