"""Prune robust bases by HYDRA, ADMM and magnitude, and put them beside each other: a JSON file for each network.

    python benchmarks/robust_pruning.py OUT --data cifar10:DIR --models FOLDER --device cuda [--recipe paper] [--autoattack]
    python benchmarks/robust_pruning.py OUT --table                  # what is there so far, in Markdown

FOLDER has the bases' weights, as NETWORKS names them. In OUT, NAME.json is a row, NAME/ the stages of its pruning and
NAME/model the network. Rows that are there are not made again, and a pruning that was cut goes on from its checkpoint: the
same command continues. --only RE makes the rows whose names match; --tiny tries everything on a few images.

HYDRA and magnitude pruning keep 10, 5 and 1 % of the weights of a VGG-16 and a WRN-28-4, ADMM 75, 50 and 25 % of the BatchNorm
channels of a ResNet-18 and a VGG-16. Each row has natural and PGD-20 accuracy (eps 8/255, step 2/255, one random start, any
iterate counts, float32) on the first --n test images, a bit for each image, and the paired change beside the base. The MB are
of non-zero weights. Training epochs are the last ones; test images choose nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calibrated_table import bits
from torch import nn

import gdws
from gdws import data, models
from gdws.attacks import PGD, Attack
from gdws.attacks.presets import preset
from gdws.core.files import write_atomically
from gdws.core.hashing import weights_hash
from gdws.evaluation.comparison import NATURAL, interval, percent
from gdws.planning.significance import paired_change
from gdws.training import prune, pruning_for

NETWORKS = {
    "vgg16": "vgg16_cifar10_linf_at_steps.safetensors",
    "wrn28_4": "wrn28_4_cifar10_linf_at.safetensors",
    "preactresnet18": "preactresnet18_cifar10_linf_at.safetensors",
}
"""Networks of the zoo, and the files of their weights."""
SINGLE, CHANNELS = (0.1, 0.05, 0.01), (0.75, 0.5, 0.25)
METHODS = {
    "hydra": (("vgg16", "wrn28_4"), SINGLE),
    "magnitude": (("vgg16", "wrn28_4"), SINGLE),
    "admm": (("preactresnet18", "vgg16"), CHANNELS),
}
"""{method: (its networks, shares that are kept)}."""


@dataclass(frozen=True)
class Row:
    """A base, without a method, or what is made of it."""

    network: str
    method: str = ""
    keep: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.network}.{self.method}-{self.keep:g}" if self.method else f"{self.network}.base"


def rows() -> Iterator[Row]:
    """Bases first; then the shortest prunings."""
    yield from (Row(network) for network in NETWORKS)
    for method, (networks, shares) in METHODS.items():
        yield from (Row(network, method, keep) for keep in shares for network in networks)


def base(row: Row, options: argparse.Namespace) -> nn.Module:
    if options.tiny:
        return models.embedded()
    return models.resolve(f"zoo:{row.network}", options.models / NETWORKS[row.network]).to(options.device)


def judge(model: nn.Module, row: Row, options: argparse.Namespace) -> dict[str, Any]:
    """Natural accuracy and that under each attack; beside the base's, image by image."""
    (pgd,) = preset("pgd-20")
    attacks: list[Attack] = [PGD(steps=2)] if options.tiny else [pgd, *(preset("autoattack") if options.autoattack else ())]
    test = data.load(options.data, "test").take(20 if options.tiny else options.n, options.batch)
    found = gdws.compare({"it": model}, test, attacks, options.seed, transfer=False)
    record: dict[str, Any] = {}
    for kind in (NATURAL, *map(str, attacks)):
        right = found.under("it", kind)
        record[kind] = {"percent": percent(right), "interval": interval(right), "right": bits(right)}
        before = options.out / f"{row.network}.base.json"
        if row.method and kind in (judged := json.loads(before.read_text())["judged"]):
            packed = np.frombuffer(bytes.fromhex(judged[kind]["right"]), np.uint8)
            pair = paired_change(torch.from_numpy(np.unpackbits(packed, count=len(right)).astype(bool)), right)
            record[kind]["beside the base"] = asdict(pair) | {"points": pair.points, "p": pair.p_value}
    return {"judged": record, "images": len(right), "seed": options.seed}


def make(row: Row, options: argparse.Namespace) -> dict[str, Any]:
    begun, model = time.monotonic(), base(row, options)
    record: dict[str, Any] = {"name": row.name, **asdict(row)}
    if row.method:
        changes: dict[str, Any] = {"epochs": options.epochs, "seed": options.seed}
        changes |= {} if row.method == "magnitude" else {"prune_epochs": options.prune_epochs}
        if options.tiny:
            changes |= {"steps": 1, "batch": 16, "epochs": 1} | ({} if row.method == "magnitude" else {"prune_epochs": 1})
        device = torch.device(options.device).type
        method = pruning_for(row.method, options.data, device, keep=row.keep, recipe=options.recipe, **changes)
        split = data.load(options.data, "train").take(40 if options.tiny else None)
        folder = options.out / row.name
        pruned = prune(model, split, method, folder, resume=True)
        gdws.save(pruned.model, folder / "model", force=True, base="demo" if options.tiny else f"zoo:{row.network}")
        model = pruned.model
        record |= {"preset": options.recipe, "how": method.record(), "kept": pruned.kept, "stages": pruned.stages}
        record |= {"trained seconds": sum(line.get("seconds", 0.0) for lines in pruned.stages.values() for line in lines)}
    example = next(iter(data.load(options.data, "test").take(1)))[0]
    record |= {"size_mb": gdws.network_cost(model, example).size_mb, "weights hash": weights_hash(model)}
    record |= judge(model, row, options)
    machine = torch.cuda.get_device_name() if torch.device(options.device).type == "cuda" else "CPU"
    record |= {"machine": machine, "torch": str(torch.__version__), "commit": options.commit, "tiny": options.tiny}
    return record | {"seconds": time.monotonic() - begun, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}


def table(out: Path) -> str:
    """The rows that are there, in Markdown."""
    found = {row.name: json.loads(path.read_text()) for row in rows() if (path := out / f"{row.name}.json").exists()}
    kinds = list(dict.fromkeys(kind for record in found.values() for kind in record["judged"]))
    lines = [f"| network | method | kept | MB | {' | '.join(kinds)} | training, s |", "|---" * (5 + len(kinds)) + "|"]
    for record in found.values():
        numbers = [f"{judged[kind]['percent']:.2f}" if kind in (judged := record["judged"]) else "" for kind in kinds]
        words = [record["network"], record["method"] or "base", f"{record['keep']:g}", f"{record['size_mb']:.2f}", *numbers]
        lines.append(f"| {' | '.join(words)} | {record.get('trained seconds', 0):.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="demo")
    parser.add_argument("--models", type=Path, default=Path())
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--prune-epochs", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--autoattack", action="store_true")
    parser.add_argument("--only", default="", help="a regular expression for names of rows; bases are made in any case")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="the embedded network in the place of all, and a few images")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    options.commit = asked.stdout.strip()
    chosen = [row for row in rows() if re.search(options.only, row.name)]
    needed = {row.network for row in chosen}
    for row in (row for row in rows() if row in chosen or (not row.method and row.network in needed)):
        path = options.out / f"{row.name}.json"
        if not path.exists():
            record = make(row, options)
            write_atomically(path, json.dumps(record, indent=1))
            said = ", ".join(f"{kind} {judged['percent']:.2f}" for kind, judged in record["judged"].items())
            print(f"{row.name}: {record['size_mb']:.2f} MB, {said} ({record['seconds']:.0f} s)", flush=True)
    print(table(options.out))


if __name__ == "__main__":
    main()
