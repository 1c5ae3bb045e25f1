"""Images with labels by name: demo, cifar10:DIR, svhn:DIR, imagefolder:DIR or npz:FILE (docs/reference/data-formats.md).

Pixels stay bytes, in memory or in files. A Dataset gives them out as floats in [0, 1].
"""

from __future__ import annotations

import io
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gdws.data import cifar, folder, svhn
from gdws.data.dataset import Dataset
from gdws.errors import GdwsError

__all__ = ["NAMES", "Dataset", "load"]

NAMES = "demo, cifar10:DIR, svhn:DIR, imagefolder:DIR or npz:FILE"
"""The names that `load` knows, as messages list them."""


def load(name: str, split: str, *, labels: bool = True) -> Dataset:
    """Load the images and labels of one split of a data set.

    name   "demo": 500 training and 1,000 test images of CIFAR-10 that come with the package; "cifar10:DIR" or "svhn:DIR": the
           official files in a folder; "imagefolder:DIR": one folder of images for each class; "npz:FILE": arrays `images` and
           `labels`. More in docs/reference/data-formats.md.
    split  "train" or "test". Files and folders without splits serve as both.
    labels whether they are needed; if not, an .npz file may have images alone, and a folder need have no folders of classes.

    Returns a Dataset. The images of a folder are decoded when they are read, the others are in memory. Raises GdwsError when
    the name or the split is unknown, or when files are missing or not as they should be.

    >>> from gdws import data
    >>> test = data.load("demo", "test")
    >>> len(test)
    1000
    >>> images, labels = next(iter(test))
    >>> images.shape, images.dtype, labels.shape
    (torch.Size([100, 3, 32, 32]), torch.float32, torch.Size([100]))
    """
    if split not in ("train", "test"):
        raise GdwsError(f"the split {split!r} of {name} was asked for: expected train or test")
    kind, _, location = name.partition(":")
    path = Path(location)
    if kind == "demo" and not location:
        content = (resources.files("gdws.data") / "demo" / "images.npz").read_bytes()
        return Dataset(name, *_read_npz(content, name, split, labels))
    if kind == "cifar10" and location:
        return Dataset(name, *cifar.read(path, split))
    if kind == "svhn" and location:
        return Dataset(name, *svhn.read(path, split))
    if kind == "imagefolder" and location:
        return Dataset(name, *folder.read(path, split, labels))
    if kind == "npz" and location:
        if not path.is_file():
            raise GdwsError(f"there is no file {path}: expected an .npz with arrays `images` and `labels`")
        return Dataset(name, *_read_npz(path.read_bytes(), name, split, labels))
    raise GdwsError(f"unknown data {name!r}: expected {NAMES}")


def _read_npz(content: bytes, name: str, split: str, needed: bool) -> tuple[Tensor, Tensor | None]:
    """The arrays `images` and `labels`, or those with the split in front of their names. needed: the labels."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            prefix = "" if "images" in arrays else f"{split}_"
            images = arrays[f"{prefix}images"]
            labels = arrays[f"{prefix}labels"] if needed or f"{prefix}labels" in arrays else None
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise GdwsError(
            f"{name} is not an .npz file with arrays `images` and `labels`, or `{split}_images` and `{split}_labels`: {error}"
        ) from None
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise GdwsError(f"{name} has images of shape {images.shape} and type {images.dtype}: expected (N, H, W, 3) uint8")
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    if labels is None:
        return pixels, None
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer) or (labels < 0).any():
        raise GdwsError(
            f"{name} has labels of shape {labels.shape} and type {labels.dtype}: expected {len(images)} integers from 0"
        )
    return pixels, torch.from_numpy(labels.astype(np.int64))
