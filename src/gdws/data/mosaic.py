"""CIFAR-10 and SVHN as lossless mosaics: few files that can be carried to machines that fetch nothing.

train_00.webp, train_01.webp, ...   50 x 50 images of 32 x 32 pixels each, row by row; the last one may have fewer rows
train_labels.npy                    one byte an image
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.data import npy
from gdws.data.picture_files import decoded

COLUMNS, SIDE = 50, 32


def is_mosaic(folder: Path, split: str) -> bool:
    """Whether the folder has a split as mosaics."""
    return (folder / f"{split}_00.webp").is_file()


def read(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images, uint8 (N, 3, 32, 32), and labels, int64 (N,), of "train" or "test"."""
    parts = []
    for path in sorted(folder.glob(f"{split}_[0-9][0-9].webp")):
        with decoded(path) as picture:
            pixels = np.asarray(picture)
        rows, rest = divmod(pixels.shape[0], SIDE)
        if rest or pixels.shape[1] != COLUMNS * SIDE:
            size = f"{pixels.shape[1]} x {pixels.shape[0]}"
            raise GdwsError(f"{path} has {size} pixels: expected {COLUMNS} images of {SIDE} x {SIDE} in each of its rows")
        tiles = pixels.reshape(rows, SIDE, COLUMNS, SIDE, 3).transpose(0, 2, 4, 1, 3)
        parts.append(torch.from_numpy(tiles.reshape(-1, 3, SIDE, SIDE).copy()))
    images, found = torch.cat(parts), npy.read(folder / f"{split}_labels.npy")
    labels = found if isinstance(found, Tensor) else found.read()
    if len(images) != len(labels):
        raise GdwsError(f"{folder} has {len(images)} {split} images and {len(labels)} labels: expected a label for each image")
    return images, labels.long()
