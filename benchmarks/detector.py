"""A detector that exists only as an ONNX file, made faster: the same inputs and outputs, and do its boxes agree?

    python benchmarks/detector.py CACHE --out OUT --macs 0.53 [--seconds 140 --device cuda]

CACHE is the folder of benchmarks/foreign_networks.py. The detector (PyPI ddddocr: YOLOX, boxes around characters) is
calibrated on drawn captchas, planned for a share of its MACs or (--speedup) for a speed on one core, repaired without labels on
captchas that are drawn meanwhile, and exported. Judged are captchas on other photographs: of the original's confident boxes,
how many does the fast file find with an IoU over 0.9, and how many does it make up? Boxes are decoded with NumPy from what ONNX
Runtime makes of both files. OUT gets the files and a record after every step; what is there is not made again.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from foreign import captchas, onnx_files, pictures
from foreign.boxes import Boxes, Run, agreement
from foreign.pool import Pool
from restoration import Records, compressed, planned
from torch import Tensor, nn

import gdws
from gdws.deploy.packages import require
from gdws.planning.budgets import Budget
from gdws.planning.latency.target import device_name

CALIBRATION, CHECK, TEST = 96, 200, 300
"""Pictures to calibrate on, to see on whether the repair did any good, and to judge on."""
CHECK_SEED, LEARNED_SEED = 10**6, 1000
"""The second is of the first process that draws, the others have those after it: none is one of foreign.captchas."""
BATCH, RATE, PLACES = 32, 1e-3, 1024
"""Of the repair: pictures in a step, rate, and pictures that each process keeps drawn."""
THREADS, ENGINES = 1, ("torch", "onnxruntime", "openvino")


def tuned(
    model: nn.Module, fast: nn.Module, cache: Path, seconds: float, device: torch.device, folder: Path
) -> dict[str, float]:
    """Repair on captchas that half of the cores draw meanwhile, and save: the seconds that it took, and captchas drawn.

    Every eighth of the photographs to calibrate on is not learned from: captchas on these tell whether it did any good.
    """
    photographs, fonts = list(pictures.calibration_files(cache)), captchas.fonts_of(cache)
    held = photographs[3::8]
    used = [photograph for photograph in photographs if photograph not in held]
    check = torch.stack(list(islice(captchas.draw(held, fonts, CHECK_SEED), CHECK)))
    processes = max(1, len(os.sched_getaffinity(0)) // 2)
    settings = gdws.Repair(seconds=seconds, rate=RATE)
    start = time.perf_counter()
    with Pool(used, fonts, PLACES * processes, processes, BATCH, device, LEARNED_SEED) as pool:
        torch.backends.cudnn.benchmark = True  # batches are of one size
        teacher, learner = model.to(device), fast.to(device)
        better = gdws.repair(teacher, learner, pool, settings, objective=Boxes(), check=list(check.split(8)))
        drawn = int(pool.drawn.sum())
    for network in (model, fast, better):
        network.cpu()
    took = time.perf_counter() - start
    gdws.save(better, folder)
    return {"seconds": took, "captchas drawn": drawn}


def session(file: Path) -> Run:
    """By ONNX Runtime itself."""
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


def times(files: dict[str, Path], networks: dict[str, nn.Module], example: Tensor) -> dict[str, float]:
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
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--macs", dest="budget", type=lambda share: gdws.Macs(float(share)))
    asked.add_argument("--speedup", dest="budget", type=lambda factor: gdws.Speedup(float(factor)))
    parser.add_argument("--seconds", type=float, default=0, help="of the repair; 0 leaves it out")
    parser.add_argument("--device", type=torch.device, default="cpu", help="to repair on")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    options.out.mkdir(parents=True, exist_ok=True)
    records = Records(options.out / "record.json")
    records.get("machine", lambda: {"device": device_name(), "torch": torch.__version__, "gdws": gdws.__version__})
    original = onnx_files.detector(options.cache)
    model = gdws.models.from_onnx(original)
    test = captchas.test_captchas(options.cache, TEST)
    budget: Budget = options.budget
    target = gdws.Target("auto", threads=THREADS) if budget.is_measured else None
    name = f"{type(budget).__name__.lower()}-{budget.value:g}"
    folder, repaired, files = options.out / name, options.out / f"{name}-repaired", {"dense": original}
    networks = {"dense": model}
    if not folder.exists():
        batches = captchas.calibration_captchas(options.cache, CALIBRATION).split(4)
        method, kept = gdws.Calibrated(objective=Boxes(), keep_1x1=False), options.out / "statistics"
        records.get(f"{name}, seconds", partial(compressed, model, batches, budget, target, kept, folder, method))
    networks[name] = gdws.load(folder, model)
    records.get(f"{name}, plan", partial(planned, networks[name]))
    if options.seconds:
        if not repaired.exists():
            making = partial(tuned, model, networks[name], options.cache, options.seconds, options.device, repaired)
            records.get(f"{name} repaired", making)
        networks[f"{name} repaired"] = gdws.load(repaired, model)
    for form in [form for form in networks if form != "dense"]:
        files[form] = options.out / f"{form}.onnx"
        gdws.to_onnx(networks[form], files[form], test[:1])
        records.get(f"{form}, boxes", partial(agreement, [session(original), session(files[form])], test))
    for form, file in files.items():
        records.get(f"{form}, ports", partial(ports, file))
    records.get("ms", partial(times, files, networks, test[:1]))


if __name__ == "__main__":
    main()
