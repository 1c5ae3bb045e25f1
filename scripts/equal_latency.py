"""Ways to compress a network at one measured speed: docs/speed.md's table.

    python scripts/equal_latency.py zoo:preactresnet18 --weights FILE --train DATA --speedup 2.8 --out FOLDER
        [--precision int8] [--ways auto gdws separable auto-by-macs paper] [--cache FOLDER]           # on the CPU in question
    python scripts/equal_latency.py ... --gpu "float32, batch 1" --speedup 2 --device cuda            # on the GPU in question
    python scripts/equal_latency.py ... --out FOLDER --test DATA --n 2000 --device cuda               # anywhere

The first command plans: each way gets the plan that is --speedup times as fast as the dense network in its fastest engine
(one thread, batch 1, the same precision). auto, gdws and separable are planned by time; the others by multiply-adds, their
fraction bisected until the time is right. The second command does so for a GPU, where all are planned by multiply-adds; a
network's time is that of its forward pass as a CUDA graph in the faster of two layouts (gpu_speed.py, without torch.compile).
Plans are kept in the folder, one file for each way and precision, and not made again. With --test the plans of the folder are
applied and judged on the same images from the same random starts (natural, PGD-20); an int8 plan also as an int8 file that
decides the examples made on its float32 network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_speed import EAGER, SETTINGS, graphs_of, in_turns
from torch import nn

import gdws
from gdws import data, models
from gdws.attacks.presets import named
from gdws.bench import bench
from gdws.choices import Choice
from gdws.comparison import NATURAL, percent
from gdws.engines import Compiled, compile
from gdws.export import to_onnx
from gdws.files import write_atomically
from gdws.latency import Target, Timetable, mock, timetable
from gdws.plans import Plan
from gdws.protocol import compare, deployed_file
from gdws.quantise import quantise
from gdws.statistics import Statistics
from gdws.structures import STRUCTURES
from gdws.structures import named as structures_named
from gdws.surgery import survey

BY_TIME = ("auto", "gdws", "separable")
BY_MACS: dict[str, tuple[str, str]] = {
    "auto-by-macs": ("calibrated", "auto"),
    "separable-by-macs": ("calibrated", "separable"),
    "gdws-by-macs": ("calibrated", "gdws"),
    "paper": ("paper", "gdws"),
}
CLOSE = 0.01
"""How near, as a part of it, a bisected latency must come to the one that is asked for."""


def bisected(measure: Callable[[float], float], share: float) -> float:
    """The fraction of the MACs whose latency is nearest to `share`, seven measurements at most."""
    low, high, tried = 0.05, 1.0, dict[float, float]()
    for _ in range(7):
        fraction = (low + high) / 2
        tried[fraction] = measure(fraction)
        if abs(tried[fraction] / share - 1) < CLOSE:
            return fraction
        low, high = (fraction, high) if tried[fraction] < share else (low, fraction)
    return min(tried, key=lambda fraction: abs(tried[fraction] - share))


Clock = Callable[[Plan], tuple[float, str]]
"""A plan's time as a fraction of the dense network's, and where it runs fastest."""


def noisy(model: nn.Module, made: Plan) -> nn.Module:
    """A network of this plan with noise for weights."""
    layers = [layer for layer in made.layers if layer.structure != "dense"]
    return mock(model, {layer.name: Choice(STRUCTURES[layer.structure], 0, layer.kept, layer.loss) for layer in layers})


def cpu_clock(model: nn.Module, table: Timetable, images: torch.Tensor) -> Clock:
    def compiled(network: nn.Module, engine: str) -> Compiled:
        precision = table.target.precision
        return compile(network, engine, example=images[:1], threads=1, precision=precision, calibration=images[:25])

    def clock(made: Plan) -> tuple[float, str]:
        runs = {"dense": compiled(model, table.reference[0])}
        runs |= {engine: compiled(noisy(model, made), engine) for engine in table.engines}
        timings = bench(runs, images[:1], 10, 60)
        engine = min(table.engines, key=lambda name: timings[name].quartile)
        return timings[engine].quartile / timings["dense"].quartile, engine

    return clock


def gpu_clock(model: nn.Module, setting: str) -> Clock:
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    dense = graphs_of(model, setting, EAGER)

    def clock(made: Plan) -> tuple[float, str]:
        small = graphs_of(noisy(model, made), setting, EAGER)
        graphs = {(name, way): graph for name, own in (("dense", dense), ("small", small)) for way, (graph, _) in own.items()}
        taken = in_turns(graphs)
        way = min(EAGER, key=lambda way: taken["small", way])
        return taken["small", way] / min(taken["dense", way] for way in EAGER), f"{setting}, {way}"

    return clock


def make_plans(options: argparse.Namespace, model: nn.Module, statistics: Statistics) -> None:
    """Those of --ways that the folder does not hold."""
    images = statistics.images[:25].float()
    if options.gpu:
        clock, prefix = gpu_clock(model, options.gpu), f"gpu-{options.gpu}".replace(", batch ", "-")
    else:
        sites = [site for site in survey(model, images[:1]) if site.reason is None]
        target = Target(precision=options.precision, threads=1)
        table = timetable(model, sites, structures_named("auto"), statistics, target, options.cache)
        clock, prefix = cpu_clock(model, table, images), options.precision
    for way in options.ways:
        file = options.out / f"{prefix}-{way}.json"
        if file.exists():
            continue
        if way in BY_TIME:
            made = gdws.plan(model, statistics, gdws.Speedup(options.speedup), structures=way, target=table)
            assert made.measured is not None
            taken, where = made.measured.latency, made.measured.engine
        else:
            method, structures = BY_MACS[way]

            def planned(fraction: float, method: str = method, structures: str = structures) -> Plan:
                return gdws.plan(model, statistics, gdws.Macs(fraction), method, structures=structures)

            made = planned(bisected(lambda fraction: clock(planned(fraction))[0], 1 / options.speedup))
            taken, where = clock(made)
        print(f"{prefix}, {way}: {1 / taken:.2f}x in {where}, {made.macs:.3f} of the MACs", flush=True)
        record = {"speedup": 1 / taken, "engine": where, "precision": options.precision, "plan": json.loads(made.to_json())}
        write_atomically(file, json.dumps(record, indent=1))


def judge(options: argparse.Namespace, model: nn.Module, statistics: Statistics) -> None:
    """Apply every plan of the folder, and compare."""
    test = data.load(options.test, "test").take(options.n, options.batch)
    networks, forms, records = {"dense": model}, {}, {}
    for file in sorted(options.out.glob("*-*.json")):
        records[file.stem] = json.loads(file.read_text())
        made = Plan.from_json(json.dumps(records[file.stem]["plan"]))
        networks[file.stem] = gdws.apply(model, made, statistics)
    rounded = {name for name, record in records.items() if record["precision"] == "int8"}
    for name, network in networks.items():
        if name in rounded or (rounded and name == "dense"):
            plain, small = options.out / f"{name}.onnx", options.out / f"{name}-int8.onnx"
            to_onnx(network.cpu(), plain, statistics.images[:1].float())
            quantise(plain, small, statistics.images[:300].float())
            forms[f"{name}, int8"] = deployed_file(small, name)
            network.to(options.device)
    settings = {"deployed": forms, "transfer": False, "checkpoint": options.out / "judged.jsonl", "resume": True}
    found = compare(networks, test, named("pgd-20"), options.seed, **settings)
    (attack,) = found.attacks
    rows = []
    for name in (*networks, *forms):
        accuracies = {"natural": percent(found.under(name, NATURAL)), "robust": percent(found.under(name, attack))}
        record = records.get(name.removesuffix(", int8"), {})
        rows.append({"network": name, "speedup": record.get("speedup", 1.0), **accuracies})
        print("| {network} | {speedup:.2f}x | {natural:.2f} / {robust:.2f} |".format(**rows[-1]))
    write_atomically(options.out / "judged.json", json.dumps({"rows": rows, "comparison": found.record()}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--train", required=True, help="calibration images")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--out", type=Path, required=True, help="folder of the plans")
    parser.add_argument("--cache", type=Path, help="folder for statistics and times")
    parser.add_argument("--speedup", type=float, default=2.8)
    parser.add_argument("--precision", default="float32", choices=("float32", "int8"))
    parser.add_argument("--gpu", choices=tuple(SETTINGS), help="plan for a GPU under this setting")
    parser.add_argument("--ways", nargs="*", choices=[*BY_TIME, *BY_MACS])
    parser.add_argument("--test", help="judge the plans of the folder on these images")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.ways = options.ways or [*(() if options.gpu else BY_TIME), *BY_MACS]
    if options.gpu and set(options.ways) & set(BY_TIME):
        parser.error(f"--ways {' '.join(options.ways)} with --gpu: expected some of {' '.join(BY_MACS)}")
    if options.device == "cpu":
        torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    model = models.resolve(options.model, options.weights).to(options.device)
    train = data.load(options.train, "train").take(options.images)
    statistics = gdws.plan(model, train, gdws.Macs(0.5), structures="auto", cache=options.cache).calibration
    assert statistics is not None
    if options.test is None:
        make_plans(options, model, statistics)
    else:
        judge(options, model, statistics)


if __name__ == "__main__":
    main()
