"""Data by name, with labels or without (docs/reference/data-formats.md).

Pixels stay bytes, in memory or in files. A Dataset gives them out as floats in [0, 1].
"""

from __future__ import annotations

import io
from importlib import resources
from pathlib import Path

from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.inputs import Inputs
from gdws.core.reading.limits import open_file
from gdws.data import cifar, folder, npy, npz, pictures, svhn
from gdws.data.dataset import Dataset, Stored

__all__ = ["NAMES", "Dataset", "load"]

NAMES = "demo, cifar10:DIR, svhn:DIR, imagefolder:DIR, images:DIR, npy:FILE or npz:FILE"
"""The names that `load` knows, as messages list them."""


def load(name: str, split: str, *, labels: bool = True) -> Dataset:
    """Load one split of a data set: images with labels, or other samples of a network.

    name   "demo": 500 training and 1,000 test images of CIFAR-10 that come with the package; "cifar10:DIR" or "svhn:DIR": the
           official files in a folder; "imagefolder:DIR": one folder of images for each class; "npz:FILE": arrays `images` and
           `labels`; "images:DIR" or "images:DIR,patches=96": any pictures, without labels; "npy:FILE": an array (N, ...) of any
           type. More in docs/reference/data-formats.md.
    split  "train" or "test". Files and folders without splits serve as both.
    labels whether they are needed; if not, an .npz file may have images alone, of any type and shape, or other arrays, which
           are the arguments of a network by name; and a folder need have no folders of classes.

    Returns a Dataset. What lies in a folder or an .npy file is read in parts, all else is in memory. Raises GdwsError when
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
    try:
        return Dataset(name, *_read(name, split, labels))
    except OSError as error:
        raise GdwsError(f"cannot read {error.filename or name}: {error.strerror or error}, expected {NAMES}") from None


def _read(name: str, split: str, labels: bool) -> tuple[Inputs | Stored, Tensor | None]:
    kind, _, location = name.partition(":")
    path = Path(location)
    if kind == "demo" and not location:
        content = (resources.files("gdws.data") / "demo" / "images.npz").read_bytes()
        return npz.read(io.BytesIO(content), name, split, labels)
    if kind == "cifar10" and location:
        return cifar.read(path, split)
    if kind == "svhn" and location:
        return svhn.read(path, split)
    if kind == "imagefolder" and location:
        return folder.read(path, split, labels)
    if kind == "images" and location:
        return pictures.read(location, split), None
    if kind == "npy" and location:
        return npy.read(path), None
    if kind == "npz" and location:
        if not path.is_file():
            raise GdwsError(f"there is no file {path}: expected an .npz with arrays `images` and `labels`")
        with open_file(path) as file:
            return npz.read(file, name, split, labels)
    raise GdwsError(f"unknown data {name!r}: expected {NAMES}")
