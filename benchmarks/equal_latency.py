"""Ways to compress a network at one measured speed.

    # on the CPU in question
    python benchmarks/equal_latency.py zoo:preactresnet18 --weights FILE --train DATA --speedup 2.8 --out FOLDER
        [--precision int8] [--ways auto gdws separable auto-by-macs paper] [--cache FOLDER]
    # on the GPU in question
    python benchmarks/equal_latency.py ... --engine cuda --device cuda [--precision float16] [--batch 256]
    # anywhere
    python benchmarks/equal_latency.py ... --out FOLDER --test DATA --n 2000 --device cuda

The first command plans: each way gets the plan that is --speedup times as fast as the dense network in its fastest engine
(one thread, the same precision and batch). auto, gdws and separable are planned by time; the others by multiply-adds, their
fraction bisected until the time is right. The second does so for a GPU (the engine cuda: a CUDA graph, in the faster of two
layouts). Plans are kept in the folder, one file for each way, and not made again; a way that cannot be so fast says so. With
--test the plans of the folder are applied, saved beside them and judged on the same images from the same random starts
(natural, PGD-20); those for int8 or float16 also as an int8 file or a float16 copy, which decides the examples made on its
float32 network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import gdws
from gdws import data, models
from gdws.attacks.presets import preset
from gdws.calibration.method import ATTACK, Method
from gdws.calibration.statistics import Statistics
from gdws.core import inputs
from gdws.core.errors import OutOfReach
from gdws.core.execution import placement
from gdws.core.files import write_atomically
from gdws.core.progress import shown
from gdws.core.sites import find_convolutions
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.quantize import quantize
from gdws.evaluation.compare import compare
from gdws.evaluation.comparison import NATURAL, percent
from gdws.evaluation.deployed import deployed_file, deployed_half
from gdws.planning.latency.measure import measure_latencies
from gdws.planning.latency.search import build_engine
from gdws.planning.latency.table import LatencyTable
from gdws.planning.latency.target import Target
from gdws.planning.latency.variants import with_noise_weights
from gdws.planning.methods import Choice
from gdws.planning.plan import Plan
from gdws.structures import STRUCTURES, select_structures

BY_TIME = ("auto", "gdws", "separable")
BY_MACS: dict[str, Method] = {"auto-by-macs": gdws.Calibrated(), "paper": gdws.Paper()}
CLOSE = 0.01
"""How near, as a part of it, a bisected latency must come to the one that is asked for."""
FAR = 0.03
"""How far off it is worth saying."""


class Notes:
    """Prints what each plan by time took, but for the last: nothing follows it."""

    def start(self, label: str, total: int | None) -> None: ...

    def advance(self, note: str) -> None:
        if note:
            print(f"  {note}", flush=True)

    def stop(self) -> None: ...


def bisect_fraction(measure: Callable[[float], float], share: float) -> float:
    """The fraction of the MACs whose latency is nearest to `share`, seven measurements at most."""
    low, high, tried = 0.05, 1.0, dict[float, float]()
    for _ in range(7):
        fraction = (low + high) / 2
        tried[fraction] = measure(fraction)
        if abs(tried[fraction] / share - 1) < CLOSE:
            return fraction
        low, high = (fraction, high) if tried[fraction] < share else (low, fraction)
    return min(tried, key=lambda fraction: abs(tried[fraction] - share))


def latency(model: nn.Module, network: nn.Module, target: Target, images: inputs.Inputs) -> tuple[float, str]:
    """The network's time as a fraction of the model's, each as it runs fastest, and the engine that runs the network."""
    example = inputs.repeat_first(images, target.batch)
    both = {"model": model, "network": network}
    runs = {name: build_engine(each, target.engine, target, example, images) for name, each in both.items()}
    timings = gdws.bench(runs, example, 10, 60)
    return timings["network"].quartile / timings["model"].quartile, runs["network"].engine


def latency_of_plan(model: nn.Module, made: Plan, target: Target, images: inputs.Inputs) -> tuple[float, str]:
    """The same of a plan, with noise for weights."""
    layers = [layer for layer in made.layers if layer.structure != "dense"]
    chosen = {layer.name: Choice(STRUCTURES[layer.structure], 0, layer.ranks, layer.loss) for layer in layers}
    device = placement(model)[0] if target.engine == "cuda" else torch.device("cpu")
    return latency(with_noise_weights(model, {}).to(device), with_noise_weights(model, chosen).to(device), target, images)


def plan_way(
    way: str, speedup: float, model: nn.Module, statistics: Statistics, table: LatencyTable
) -> tuple[Plan, tuple[float, str]]:
    """A way's plan, its time as a fraction of the dense network's, and the engine."""
    if way in BY_TIME:
        with shown(Notes()):
            made = gdws.plan(model, statistics, gdws.Speedup(speedup), gdws.Calibrated(structures=way), target=table)
        assert made.measured is not None
        return made, (made.measured.latency, made.measured.engine)

    def of_macs(fraction: float) -> Plan:
        return gdws.plan(model, statistics, gdws.Macs(fraction), BY_MACS[way])

    def measured(made: Plan) -> tuple[float, str]:
        return latency_of_plan(model, made, table.target, inputs.place(statistics.images[:25], "cpu", torch.float32))

    made = of_macs(bisect_fraction(lambda fraction: measured(of_macs(fraction))[0], 1 / speedup))
    return made, measured(made)


def make_plans(options: argparse.Namespace, model: nn.Module, statistics: Statistics) -> None:
    """Those of --ways that the folder does not hold."""
    example = inputs.place(statistics.images[:1], options.device, torch.float32)
    sites = [site for site in find_convolutions(model, example) if site.reason is None]
    target = Target(options.engine, options.precision, threads=1, batch=options.batch)
    table = measure_latencies(model, sites, select_structures("auto"), statistics, target, options.cache)
    place = options.precision if options.engine == "auto" else f"{options.engine}-{options.precision}"
    prefix = place if options.batch == 1 else f"{place}-{options.batch}"
    for way in options.ways:
        file = options.out / f"{prefix}-{way}.json"
        if file.exists():
            continue
        try:
            made, (taken, where) = plan_way(way, options.speedup, model, statistics, table)
        except OutOfReach as error:
            print(f"{prefix}, {way}: {error}", flush=True)
            continue
        missed = f" (not the {options.speedup:g}x asked for)" if abs(taken * options.speedup - 1) > FAR else ""
        print(f"{prefix}, {way}: {1 / taken:.2f}x in {where}, {made.macs:.3f} of the MACs{missed}", flush=True)
        record = {"speedup": 1 / taken, "engine": where, "precision": options.precision, "plan": json.loads(made.to_json())}
        write_atomically(file, json.dumps(record, indent=1))


def judge(options: argparse.Namespace, model: nn.Module, statistics: Statistics) -> None:
    """Apply every plan of the folder, and compare."""
    test = data.load(options.test, "test").take(options.n, options.at_a_time)
    networks, forms, records = {"dense": model}, {}, {}
    for file in sorted(options.out.glob("*-*.json")):
        records[file.stem] = json.loads(file.read_text())
        made = Plan.from_json(json.dumps(records[file.stem]["plan"]))
        networks[file.stem] = gdws.apply(model, made, statistics)
        gdws.save(networks[file.stem], options.out / file.stem, force=True, base=options.model)
    rounded, halved = ({name for name in records if records[name]["precision"] == kind} for kind in ("int8", "float16"))
    for name, network in networks.items():
        if name in rounded or (rounded and name == "dense"):
            plain, small = options.out / f"{name}.onnx", options.out / f"{name}-int8.onnx"
            to_onnx(network.cpu(), plain, inputs.place(statistics.images[:1], "cpu", torch.float32))
            quantize(plain, small, inputs.place(statistics.images[:300], "cpu", torch.float32))
            forms[f"{name}, int8"] = deployed_file(small, name)
            network.to(options.device)
        elif name in halved or (halved and name == "dense"):
            forms[f"{name}, float16"] = deployed_half(network, name)
    settings = {"deployed": forms, "transfer": False, "checkpoint": options.out / "judged.jsonl", "resume": True}
    found = compare(networks, test, preset("pgd-20"), options.seed, **settings)
    (attack,) = found.attacks
    rows = []
    for name in (*networks, *forms):
        accuracies = {"natural": percent(found.under(name, NATURAL)), "robust": percent(found.under(name, attack))}
        record = records.get(name.split(", ")[0], {})
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
    parser.add_argument("--engine", default="auto", choices=("auto", "cuda"))
    parser.add_argument("--precision", default="float32", choices=("float32", "int8", "float16"))
    parser.add_argument("--batch", type=int, default=1, help="images at a time where it will run")
    parser.add_argument("--ways", nargs="*", default=[*BY_TIME, *BY_MACS], choices=[*BY_TIME, *BY_MACS])
    parser.add_argument("--test", help="judge the plans of the folder on these images")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--at-a-time", type=int, default=250, help="test images")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    model = models.resolve(options.model, options.weights).to(options.device)
    train = data.load(options.train, "train").take(options.images)
    statistics = gdws.calibrate(model, train, gdws.Calibrated(attack=ATTACK), cache=options.cache)
    if options.test is None:
        make_plans(options, model, statistics)
    else:
        judge(options, model, statistics)


if __name__ == "__main__":
    main()
