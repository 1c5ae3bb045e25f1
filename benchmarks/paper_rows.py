"""Rows of the paper's tables 1, 3, 7, 9 and 10, unattended: one JSON file for each, written as soon as it is known.

    python benchmarks/paper_rows.py --data FOLDER ... --out rows [--workers 4] [--deadline 1200] [--only RE]
    python benchmarks/unattended.py rows                # how far it is; benchmarks/paper_rows.sh does both on another machine

Each --data folder may have a part of the data: cifar10/ and svhn/ with train_NN.webp and test_NN.webp, lossless mosaics of 50 x
50 images row by row, and train_labels.npy and test_labels.npy, one byte an image; and files of weights. What is not there yet
is waited for. Written to --out:

    NAME.json         a row: how it was made, what was found, image by image, and what it says beside its base
    NAME.error.txt    why a row failed
    weights/          of the networks that were trained here
    logs/, claims/    of the processes that share the queue; work/: networks, checkpoints, statistics

A row that exists is not made again. After --deadline seconds no row is begun. --tiny tries it all with a handful of images.

For every base network: the paper's method at the sizes of its tables, and the calibrated method at the same parameters and at
the same multiply-adds. PGD-100 on the test images; calibration on the first 1,000 training images, attacked by PGD-7.

A size in MB is turned into a fraction of the replaced layers' weights: all else keeps its own. A row that still rounds to the
size of the base asks for the least that rounds so, and then for a quarter of a percent less until some layer is replaced.
beta is the largest weighted squared error of a replaced layer in the plan: the least bound that gives this very network.

Networks of one base are judged in runs of their own, by the same images in the same batches: random starts depend on the seed,
the attack and the batch alone, so rows are paired with their base image by image as in one run (gdws.evaluation.compare).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn
from unattended import Task, supervise, work_off

import gdws
from gdws import models
from gdws.attacks import PGD, Attack
from gdws.attacks.presets import preset
from gdws.calibration.method import ATTACK
from gdws.core.files import write_atomically
from gdws.core.hashing import weights_hash
from gdws.core.reading.weights import contiguous_copies
from gdws.core.sites import find_convolutions
from gdws.data import Dataset
from gdws.evaluation.comparison import NATURAL, interval, percent
from gdws.models import zoo
from gdws.planning.significance import paired_change
from gdws.training import Recipe, recipe_for

CPU_THREADS = 3
GRID, SIDE, TILE = 50, 32, 2500
NO_ROOM = 0.995
"""Above this fraction of the replaced weights the paper's rounded size may leave nothing to replace."""


@dataclass(frozen=True)
class Row:
    """A row of the paper: MB, natural and robust accuracy, beta, and those accuracies after fine-tuning."""

    mb: float
    natural: float
    robust: float
    beta: float | None = None
    tuned: tuple[float, ...] = ()


@dataclass(frozen=True)
class Base:
    """A network of the paper, its rows, and how it is had here: from a file of weights, or by a recipe in so many epochs."""

    data: str
    network: str
    tables: str
    source: str
    epochs: int
    train_seconds: float
    images: int
    batch: int
    paper: Row
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        return f"{self.data}-{self.network}"

    @property
    def weights(self) -> tuple[str, ...]:
        """The file, if it is not trained here."""
        return (self.source,) if self.source.endswith(".safetensors") else ()


def row_of(text: str) -> Row:
    """MB natural robust [beta [natural robust]]"""
    mb, natural, robust, *more = map(float, text.split())
    return Row(mb, natural, robust, more[0] if more else None, tuple(more[1:]))


def base_of(line: str) -> Base:
    """data network tables source epochs seconds images batch | its row | ..."""
    head, paper, *rows = line.split("|")
    data, network, tables, source, *numbers = head.split()
    epochs, seconds, images, batch = map(int, numbers)
    return Base(data, network, tables, source, epochs, seconds, images, batch, row_of(paper), tuple(map(row_of, rows)))


BASES = [
    base_of(line)
    for line in """
svhn wrn28_4 10 fast-svhn 30 200 5000 250 | 22.3 90.71 52.27 | 22.3 90.67 51.89 1e-4 | 22.1 90.60 51.11 5e-4
svhn preactresnet18 10 fast-svhn 30 200 5000 500 | 42.6 88.63 55.57 | 39.9 87.87 55.88 5e-5 | 39.3 87.37 55.66 7.5e-5
svhn vgg16 10 fast-svhn 30 200 5000 1000 | 56.2 90.72 51.51 | 53.6 90.62 51.84 0.1 | 43.3 88.09 54.48 5
cifar10 wrn28_4 1,9 wrn28_4_cifar10_linf_at.safetensors 0 0 10000 250 | 22.3 84.00 51.80 | 18.9 83.27 51.70 1e-5 \
 | 19.9 83.64 51.62 5e-6
cifar10 vgg16 1,7,9 vgg16_cifar10_linf_at_steps.safetensors 0 0 10000 1000 | 56.2 77.49 48.92 | 28.7 77.17 49.56 0.25 \
 | 33.3 77.59 49.36 0.1 | 19.1 72.05 45.35 2 77.15 47.87 | 16.3 63.21 37.78 5 76.76 47.92
cifar10 preactresnet18 1,9 preactresnet18_cifar10_linf_at.safetensors 0 0 10000 500 | 42.6 82.41 51.55 \
 | 29.1 81.17 50.98 5e-3 | 33.5 82.17 51.30 1e-3
cifar10 mobilenetv1 3 fast 24 250 10000 500 | 12.3 79.92 49.08
cifar10 preactresnet18_dws 3 fast 24 250 10000 500 | 5.5 80.12 48.52
cifar10 mobilenetv2 3 fast 24 250 10000 500 | 8.5 79.59 48.55
cifar10 resnet20_wide 3 fast 24 250 10000 500 | 6.4 74.82 47.00
cifar10 preactresnet50 1,9 fast 12 600 2000 250 | 89.7 84.21 53.05 | 81.9 83.72 52.94 1e-3 | 75.9 81.18 51.25 5e-3
""".strip().splitlines()
]
"""Shared bases of CIFAR-10 and bases that are trained here; the lightweight ones of table 3 have no rows but themselves."""


class Tables:
    """What makes the rows, and all that they share: options, folders, data."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out, self.tiny = options, options.out, options.tiny
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.work, self.weights = self.out / "work", self.out / "weights"
        (attack,) = preset("paper-cifar10")
        self.attack: Attack = PGD(steps=2, early_exit=True) if self.tiny else attack
        self.seed = 0
        for folder in (self.work, self.weights, self.out / "claims", self.out / "logs"):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where a file is, or would be."""
        places: list[Path] = [root / name for root in self.options.data]
        return next((place for place in places if place.is_file()), places[0])

    def record(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.out / f"{name}.json").read_text()))

    def images(self, data: str, split: str, count: int) -> Dataset:
        return read(tuple(self.path(name) for name in mosaics(data, split, count)), data, count)

    def model(self, base: Base) -> nn.Module:
        path = self.path(base.weights[0]) if base.weights else self.weights / f"{base.name}.safetensors"
        network = "tiny" if self.tiny and not base.weights else base.network
        return models.resolve(f"zoo:{network}", path).to(self.device)

    def recipe(self, base: Base, name: str, epochs: int, seed: int) -> Recipe:
        """As the command line makes it."""
        epochs = 1 if self.tiny else epochs
        made = recipe_for(f"{base.data}:", self.device.type, name, epochs=epochs, seed=seed)
        return replace(made, batch=16, attack=PGD(steps=1)) if self.tiny else made

    def judge(self, base: Base, model: nn.Module, reference: str = "") -> dict[str, Any]:
        """Natural and robust accuracy, and beside the base's."""
        begun = time.monotonic()
        test = self.images(base.data, "test", 16 if self.tiny else base.images).take(None, base.batch)
        found = gdws.compare({"it": model}, test, [self.attack], self.seed, transfer=False, tf32=not self.options.float32)
        rights = {"natural": found.under("it", NATURAL), "robust": found.under("it", str(self.attack))}
        record: dict[str, Any] = {
            kind: {"percent": percent(right), "interval": interval(right), "right": np.packbits(right.numpy()).tobytes().hex()}
            for kind, right in rights.items()
        }
        if reference:
            before = self.record(reference)
            pairs = {kind: paired_change(unpack(before[kind]["right"], len(right)), right) for kind, right in rights.items()}
            record["paired"] = {
                kind: asdict(pair) | {"points": pair.points, "interval": pair.interval, "p": pair.p_value}
                for kind, pair in pairs.items()
            }
        crafted = "TF32, judged in float32" if self.device.type == "cuda" and not self.options.float32 else "float32"
        settings = {"images": found.images, "batch": test.batch_size, "attack": str(self.attack), "crafted in": crafted}
        return record | settings | {"evaluation seconds": time.monotonic() - begun}

    def describe(self, base: Base) -> dict[str, Any]:
        trained = {"weights": base.weights[0]} if base.weights else self.record(f"{base.name}.train")["base"]
        return {"network": f"zoo:{base.network}", "data": base.data, "tables": base.tables, "base": trained}

    def train(self, base: Base) -> dict[str, Any]:
        """Convolutions are kept in float16, as in shared/models, and the network that is judged is the one that was kept."""
        begun, seed = time.monotonic(), 1
        split = self.images(base.data, "train", trained_on(base, self.tiny))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = models.resolve("zoo:tiny" if self.tiny else f"zoo:{base.network}", None, int(split.labels.max()) + 1)
        recipe, folder = self.recipe(base, base.source, base.epochs, seed), self.work / f"{base.name}.run"
        trained = gdws.train(model.to(self.device), split, recipe, folder, resume=(folder / "log.jsonl").exists())
        tensors = contiguous_copies(trained.model.state_dict())
        halved = {name: value.half() if value.ndim == 4 else value for name, value in tensors.items()}
        write_atomically(self.weights / f"{base.name}.safetensors", save(halved))
        history = {"recipe name": base.source, "recipe": recipe.record(), "images": len(split), "seed": seed}
        kept = {"epochs": recipe.epochs, "kept": trained.best, "seconds": time.monotonic() - begun}
        return {"base": history | kept | {"weights": f"weights/{base.name}.safetensors"}, "history": trained.history}

    def base(self, base: Base) -> dict[str, Any]:
        model = self.model(base)
        size = {"mb": megabytes(model), "parameters": 1.0, "macs": 1.0, "weights hash": weights_hash(model)}
        return self.describe(base) | {"method": "base", "found": size, "paper": asdict(base.paper)} | self.judge(base, model)

    def row(self, base: Base, row: Row, method: str) -> dict[str, Any]:
        """method: paper, auto-params or auto-macs; the last two are made as small as the first is found to be."""
        begun, model, own = time.monotonic(), self.model(base), method == "paper"
        images, cached = self.images(base.data, "train", 10 if self.tiny else 1000), self.work / f"{base.name}.cache"
        if own:
            wanted = fraction(base.network, row.mb)
            asked = wanted if wanted <= NO_ROOM else fraction(base.network, row.mb - 0.05)
        else:
            kind = "parameters" if method == "auto-params" else "macs"
            asked = wanted = self.record(f"{base.name}.paper-{row.mb}")["found"][kind]
        statistics = None if own else gdws.calibrate(model, images, gdws.Calibrated(attack=ATTACK), cache=cached)
        settings = gdws.Paper(attack=ATTACK) if own else None  # statistics know theirs
        while True:
            budget = gdws.Macs(asked) if method == "auto-macs" else gdws.Params(asked)
            plan = gdws.plan(model, statistics or images, budget, settings)
            replaced = [layer for layer in plan.layers if layer.structure != "dense"]
            if replaced or not own or asked < 0.9:
                break
            asked -= 0.0025
        compressed = gdws.apply(model, plan, statistics)
        gdws.save(compressed, self.work / f"{base.name}.{method}-{row.mb}", force=True, base=f"zoo:{base.network}")
        seconds, structures = time.monotonic() - begun, "gdws" if own else "auto"
        found: dict[str, Any] = {"parameters": plan.parameters, "macs": plan.macs, "predicted loss": plan.loss}
        found |= {"mb": megabytes(compressed), "beta": max((layer.loss for layer in replaced), default=0.0) if own else None}
        found["replaced"] = {layer.name: [layer.structure, sum(layer.ranks)] for layer in replaced}
        found["replaceable"] = sum(layer.replaceable for layer in plan.layers)
        made = {"method": plan.method, "structures": structures, "calibration images": len(plan.images), "found": found}
        made["budget"] = {"kind": type(budget).__name__, "value": asked, "wanted": wanted, "paper's MB": row.mb}
        made |= {"paper": asdict(row), "compression seconds": seconds}
        return self.describe(base) | made | self.judge(base, compressed, f"{base.name}.base")

    def tune(self, base: Base, row: Row, method: str, taught: bool) -> dict[str, Any]:
        begun, name = time.monotonic(), f"{base.name}.{method}-{row.mb}"
        split, folder = self.images(base.data, "train", trained_on(base, self.tiny)), self.work / f"{name}.run-{taught}"
        recipe = self.recipe(base, "tune", 10, 1)
        network = gdws.load(self.work / name, self.model(base)).to(self.device)
        teacher = self.model(base) if taught else None
        trained = gdws.tune(network, split, recipe, folder, teacher=teacher, resume=(folder / "log.jsonl").exists())
        gdws.save(trained.model, self.work / f"{name}-tuned-{taught}", force=True, base=f"zoo:{base.network}")
        tuning = {"recipe": recipe.record(), "teacher": taught, "history": trained.history, "seconds": time.monotonic() - begun}
        untuned = {key: value for key, value in self.record(name).items() if key in ("method", "structures", "budget", "found")}
        judged = self.judge(base, trained.model.to(self.device), f"{base.name}.base")
        return self.describe(base) | untuned | {"tuned from": name, "tuning": tuning, "paper": asdict(row)} | judged

    def tasks(self) -> list[Task]:
        """In the order in which they are begun, as far as what they need is there.

        Bases that are trained here come first where rows depend on them, those of table 3 and the largest last.
        """
        training, rows, later, last = list[Task](), list[Task](), list[Task](), list[Task]()
        for base in BASES:
            own = rows if base.weights or base.data == "svhn" else last
            train = mosaics(base.data, "train", trained_on(base, self.tiny))
            test = (*mosaics(base.data, "test", 16 if self.tiny else base.images), *base.weights)
            files = (*test, *mosaics(base.data, "train", 1000))
            trained = f"{base.name}.train"
            if not base.weights:
                first = training if base.data == "svhn" else last
                first.append(Task(trained, partial(self.run, self.train, base), (), train, base.train_seconds))
            own.append(Task(f"{base.name}.base", partial(self.run, self.base, base), () if base.weights else (trained,), test))
            for method, row in product(("paper", "auto-params", "auto-macs"), base.rows):
                needs = {f"{base.name}.base" if method == "paper" else f"{base.name}.paper-{row.mb}"}
                if method == "auto-macs" or (method == "auto-params" and row is not base.rows[0]):
                    needs.add(f"{base.name}.auto-params-{base.rows[0].mb}")  # which leaves its statistics in the cache
                run = partial(self.run, self.row, base, row, method)
                first = later if method == "auto-macs" and base.weights else own
                first.append(Task(f"{base.name}.{method}-{row.mb}", run, tuple(needs), files))
            for taught, row, method in product((True, False), base.rows, ("paper", "auto-params") if base.weights else ()):
                name, run = f"{base.name}.{method}-{row.mb}", partial(self.run, self.tune, base, row, method, taught)
                if row.tuned:
                    later.append(Task(f"{name}-{'taught' if taught else 'tuned'}", run, (name,), (*train, *test), 100))
        chosen = (*training, *rows, *later, *last)
        return [task for task in chosen if re.search(self.options.only, task.name)]

    def run(self, make: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
        """A record, with what it was made on."""
        begun, made = time.monotonic(), make(*given)
        machine = torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"
        command = " ".join(["python", *(word for word in sys.argv if word not in ("--worker", str(self.options.worker)))])
        made |= {"seed": self.seed, "commit": self.options.commit, "machine": machine, "torch": str(torch.__version__)}
        made |= {"processes": self.options.workers, "seconds": time.monotonic() - begun, "tiny": self.tiny}
        return made | {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "command": command}


def mosaics(data: str, split: str, count: int) -> tuple[str, ...]:
    """The files of the first `count` images."""
    return *(f"{data}/{split}_{tile:02d}.webp" for tile in range(-(-count // TILE))), f"{data}/{split}_labels.npy"


@cache
def read(files: tuple[Path, ...], data: str, count: int) -> Dataset:
    """The first `count` images of mosaics; the last file has the labels."""
    tiles = [np.asarray(Image.open(file).convert("RGB")) for file in files[:-1]]
    parts = [tile.reshape(GRID, SIDE, -1, SIDE, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, SIDE, SIDE) for tile in tiles]
    labels = np.load(files[-1]).astype(np.int64)[:count]
    return Dataset(data, torch.from_numpy(np.concatenate(parts)[:count].copy()), torch.from_numpy(labels))


def trained_on(base: Base, tiny: bool) -> int:
    return 100 if tiny else 20_000 if base.data == "svhn" else 50_000


def megabytes(model: nn.Module) -> float:
    return sum(value.numel() for value in model.parameters()) * 4 / 2**20


def unpack(text: str, count: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:count]).bool()


@cache
def fraction(network: str, mb: float) -> float:
    """Of the weights that may be replaced, what is left of them where the whole network has this size."""
    model = zoo.build(network)
    sites = find_convolutions(model, torch.zeros(1, 3, SIDE, SIDE))
    replaced = sum(site.conv.weight.numel() for site in sites if site.reason is None) * 4 / 2**20
    return min(1.0, (mb - (megabytes(model) - replaced)) / replaced)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", type=Path, required=True, help="folders with cifar10/, svhn/, weights")
    parser.add_argument("--out", type=Path, required=True, help="folder for the records, logs/ and weights/")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--deadline", type=float, default=1200, help="seconds after which no task is begun")
    parser.add_argument("--only", default="", help="regular expression for the names of tasks")
    parser.add_argument("--float32", action="store_true", help="make attacks in float32, not in TF32")
    parser.add_argument("--commit", default="unknown", help="of the code, for the records")
    parser.add_argument("--tiny", action="store_true", help="a handful of images, to try it all")
    parser.add_argument("--worker", type=float, metavar="BEGAN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    tables = Tables(options)
    if options.worker is None:
        supervise(options.out, options.workers)
    else:
        torch.set_num_threads(1 if options.tiny else CPU_THREADS)
        work_off(options.out, tables.tasks(), lambda name: tables.path(name).is_file(), options.worker + options.deadline)


if __name__ == "__main__":
    main()
