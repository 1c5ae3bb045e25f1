"""Images and labels by name: cifar10:DIR, npz:FILE, demo. Pixels are kept as bytes and leave here as floats in [0, 1]."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdws.errors import GdwsError


@dataclass(frozen=True)
class Dataset:
    """images: uint8 (N, 3, H, W); labels: int64 (N,). Iterating gives batches of (float images in [0, 1], labels)."""

    name: str
    images: Tensor
    labels: Tensor
    batch_size: int = 100

    def __post_init__(self) -> None:
        if len(self.images) == 0:
            raise GdwsError(f"{self.name} holds no images: expected at least one")

    def __len__(self) -> int:
        """Number of batches, as a DataLoader counts."""
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in zip(self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True):
            yield images.float() / 255, labels

    def take(self, count: int | None, batch_size: int | None = None) -> Dataset:
        """The first `count` images (all with None), in batches of batch_size."""
        if count is not None and count < 1:
            raise GdwsError(f"{count} images of {self.name} were asked for: expected at least 1")
        if batch_size is not None and batch_size < 1:
            raise GdwsError(f"batches of {batch_size} images were asked for: expected at least 1")
        return replace(
            self,
            images=self.images[:count],
            labels=self.labels[:count],
            batch_size=batch_size or self.batch_size,
        )

    def split(self, count: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        g = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.images), generator=g)
        held, rest = order[:count].sort().values, order[count:].sort().values
        return replace(self, images=self.images[rest], labels=self.labels[rest]), replace(
            self, images=self.images[held], labels=self.labels[held]
        )


def load(name: str, split: str) -> Dataset:
    """The `split` ("train" or "test") of the data called `name`. An npz file is its own split."""
    kind, _, location = name.partition(":")
    if kind == "demo" and not location:
        return _read_npz(_embedded("images.npz"), name, prefix=f"{split}_")
    if kind == "cifar10" and location:
        return _read_cifar10(Path(location), name, split)
    if kind == "npz" and location:
        path = Path(location)
        if not path.is_file():
            raise GdwsError(f"there is no file {path}: expected an .npz with arrays `images` and `labels`")
        return _read_npz(path.read_bytes(), name, prefix="")
    raise GdwsError(f"unknown data {name!r}: expected demo, cifar10:DIR or npz:FILE")


def _embedded(name: str) -> bytes:
    return (resources.files("gdws") / "embedded" / name).read_bytes()


def _read_npz(content: bytes, name: str, prefix: str) -> Dataset:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            images, labels = arrays[f"{prefix}images"], arrays[f"{prefix}labels"]
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise GdwsError(f"{name} is not an .npz file with arrays `images` and `labels`: {error}") from None
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise GdwsError(f"{name} has images of shape {images.shape} and type {images.dtype}: expected (N, H, W, 3) uint8")
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer) or (labels < 0).any():
        raise GdwsError(
            f"{name} has labels of shape {labels.shape} and type {labels.dtype}: expected {len(images)} integers from 0"
        )
    return Dataset(name, torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels).long())


class _ArraysOnly(pickle.Unpickler):
    """Reads the official CIFAR pickles: dictionaries, bytes and numpy arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
        if (module.rpartition(".")[2], name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        if name == "_reconstruct":
            from numpy._core.multiarray import _reconstruct

            return _reconstruct
        return super().find_class(module, name)


def _read_cifar10(folder: Path, name: str, split: str) -> Dataset:
    nested = folder / "cifar-10-batches-py"
    folder = nested if nested.is_dir() else folder
    files = ["test_batch"] if split == "test" else [f"data_batch_{part}" for part in range(1, 6)]
    images, labels = [], []
    for file in files:
        try:
            content = (folder / file).read_bytes()
        except OSError:
            raise GdwsError(f"{folder} has no {file}: expected the folder of the CIFAR-10 python archive") from None
        try:
            batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
            images.append(batch[b"data"].reshape(-1, 3, 32, 32))
            labels.append(np.asarray(batch[b"labels"], dtype=np.int64))
        except Exception as error:
            raise GdwsError(f"{folder / file} is not a batch of the CIFAR-10 python archive: {error}") from None
    return Dataset(name, torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)))
