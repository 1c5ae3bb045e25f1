"""Where steps are done: a folder of artifacts, the data, the device; and what every step is.

OUT/steps/KEY/           an artifact: record.json, written last, and files. KEY has a hash of everything that decides it
OUT/steps/KEY/error.txt  why a step failed; it is tried again by the next start
OUT/locks/               who has taken which step; nobody holds the lock of a process that was killed
OUT/logs/                what the workers did, and when
OUT/cache/               statistics and times that several steps share
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gdws import data
from gdws.core.errors import GdwsError
from gdws.core.files import ensure_folder, write_atomically
from gdws.core.hashing import data_hash
from gdws.core.reading.limits import read_file
from gdws.core.reading.schema import parse
from gdws.data import Dataset
from gdws.data.dataset import even_batches
from gdws.reproduce.scales import Scale

FORMAT = "gdws step 1"
WEIGHTS, MODEL = "model.safetensors", "model"
"""Of a step that makes a network: a file with the weights of one of the zoo, or a folder with a compressed one."""
UNREACHED = "out of reach"
"""The entry of a record that says why there is no network; then there is none of what needs it either."""
PICTURES, PICTURE_SIDE = 60, 48
"""Of the image folder that stands for ImageNet in a smoke test."""


@dataclass(frozen=True)
class Place:
    """out: of artifacts; data: names for gdws.data.load, by "cifar10", "svhn", "imagenet"; weights: folders that may hold files
    of weights; commit and command: for the records."""

    out: Path
    scale: Scale
    data: dict[str, str]
    weights: tuple[Path, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    commit: str = "unknown"
    command: str = ""

    def split(self, name: str, split: str, count: int | None = None) -> Dataset:
        """The first images of a split of the data with this name."""
        return _loaded(self.data[name], split).take(count)

    def identity(self, name: str) -> str:
        """Of both splits of the data with this name."""
        return _identity(self.data[name])

    def weights_file(self, name: str) -> Path | None:
        """Where a file of weights lies, if it does."""
        return next((folder / name for folder in self.weights if name and (folder / name).is_file()), None)

    def folder(self, step: Step) -> Path:
        return self.out / "steps" / step.key

    def record(self, step: Step) -> dict[str, Any] | None:
        """What a step found, if it is done."""
        try:
            found = parse(read_file(self.folder(step) / "record.json"), f"the record of {step.key} is not whole")
        except OSError:
            return None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise GdwsError(f"{self.folder(step)} holds a record of another kind: expected {FORMAT!r}")
        return found

    def found(self, step: Step) -> dict[str, Any]:
        """What a step that is done found."""
        record = self.record(step)
        if record is None:
            raise GdwsError(f"{step.key} is not done: expected it before what needs it")
        return record

    def keep(self, step: Step, found: dict[str, Any]) -> None:
        write_atomically(self.folder(step) / "record.json", json.dumps({"format": FORMAT, "step": step.key, **found}, indent=1))

    @property
    def cache(self) -> Path:
        return self.out / "cache"


@dataclass(frozen=True)
class Step(ABC):
    """One thing to do, once. Its fields decide what comes out; steps among them must be done before.

    measures_time  nothing else may run on the machine meanwhile.
    """

    @property
    @abstractmethod
    def title(self) -> str:
        """Which network, for people and for the names of folders."""

    @abstractmethod
    def run(self, place: Place) -> dict[str, Any]:
        """Do it, and say what was found."""

    @abstractmethod
    def work(self, place: Place) -> float:
        """About how many forward and backward passes of an image it takes."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The network whose passes they are, or nearly."""

    @property
    def measures_time(self) -> bool:
        return False

    @property
    def needs(self) -> tuple[Step, ...]:
        given = (getattr(self, each.name) for each in fields(self))
        return tuple(each for each in given if isinstance(each, Step))

    @cached_property
    def key(self) -> str:
        """The kind and title, and a hash of everything that decides the result."""
        described = json.dumps([type(self).__name__, {each.name: _plain(getattr(self, each.name)) for each in fields(self)}])
        digest = hashlib.blake2b(described.encode(), digest_size=6).hexdigest()
        return f"{type(self).__name__.lower()}-{self.title}-{digest}"


class NetworkStep(Step):
    """A step that makes a network."""

    @abstractmethod
    def network(self, place: Place) -> nn.Module:
        """The network, in eval mode on the device."""

    def is_there(self, place: Place) -> bool:
        """Whether its files are, or there is no network. Records are carried home without what is quickly made again."""
        files = (place.folder(self) / name for name in (WEIGHTS, f"{MODEL}/gdws.json"))
        return any(file.exists() for file in files) or UNREACHED in place.found(self)

    @property
    @abstractmethod
    def data(self) -> str:
        """The name of the data that it is for."""

    def example(self, place: Place) -> Tensor:
        """One image of it, all zero."""
        return torch.zeros_like(next(iter(place.split(self.data, "test", 1)))[0])


def smoke_data(out: Path) -> dict[str, str]:
    """The images that come with the package for all; as a folder of pictures, made here, for ImageNet."""
    folder = out / "pictures"
    if not (folder / "whole").exists():
        few = data.load("demo", "test").take(PICTURES)
        for split, part in zip(("train", "val"), even_batches(PICTURES, PICTURES // 2), strict=True):
            for number, (pixels, label) in enumerate(zip(few.images[part], few.labels[part].tolist(), strict=True)):
                place = folder / split / f"class{label}"
                ensure_folder(place)
                side = (PICTURE_SIDE, PICTURE_SIDE)
                Image.fromarray(np.asarray(pixels.permute(1, 2, 0))).resize(side).save(place / f"{number}.png")
        write_atomically(folder / "whole", "")
    return {"cifar10": "demo", "svhn": "demo", "imagenet": f"imagefolder:{folder}"}


def _plain(value: Any) -> Any:
    """A field as JSON: a step by its key, a record of settings by its kind and fields."""
    if isinstance(value, Step):
        return value.key
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, asdict(value)]
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


@cache
def _loaded(name: str, split: str) -> Dataset:
    return data.load(name, split)


@cache
def _identity(name: str) -> str:
    """Of all images in memory; of those in a folder, of their labels and a hundred."""
    splits = [_loaded(name, split) for split in ("train", "test")]
    few = 100 if name.startswith("imagefolder:") else None
    return "-".join(data_hash(split.take(few).images, split.labels) for split in splits)
