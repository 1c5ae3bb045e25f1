"""Arrays in an .npz file: `images` and `labels`, or arguments of a network by their names; or each with the split in front."""

from __future__ import annotations

import io
import math
import os
import zipfile

import numpy as np
import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments, Inputs
from gdws.core.reading.limits import check_bytes
from gdws.data.npy import images_of, is_images, kept_type, read_header, tensor_of

AT_ONCE, BYTES_A_PIXEL = 50, 320
"""Images that commands work on together, and a third of what the embedded network then takes for each of their pixels."""


def read(file: io.BufferedIOBase, name: str, split: str, needed: bool) -> tuple[Inputs, Tensor | None]:
    """Images, uint8 (N, C, H, W), and labels, int64 (N,), if there are any. needed: the labels.

    Where no labels are needed, images may be of any type and shape (N, ...), and without an array of that name all arrays are
    arguments of a network.
    """
    arrays = _arrays(file, name, split, needed)
    labels = arrays.pop("labels", None)
    inputs = _images(arrays["images"], name, needed) if "images" in arrays else _arguments(arrays, name)
    if labels is None:
        return inputs, None
    if labels.shape != (len(inputs),) or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < 2**31)).all():
        raise GdwsError(
            f"{name} has labels of shape {labels.shape} and type {labels.dtype}: expected {len(inputs)} integers from 0"
        )
    return inputs, torch.from_numpy(labels.astype(np.int64))


def _images(images: np.ndarray, name: str, needed: bool) -> Tensor:
    if images.dtype == np.uint8 and images.ndim in (3, 4) and 0 not in images.shape[1:]:
        pixels = images_of(images)
        together = min(len(pixels), AT_ONCE)
        size = pixels.shape[2] * pixels.shape[3]
        check_bytes(f"{together} images of {name} at a time", BYTES_A_PIXEL * together * size)
        return pixels
    if needed or images.dtype == np.uint8:
        raise GdwsError(
            f"{name} has images of shape {images.shape} and type {images.dtype}: expected (N, H, W, C) or (N, C, H, W) uint8"
        )
    return tensor_of(images, f"the array images of {name}")


def _arguments(arrays: dict[str, np.ndarray], name: str) -> Arguments:
    for argument, array in arrays.items():
        if not argument.isidentifier() or argument == "self":
            raise GdwsError(f"{name} has an array {argument!r}: expected the names of arguments that a network is called with")
        if array.ndim == 0:
            raise GdwsError(f"{name} has a single number in {argument}: expected a row for each sample")
    counts = {argument: len(array) for argument, array in arrays.items()}
    if len(set(counts.values())) > 1:
        counted = ", ".join(f"{count} rows in {argument}" for argument, count in counts.items())
        raise GdwsError(f"{name} has {counted}: expected arguments of one number of samples")
    return Arguments(**{argument: tensor_of(array, f"the array {argument} of {name}") for argument, array in arrays.items()})


def _arrays(file: io.BufferedIOBase, name: str, split: str, needed: bool) -> dict[str, np.ndarray]:
    """By names without the split. What they unpack to is known before they are unpacked."""
    size = file.seek(0, os.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:  # np.load would also take a single array
            names = [member.removesuffix(".npy") for member in archive.namelist()]
            if len(set(names)) < len(names):  # which of them is meant, readers do not agree on
                twice = next(each for each in names if names.count(each) > 1)
                raise ValueError(f"it holds {twice!r} twice")
            wanted = _wanted(names, split, needed)
            check_bytes(name, sum(_taken(archive, called, f"{part}.npy") for called, part in wanted.items()), size)
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return {called: arrays[part] for called, part in wanted.items()}
    except GdwsError:
        raise
    except Exception as error:  # a broken archive fails in many ways
        raise GdwsError(
            f"{name} is not an .npz file with arrays `images` and `labels`, or `{split}_images` and `{split}_labels`: {error}"
        ) from None


def _wanted(names: list[str], split: str, needed: bool) -> dict[str, str]:
    """Which arrays of the file are read, and as what: images with labels, or arguments."""
    if needed or not {"images", "train_images", "test_images"}.isdisjoint(names):
        prefix = "" if "images" in names else f"{split}_"
        return {part: prefix + part for part in ("images", "labels") if prefix + part in names or part == "images" or needed}
    if names and all(name.startswith(("train_", "test_")) for name in names):
        prefix = f"{split}_"
        names = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    else:
        prefix = ""
    if not set(names) - {"labels"}:
        raise ValueError("there are no arrays of the kind")
    return {name: prefix + name for name in names}


def _taken(archive: zipfile.ZipFile, called: str, name: str) -> int:
    """Bytes that a member unpacks to, or those of what it is kept as, where these are more.

    They must be those of its array: NumPy asks for as much memory as the array claims.
    """
    size = archive.getinfo(name).file_size
    with archive.open(name) as member:
        header = read_header(member)
        if header.dtype.hasobject:
            raise ValueError(f"{name} holds objects")
        if header.bytes != size - header.start:
            raise ValueError(f"{name} claims an array of shape {header.shape} and has {size:,} bytes")
    pixels = is_images(header) or (called == "images" and header.dtype == np.uint8)
    return size if pixels else max(size, math.prod(header.shape) * kept_type(header.dtype).itemsize)
