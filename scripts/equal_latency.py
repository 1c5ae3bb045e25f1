"""At equal measured latency: plans made by time against plans made by multiply-adds. docs/speed.md's table.

    python scripts/equal_latency.py zoo:preactresnet18 --weights FILE --train cifar10:DIR --test cifar10:DIR
        [--fractions 0.3 0.2] [--precision int8] [--structures auto] [--cache FOLDER] [--json OUT]

For each fraction of the MACs: plan by MACs, time that network (one thread, batch 1, in the engine that runs it fastest, beside
the dense network in its own), plan by time for the same latency, apply both, and judge both on the same test images from the
same random starts (natural, PGD-20).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from calibrated_table import options_for
from torch import nn

import gdws
from gdws import data, models
from gdws.attacks.presets import named
from gdws.bench import bench
from gdws.choices import Choice
from gdws.comparison import NATURAL, percent
from gdws.engines import compile
from gdws.latency import Target, mock, timetable
from gdws.paired import paired
from gdws.plans import Plan
from gdws.protocol import compare
from gdws.structures import STRUCTURES
from gdws.structures import named as structures_named
from gdws.surgery import survey


def planned(made: Plan) -> dict[str, Choice]:
    layers = [layer for layer in made.layers if layer.structure != "dense"]
    return {layer.name: Choice(STRUCTURES[layer.structure], 0, layer.kept, layer.loss) for layer in layers}


def main() -> None:
    parser = options_for(__doc__)
    parser.set_defaults(n=1000, images=500)
    parser.add_argument("--fractions", nargs="+", type=float, default=[0.3, 0.2])
    parser.add_argument("--structures", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = models.resolve(options.model, options.weights)
    train = data.load(options.train, "train").take(options.images)
    test = data.load(options.test, "test").take(options.n, 100)
    example, calibration = train.images[:1].float() / 255, train.images[:100].float() / 255
    kinds = structures_named(options.structures)

    networks: dict[str, nn.Module] = {}
    speeds: dict[str, dict[str, object]] = {}
    for fraction in options.fractions:
        made = gdws.plan(model, train, gdws.Macs(fraction), structures=options.structures, cache=options.cache)
        statistics = made.calibration
        assert statistics is not None
        sites = [site for site in survey(model, example) if site.reason is None]
        target = Target(precision=options.precision, threads=1)
        table = timetable(model, sites, kinds, statistics, target, options.cache)
        runs = {
            "dense": compile(model, table.reference[0], example=example, precision=options.precision, calibration=calibration)
        }
        for engine in table.engines:
            network = mock(model, planned(made))
            runs[engine] = compile(network, engine, example=example, precision=options.precision, calibration=calibration)
        timings = bench(runs, example, 10, 100)
        engine = min(table.engines, key=lambda name: timings[name].quartile)
        latency = timings[engine].quartile / timings["dense"].quartile
        by_time = gdws.plan(
            model, statistics, gdws.Latency(latency), structures=options.structures, target=table, cache=options.cache
        )
        assert by_time.measured is not None
        for name, plan, taken, used in (
            (f"macs {fraction:g}", made, latency, engine),
            (f"time {latency:.3f}", by_time, by_time.measured.latency, by_time.measured.engine),
        ):
            networks[name] = gdws.apply(model, plan)
            speeds[name] = {"latency": taken, "engine": used, "macs": plan.macs, "loss": plan.loss}
            print(
                f"{name:12s} {1 / taken:.2f}x in {used}, {plan.macs:.3f} of the MACs, predicted loss {plan.loss:.2e}",
                flush=True,
            )
    found = compare(networks, test, named("pgd-20"), options.seed, transfer=False)
    (attack,) = found.attacks
    rows = []
    for name in networks:
        accuracies = {
            label: percent(found.under(name, examples)) for label, examples in (("natural", NATURAL), ("robust", attack))
        }
        rows.append({"network": name, **accuracies, **speeds[name]})
        print(f"{name:12s} {accuracies['natural']:.2f} / {accuracies['robust']:.2f}")
    names = list(networks)
    for by_macs, by_time_name in zip(names[::2], names[1::2], strict=True):
        for label in (NATURAL, attack):
            pair = paired(found.under(by_macs, label), found.under(by_time_name, label))
            print(f"{by_macs} -> {by_time_name}, {label}: -{pair.lost} +{pair.gained}, p {pair.p_value:.2g}")
    if options.json:
        record = {"torch": torch.__version__, "precision": options.precision, "rows": rows, "comparison": found.record()}
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
