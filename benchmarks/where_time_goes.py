"""Where the time of a network goes in an engine, by kind of node.

    python benchmarks/where_time_goes.py MODEL ... [--weights FILE] [--engine onnxruntime] [--precision int8]

One thread, batch 1; the engine's own times, medians over passes. "layout" is changes of layout, "norm" BatchNorm and what else
works element by element outside a convolution; "outside" is what a pass takes beyond its nodes.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from gdws import models
from gdws.deploy.engines import open_session, prepare_for_engine
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.runtimes import NodeTime

TURNS, WARMUP = 60, 10
KINDS = ("depthwise", "convolution", "gather", "layout", "norm", "head", "outside", "all")


def kind(node: NodeTime) -> str:
    if node.kind.startswith(("Reorder", "Transpose")):
        return "layout"
    if node.kind == "Gather":
        return "gather"
    if "depthwise" in node.name or node.kind == "GroupConvolution":
        return "depthwise"
    if "Conv" in node.kind and not re.search(r"_bn_|batch_norm", node.name):
        return "convolution"
    return "head" if node.kind in ("Gemm", "QGemm", "FullyConnected", "MatMul", "ReduceMean") else "norm"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--precision", default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    example = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    calibration = torch.rand(25, 3, 32, 32) if options.precision == "int8" else None
    print(f"| {options.engine} {options.precision}, us | {' | '.join(KINDS)} |\n|---|{'---|' * len(KINDS)}")
    for index, name in enumerate(options.models):
        model = models.resolve(name, options.weights if index == 0 else None)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.onnx")
            to_onnx(model, file, example)
            ready = prepare_for_engine(options.engine, file, calibration, Path(folder))
            plain = open_session(options.engine, ready, example, 1)
            profiled = open_session(options.engine, ready, example, 1, profiled=True)
        whole = []
        for _ in range(TURNS):
            profiled(example), plain(example)
            start = time.perf_counter()
            plain(example)
            whole.append(time.perf_counter() - start)
        passes = profiled.passes()[WARMUP:]
        names = dict.fromkeys(KINDS, 0.0)
        for position, node in enumerate(passes[0]):
            names[kind(node)] += median(nodes[position].seconds for nodes in passes)
        names["all"] = median(whole[WARMUP:])
        names["outside"] = names["all"] - sum(seconds for label, seconds in names.items() if label not in ("all", "outside"))
        print(f"| {name} | {' | '.join(f'{1e6 * seconds:.0f}' for seconds in names.values())} |", flush=True)


if __name__ == "__main__":
    main()
