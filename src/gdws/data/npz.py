"""Arrays `images` and `labels` in an .npz file, or those with the split in front of their names."""

from __future__ import annotations

import io
import math
import os
import zipfile

import numpy as np
import torch
from torch import Tensor

from gdws.core.reading.limits import check_bytes
from gdws.errors import GdwsError

AT_ONCE, BYTES_A_PIXEL = 50, 320
"""Images that commands work on together, and a third of what the embedded network then takes for each of their pixels."""


def read(file: io.BufferedIOBase, name: str, split: str, needed: bool) -> tuple[Tensor, Tensor | None]:
    """Images, uint8 (N, 3, H, W), and labels, int64 (N,), if there are any. needed: the labels."""
    images, labels = _arrays(file, name, split, needed)
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8 or 0 in images.shape[1:]:
        raise GdwsError(f"{name} has images of shape {images.shape} and type {images.dtype}: expected (N, H, W, 3) uint8")
    together = min(len(images), AT_ONCE)
    check_bytes(f"{together} images of {name} at a time", BYTES_A_PIXEL * together * images.shape[1] * images.shape[2])
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    if labels is None:
        return pixels, None
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < 2**31)).all():
        raise GdwsError(
            f"{name} has labels of shape {labels.shape} and type {labels.dtype}: expected {len(images)} integers from 0"
        )
    return pixels, torch.from_numpy(labels.astype(np.int64))


def _arrays(file: io.BufferedIOBase, name: str, split: str, needed: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """What they unpack to is known before they are unpacked."""
    size = file.seek(0, os.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:  # np.load would also take a single array
            names = archive.namelist()
            prefix = "" if "images.npy" in names else f"{split}_"
            wanted = [f"{prefix}images", *([f"{prefix}labels"] if needed or f"{prefix}labels.npy" in names else [])]
            check_bytes(name, sum(_unpacked(archive, f"{part}.npy") for part in wanted), size)
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            found = [arrays[part] for part in wanted]
    except GdwsError:
        raise
    except Exception as error:  # a broken archive fails in many ways
        raise GdwsError(
            f"{name} is not an .npz file with arrays `images` and `labels`, or `{split}_images` and `{split}_labels`: {error}"
        ) from None
    return found[0], found[1] if len(found) > 1 else None


def _unpacked(archive: zipfile.ZipFile, name: str) -> int:
    """Bytes that a member unpacks to, which must be those of its array: NumPy asks for as much memory as the array claims."""
    size = archive.getinfo(name).file_size
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(member)
        if kind.hasobject:
            raise ValueError(f"{name} holds objects")
        if math.prod(shape) * kind.itemsize != size - member.tell():
            raise ValueError(f"{name} claims an array of shape {shape} and has {size:,} bytes")
    return size
