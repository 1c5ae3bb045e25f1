"""Prune, factorize, or prune and then factorize: one speed, each tuned for the same seconds, side by side.

    python benchmarks/prune_or_factorize.py OUT --pruned FOLDER --data cifar10:DIR --weights FILE --device cuda

FOLDER is what benchmarks/robust_pruning.py wrote, with the rows of ADMM of a ResNet-18 at --keep and at --keep-first of the
channels. The first is *prune*; *factorize* leaves --macs of the base's replaceable multiply-adds, and *prune then factorize*
--macs-after of those of the network at --keep-first. These shares were chosen such that all three are equally fast on a CPU:
benchmarks/cpu_speed.py and benchmarks/gpu_speed.py measure what it came to.

Each is tuned adversarially for about --seconds, and judged beside the base: natural and PGD-20 (eps 8/255, step 2/255, one
random start) on the first --n test images, AutoAttack (attacks in TF32, judged in float32) on the first --autoattack of them.
OUT/NAME is a tuned network and OUT/record.json has all numbers; networks that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from robust_pruning import MINUTES
from torch import nn

import gdws
from gdws import data, models
from gdws.attacks import Attack
from gdws.attacks.presets import preset
from gdws.core.files import write_atomically
from gdws.evaluation.comparison import NATURAL, interval, percent
from gdws.training import Recipe, Trained, train, tune

METHOD = gdws.Calibrated(structures=("vertical", "horizontal", "project"))
"""Structures that engines run fast: here multiply-adds stand for time."""
PROBE = 20
"""A PROBE-th of the images tells how long an epoch takes."""


def trained(make: Callable[..., Trained], split: data.Dataset, recipe: Recipe, seconds: float, folder: Path) -> Trained:
    """For as many epochs as fit into these seconds, at least one."""
    begun = time.monotonic()
    few = split.take(max(2 * recipe.batch, len(split) // PROBE))
    line = make(few, replace(recipe, epochs=2, held=20), folder / "probe").history[-1]
    left = seconds - (time.monotonic() - begun)
    epochs = max(1, int(left * line["images_per_second"] / len(split)))
    return make(split, replace(recipe, epochs=epochs), folder / "tuning")


def judge(
    networks: dict[str, nn.Module], test: data.Dataset, attacks: Sequence[Attack], tf32: bool, seed: int
) -> Iterator[tuple[str, str, Any]]:
    """(network, attack, what came of it), with the change beside the base."""
    found = gdws.compare(networks, test, attacks, seed, transfer=False, tf32=tf32)
    for kind in (NATURAL, *map(str, attacks)):
        for way in networks:
            right = found.under(way, kind)
            pair = found.paired_change(way, kind)
            yield (
                way,
                f"{kind}, {len(right)} images",
                {
                    "percent": percent(right),
                    "interval": interval(right),
                    "points beside the base": pair.points,
                    "p": pair.p_value,
                },
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pruned", type=Path, required=True)
    parser.add_argument("--model", default="zoo:preactresnet18")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", default="demo")
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--keep-first", type=float, default=0.75)
    parser.add_argument("--macs", type=float, default=0.25)
    parser.add_argument("--macs-after", type=float, default=0.5)
    parser.add_argument("--images", type=int, default=500, help="to calibrate on")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--autoattack", type=int, default=250)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    split, test = data.load(options.data, "train"), data.load(options.data, "test").take(options.n, options.batch)
    dense = models.resolve(options.model, options.weights).to(options.device)
    name = options.model.removeprefix("zoo:")

    def pruned(keep: float) -> nn.Module:
        return gdws.load(options.pruned / f"{name}.admm-{keep:g}" / "compact", dense).to(options.device)

    def factorized(model: nn.Module, share: float) -> nn.Module:
        return gdws.compress(model, split.take(options.images, 100), gdws.Macs(share), METHOD, seed=options.seed)

    made: dict[str, Callable[[], nn.Module]] = {
        "prune": lambda: pruned(options.keep),
        "factorize": lambda: factorized(dense, options.macs),
        "prune-then-factorize": lambda: factorized(pruned(options.keep_first), options.macs_after),
    }
    cuda = torch.device(options.device).type == "cuda"
    recipe = replace(MINUTES["magnitude"].finetune, seed=options.seed, precision="bfloat16" if cuda else "float32")
    record: dict[str, Any] = {"options": {key: str(value) for key, value in vars(options).items()}, "recipe": recipe.record()}
    networks = {"base": dense}
    for way, make in made.items():
        folder = options.out / way
        networks[f"{way}, before"] = before = make()
        if not folder.exists():
            step = train if way == "prune" else tune
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as scratch:
                found = trained(partial(step, before), split, recipe, options.seconds, Path(scratch))
            gdws.save(found.model, folder, base=options.model, export=False)
            record[way] = {"tuned, s": time.monotonic() - begun, "history": found.history}
        networks[way] = gdws.load(folder, dense).to(options.device)
    example = next(iter(test))[0][:2].to(options.device)
    for way, network in networks.items():
        cost = gdws.network_cost(network, example)
        record.setdefault(way, {}).update({"size_mb": cost.size_mb, "macs": cost.macs})
    tuned = {way: network for way, network in networks.items() if "before" not in way}
    judgments = [judge(networks, test, preset("pgd-20"), False, options.seed)]
    if options.autoattack:
        few = data.load(options.data, "test").take(options.autoattack, options.batch)
        judgments.append(judge(tuned, few, preset("autoattack"), True, options.seed))
    for judgment in judgments:
        for way, kind, found in judgment:
            record[way][kind] = found
            print(f"{way}: {kind}: {found['percent']:.2f}", flush=True)
        write_atomically(options.out / "record.json", json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
