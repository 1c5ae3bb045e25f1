"""A network and its compressed versions under proper attacks, side by side.

    python benchmarks/robustness_table.py MODEL --weights FILE --train DATA --test DATA --out FOLDER
        [--device cuda] [--minutes 9]

Compresses the model to --budgets of its MACs (or takes the folders that --networks names), and runs every preset of --attacks
on the first --n test images: natural, under attack, transferred both ways, and image by image, compared with the base. FOLDER
keeps the networks and the result of every batch; after --minutes no batch is begun, and the same command goes on where this one
stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from calibrated_table import options_for
from torch import Tensor, nn

import gdws
from gdws import data, models
from gdws.attacks.presets import PRESETS, preset
from gdws.calibration.method import ATTACK
from gdws.core.files import write_atomically
from gdws.data import Dataset
from gdws.evaluation.compare import OutOfTime, compare
from gdws.evaluation.comparison import NATURAL, Comparison, Trial, interval, percent
from gdws.evaluation.red_flags import red_flags
from gdws.planning.significance import paired_change


def compress_to(
    model: nn.Module, name: str, train: Dataset, budgets: Sequence[float], structures: str, out: Path
) -> list[Path]:
    """Folders of the networks compressed to these budgets, made where they are not there yet."""
    folders, statistics = [], None
    for fraction in budgets:
        folders.append(out / f"{structures}-{fraction:.2f}")
        if folders[-1].exists():
            continue
        start = time.monotonic()
        if statistics is None:
            statistics = gdws.calibrate(model, train, gdws.Calibrated(structures=structures, attack=ATTACK))
        made = gdws.plan(model, statistics, gdws.Macs(fraction))
        gdws.save(gdws.apply(model, made, statistics), folders[-1], base=name)
        print(f"{folders[-1]}: {made.macs:.4f} of the MACs, {time.monotonic() - start:.0f} s", flush=True)
    return folders


def under(found: Comparison, judge: str, maker: str) -> Tensor:
    """Right (N,) on natural images and on every example of the preset that was made on `maker`."""
    right = [found.right[Trial(judge, name, maker)] for name in found.attacks]
    return torch.stack([*right, found.under(judge, NATURAL)]).all(0)


def markdown(results: dict[str, Comparison]) -> str:
    """Three tables: accuracies, pairs, transfer. A preset of several attacks stands for its worst case per image."""
    first = next(iter(results.values()))
    base, *others = first.networks

    def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows))

    def share(right: Tensor) -> str:
        low, high = interval(right)
        return f"{percent(right):.1f} ({low:.1f} to {high:.1f})"

    def change(before: Tensor, after: Tensor) -> str:
        pair = paired_change(before, after)
        low, high = pair.interval
        return f"-{pair.lost} +{pair.gained}: {pair.points:+.1f} ({low:+.1f} to {high:+.1f}), p {pair.p_value:.2g}"

    accuracies = [
        [name, share(first.under(name, NATURAL)), *(share(under(found, name, name)) for found in results.values())]
        for name in first.networks
    ]
    pairs = [
        [
            name,
            change(first.under(base, NATURAL), first.under(name, NATURAL)),
            *(change(under(found, base, base), under(found, name, name)) for found in results.values()),
        ]
        for name in others
    ]
    transfer = [
        [maker, judge, *(share(under(found, judge, maker)) for found in results.values())]
        for name in others
        for maker, judge in ((base, name), (name, base))
        if first.transfers
    ]
    return "\n\n".join(
        [
            f"{first.images:,} images; correct in percent, with Wilson's 95 % interval:",
            table(["network", NATURAL, *results], accuracies),
            f"Image by image, compared with {base}: lost, gained, change in points with the exact McNemar interval:",
            table(["network", NATURAL, *results], pairs),
            "Examples made on one network and tried on another; correct in percent:",
            table(["made on", "tried on", *results], transfer),
        ]
    )


def main() -> None:
    parser = options_for(__doc__)
    parser.set_defaults(n=1000, batch=100)
    parser.add_argument("--budgets", nargs="*", type=float, default=[0.60, 0.45, 0.30])
    parser.add_argument("--structures", default="auto", help="auto, gdws, ...")
    parser.add_argument("--networks", nargs="*", type=Path, help="folders of compressed networks, instead of --budgets")
    parser.add_argument("--attacks", nargs="*", default=["paper-cifar10", "autoattack", "paper-union"], choices=PRESETS)
    parser.add_argument("--out", type=Path, required=True, help="folder for the networks, checkpoints and result.json")
    parser.add_argument("--minutes", type=float, help="begin no batch after this time")
    parser.add_argument("--tf32", action="store_true", help="attack in TF32, judge in float32")
    parser.add_argument("--quick", action="store_true", help="neither transfer nor warnings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes if options.minutes else None

    options.out.mkdir(parents=True, exist_ok=True)
    model = models.resolve(options.model, options.weights).to(options.device)
    test = data.load(options.test, "test").take(options.n, options.batch)
    folders = options.networks or compress_to(
        model,
        options.model,
        data.load(options.train, "train").take(options.images),
        options.budgets,
        options.structures,
        options.out,
    )
    networks = {"base": model} | {folder.name: gdws.load(folder, model).to(options.device) for folder in folders}
    results: dict[str, Comparison] = {}
    for name in options.attacks:
        start = time.monotonic()
        try:
            results[name] = compare(
                networks,
                test,
                preset(name),
                options.seed,
                checkpoint=options.out / f"{name}{'-tf32' if options.tf32 else ''}.jsonl",
                resume=True,
                transfer=not options.quick,
                tf32=options.tf32,
                seconds=None if deadline is None else deadline - start,
            )
        except OutOfTime as stop:
            print(f"{name}: {stop}", flush=True)
            continue
        print(f"{name}: {time.monotonic() - start:.0f} s in this call", flush=True)
        record = {attack: found.record() for attack, found in results.items()}
        write_atomically(options.out / "result.json", json.dumps(record, indent=1))
    if len(results) < len(options.attacks):
        print("Not finished: run the same command again.")
    if results:
        print(markdown(results))
    if results and len(results) == len(options.attacks) and not options.quick:
        first = options.attacks[0]
        for flag in red_flags(results[first], networks, test, preset(first), options.seed):
            print(f"Warning: {flag}.")


if __name__ == "__main__":
    main()
