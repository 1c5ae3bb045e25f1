"""Frames per second of networks on a GPU, with kernels of cuDNN and of torch.compile.

    python benchmarks/gpu_speed.py zoo:preactresnet18 FOLDER ... [--precision float16] [--json OUT]
    python benchmarks/gpu_speed.py zoo:preactresnet18@compiled,prepared,autotuned FOLDER@autotuned ...
    python benchmarks/gpu_speed.py --layers

Each network runs as a CUDA graph, in the fastest of several ways, or of those that are named behind its @:

    NCHW, channels-last   kernels of cuDNN, which benchmarks them first, in that memory layout
    compiled              channels-last through torch.compile, which fuses what stands between convolutions
    prepared              the same, of the rewritten graph that the engine "autotuned" compiles (gdws.deploy.autotune)
    autotuned             that engine itself: kernels for convolutions are tried out too. Minutes, so only if it is named

float16 at batch 256, and float32 (TF32 off) at batch 1. The logits of each are checked against float32 in eager PyTorch. The
networks take turns; the median of their times is reported. --layers times single 3x3 layers of ResNet-18's shapes in float16
at batch 256 instead, dense and in the structures that are two plain convolutions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from gdws import models
from gdws.deploy.autotune import autotune, check_logits, prepare_graph, torch_compile
from gdws.deploy.inductor import KERNELS_BETWEEN, LOOPS_IN_AXIS_ORDER, available
from gdws.structures import STRUCTURES

SETTINGS = {"float16, batch 256": (torch.float16, 256), "float32, batch 1": (torch.float32, 1)}
SECONDS, MINUTES = ("NCHW", "channels-last", "compiled", "prepared"), ("autotuned",)
ROUNDS, REPLAYS = 30, 10


def build(model: nn.Module, way: str, example: Tensor) -> nn.Module:
    """The model, taken over, as it runs in this way."""
    if way == "NCHW":
        return model.to(example.dtype)
    options: dict[str, object] = {**KERNELS_BETWEEN}
    if way == "prepared":
        model = prepare_graph(model, example, "cuda", example.dtype)
        options |= LOOPS_IN_AXIS_ORDER
    model.to("cuda", example.dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if way == "channels-last":
        return model
    torch._dynamo.reset()
    return torch_compile(model, available(options))


def capture(model: nn.Module, x: Tensor) -> torch.cuda.CUDAGraph:
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


def print_kernels(graph: torch.cuda.CUDAGraph) -> None:
    """Microseconds of each kernel of one replay, in the order in which they ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    for event in sorted(profile.events() or [], key=lambda event: event.time_range.start):
        if event.device_time > 0:
            print(f"{event.device_time:8.1f}  {event.name[:100]}", flush=True)


def layers() -> None:
    """Microseconds of one layer, by structure and fraction of its multiply-adds."""
    for channels, height in ((64, 32), (128, 16), (256, 8), (512, 4)):
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to("cuda", torch.float16)
        x = torch.rand(256, channels, height, height, device="cuda", dtype=torch.float16)
        x = x.to(memory_format=torch.channels_last)

        def taken(layer: nn.Module, x: Tensor = x) -> float:
            graph = capture(layer.to(memory_format=torch.channels_last), x)  # type: ignore[call-overload]
            return 1e6 * median(seconds(graph) for _ in range(15))

        print(f"{channels}@{height} dense {taken(conv):.1f} us", flush=True)
        for name in ("vertical", "horizontal", "project"):
            structure, row = STRUCTURES[name], []
            for share in (0.08, 0.15, 0.3, 0.5):
                rank = max(8, round(share * conv.weight.numel() / structure.parameters(conv, 1) / 8) * 8)
                layer = structure.build_empty(conv, (rank,))
                for parameter in layer.parameters():
                    nn.init.normal_(parameter, 0, 0.02)
                row.append(f"{share:g} (rank {rank}) {taken(layer):.1f}")
            print(f"  {name}: {', '.join(row)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--precision", nargs="*", default=("float16", "float32"), choices=("float16", "float32"))
    parser.add_argument("--kernels", action="store_true", help="list the kernels of each network too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    if options.layers:
        with torch.no_grad():
            layers()
        return
    rows = []
    asked = [
        (name, ways.split(",") if ways else SECONDS) for name, _, ways in (model.partition("@") for model in options.models)
    ]
    for name, ways in asked:
        if unknown := set(ways) - {*SECONDS, *MINUTES}:
            parser.error(f"{name} has the way {unknown.pop()!r}: expected among {', '.join((*SECONDS, *MINUTES))}")
    for setting, (dtype, batch) in SETTINGS.items():
        precision = setting.split(",")[0]
        if precision not in options.precision:
            continue
        graphs, alive = {}, list[object]()
        with torch.no_grad():
            for name, ways in asked:
                for way in ways:
                    network = models.resolve(name).to("cuda").eval()
                    x = torch.rand(batch, 3, 32, 32, device="cuda", dtype=dtype)
                    if way == "autotuned":
                        run = autotune(network, x.float(), precision)
                        ((graphs[name, way], *_),) = run.replay.recordings.values()
                        alive.append(run)
                    else:
                        wanted = network(x.float())
                        model = build(network, way, x)
                        if way != "NCHW":
                            x = x.to(memory_format=torch.channels_last)
                        check_logits(model(x), wanted, precision)
                        graphs[name, way] = capture(model, x)
                        alive += [model, x]  # a graph reads their memory and does not own it
                    print(f"{name}, {way}, {setting}: {1e3 * seconds(graphs[name, way]):.3f} ms", flush=True)
                    if options.kernels:
                        print_kernels(graphs[name, way])
            taken: dict[tuple[str, str], list[float]] = {key: [] for key in graphs}
            for _ in range(ROUNDS):
                for key, graph in graphs.items():
                    taken[key].append(seconds(graph))
        medians = {key: sorted(times)[len(times) // 2] for key, times in taken.items()}
        first = min(time for (name, _), time in medians.items() if name == asked[0][0])
        for name, ways in asked:
            way, time = min(((key[1], value) for key, value in medians.items() if key[0] == name), key=lambda item: item[1])
            row = {"setting": setting, "model": name, "way": way, "ms": 1e3 * time, "fps": batch / time}
            ways_ms = {other: 1e3 * medians[name, other] for other in ways}
            rows.append({**row, "ratio": first / time, "ways ms": ways_ms})
            others = ", ".join(f"{other} {ms:.3f}" for other, ms in ways_ms.items() if other != way)
            found = f"{way:14s} {1e3 * time:8.3f} ms {batch / time:10.0f} FPS {first / time:.2f}x"
            print(f"{setting:20s} {name:40s} {found} ({others})", flush=True)
    if options.json:
        record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
