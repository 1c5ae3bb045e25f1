"""Prune robust bases by HYDRA, ADMM and magnitude, and put them beside each other: a JSON file for each network.

    python benchmarks/robust_pruning.py OUT --data cifar10:DIR --models FOLDER --device cuda [--recipe minutes] [--autoattack]
    python benchmarks/robust_pruning.py OUT --table                  # what is there so far, in Markdown

FOLDER has the bases' weights, as NETWORKS names them. In OUT, NAME.json is a row, NAME/ the stages of its pruning and
NAME/model the network. Rows that are there are not made again, and a pruning that was cut goes on from its checkpoint: the
same command continues. --only RE makes the rows whose names match; --tiny tries everything on a few images. The recipe is
one of gdws.training, or one of this script (OWN): `minutes` is 20 epochs or less for every row, by adversarial training
with PGD-2, and `longer` is more of it for HYDRA.

HYDRA and magnitude pruning keep 10, 5 and 1 % of the weights of a VGG-16 and a WRN-28-4, ADMM 75, 50 and 25 % of the BatchNorm
channels of a ResNet-18 and a VGG-16. Each row has natural and PGD-20 accuracy (eps 8/255, step 2/255, one random start, any
iterate counts, float32) on the first --n test images, a bit for each image, and the paired change beside the base. The MB are
of non-zero weights. Training epochs are the last ones; test images choose nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calibrated_table import bits
from torch import Tensor, nn

import gdws
from gdws import data, models
from gdws.attacks import PGD, Attack
from gdws.attacks.presets import preset
from gdws.compression.compaction.counting import paper_size
from gdws.core.execution import full_precision
from gdws.core.files import write_atomically
from gdws.core.hashing import weights_hash
from gdws.evaluation.comparison import NATURAL, interval, percent
from gdws.planning.significance import paired_change
from gdws.reproduce.run import COMMIT
from gdws.training import Admm, Hydra, Magnitude, Recipe, prune, pruning_for
from gdws.training.pruning.method import Method

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

_MINUTES = Recipe(batch=256, attack=PGD(step=5 / 255, steps=2), nesterov=False, held=250, keep="last")
_SCORES = replace(_MINUTES, epochs=10, rate=0.2, schedule="cosine", weight_decay=1e-4, average=0)
_PERIOD = replace(_MINUTES, epochs=2, rate=0.02, schedule="thirds", weight_decay=1e-4, average=0)
MINUTES: dict[str, Method] = {
    "hydra": Hydra(keep=0.1, prune=_SCORES, finetune=replace(_MINUTES, epochs=10, rate=0.05)),
    "magnitude": Magnitude(keep=0.1, finetune=replace(_MINUTES, epochs=20, rate=0.05)),
    "admm": Admm(keep=0.5, rho=0.05, periods=3, prune=_PERIOD, finetune=replace(_MINUTES, epochs=8, rate=0.1)),
}
"""20 short epochs, 14 for ADMM: what half an hour of one GPU allows for all rows."""
_STRONGER = replace(_MINUTES, epochs=16, rate=0.1, attack=PGD(eps=9 / 255, step=4 / 255, steps=3))
OWN = {"minutes": MINUTES, "longer": {"hydra": replace(MINUTES["hydra"], finetune=_STRONGER)}}
"""Recipes of this script. `longer` trains longer after the choice, against a stronger attack."""


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
        if options.recipe in OWN:
            method = replace(OWN[options.recipe][row.method], keep=row.keep)
            own: dict[str, Any] = {"seed": options.seed, "precision": "bfloat16" if device == "cuda" else "float32"}
            own |= {"epochs": 1, "batch": 16} if options.tiny else {}
            stages: dict[str, Any] = {name: replace(stage, **own) for name, stage in method.recipes().items()}
            method = replace(method, **stages)
        else:
            method = pruning_for(row.method, options.data, device, keep=row.keep, recipe=options.recipe, **changes)
        split = data.load(options.data, "train").take(40 if options.tiny else None)
        folder = options.out / row.name
        pruned = prune(model, split, method, folder, resume=True)
        name = "demo" if options.tiny else f"zoo:{row.network}"
        gdws.save(pruned.model, folder / "model", force=True, base=name, export=False)
        model = pruned.model
        record |= {"preset": options.recipe, "how": method.record(), "kept": pruned.kept, "stages": pruned.stages}
        record |= {"trained seconds": sum(line.get("seconds", 0.0) for lines in pruned.stages.values() for line in lines)}
    example = next(iter(data.load(options.data, "test").take(2)))[0].to(options.device)
    record |= {"size_mb": gdws.network_cost(model, example).size_mb, "weights hash": weights_hash(model)}
    if row.method == "admm":
        record |= smaller(model, example, options.out / row.name, options)
    record |= judge(model, row, options)
    machine = torch.cuda.get_device_name() if torch.device(options.device).type == "cuda" else "CPU"
    record |= {"machine": machine, "torch": str(torch.__version__), "commit": options.commit, "tiny": options.tiny}
    return record | {"seconds": time.monotonic() - begun, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}


@torch.no_grad()
def smaller(model: nn.Module, example: Tensor, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The network without its channels of zeros, as it is written and run, beside the network with them."""
    small = gdws.compact(model, example)
    name = "demo" if options.tiny else f"zoo:{folder.name.partition('.')[0]}"
    gdws.save(small, folder / "compact", force=True, base=name, export=False)
    test = data.load(options.data, "test").take(20 if options.tiny else options.n, options.batch)
    farthest, same, largest = 0.0, 0, 0.0
    with full_precision():
        for images, _ in test:
            wanted, found = (network(images.to(options.device)) for network in (model, small))
            farthest = max(farthest, float((wanted - found).abs().max()))
            largest, same = max(largest, float(wanted.abs().max())), same + int((wanted.argmax(1) == found.argmax(1)).sum())
    sizes = {"paper": paper_size(model, example), "compact": gdws.network_cost(small, example).size_mb}
    return {"sizes": sizes, "compact": {"farthest logits": farthest, "largest logit": largest, "same class": same}}


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
    options.commit = os.environ.get(COMMIT) or asked.stdout.strip()
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
