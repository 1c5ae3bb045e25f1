"""Frames per second of networks on a GPU, library kernels only: docs/structures.md's table.

    python scripts/gpu_speed.py zoo:preactresnet18 FOLDER ... [--json OUT]

Each network runs as a CUDA graph, in its best of two layouts (NCHW and channels-last), cuDNN free to choose its kernels.
float16 at batch 256, and float32 (TF32 off) at batch 1. The networks take turns; the median of their times is reported.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from gdws import models

SETTINGS = {"float16, batch 256": (torch.float16, 256), "float32, batch 1": (torch.float32, 1)}
ROUNDS, REPLAYS = 30, 10


def captured(model: nn.Module, x: Tensor) -> torch.cuda.CUDAGraph:
    """A graph of one forward pass, after warming up on a stream of its own."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph


def seconds(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / REPLAYS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    rows = []
    for setting, (dtype, batch) in SETTINGS.items():
        graphs, alive = {}, []
        with torch.inference_mode():
            for name in options.models:
                for layout in (torch.contiguous_format, torch.channels_last):
                    model = models.resolve(name).to("cuda", dtype).eval()
                    model.to(memory_format=layout)  # type: ignore[call-overload]
                    x = torch.rand(batch, 3, 32, 32, device="cuda", dtype=dtype).to(memory_format=layout)
                    graphs[name, layout] = captured(model, x)
                    alive += [model, x]  # a graph reads their memory and does not own it
            taken: dict[tuple[str, torch.memory_format], list[float]] = {key: [] for key in graphs}
            for _ in range(ROUNDS):
                for key, graph in graphs.items():
                    taken[key].append(seconds(graph))
        medians = {key: sorted(times)[len(times) // 2] for key, times in taken.items()}
        first = min(time for (name, _), time in medians.items() if name == options.models[0])
        for name in options.models:
            layout, time = min(((key[1], value) for key, value in medians.items() if key[0] == name), key=lambda item: item[1])
            row = {"setting": setting, "model": name, "layout": str(layout), "ms": 1e3 * time, "fps": batch / time}
            rows.append({**row, "ratio": first / time})
            print(f"{setting:20s} {name:40s} {layout!s:24s} {1e3 * time:8.3f} ms {batch / time:10.0f} FPS {first / time:.2f}x")
    if options.json:
        record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
