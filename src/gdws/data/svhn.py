"""SVHN's cropped digits in the official files train_32x32.mat and test_32x32.mat, or as mosaics.

The official ones are MATLAB 5 files. Only what these two need is read of that format, which is less than a dependency on scipy
would be: a header, then elements (type, size, content padded to 8 bytes), which hold a matrix, most often compressed.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.reading.limits import check_bytes, max_bytes, read_file
from gdws.data import mosaic

HEADER = 128
"""Bytes before the first element: text, version, and the letters IM in a little-endian file."""

MATRIX, COMPRESSED = 14, 15
NUMERIC = range(6, 16)
"""Classes of matrices that hold numbers; the others are cells, structures, objects, text and sparse matrices."""

NUMBERS = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}


def read(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images, uint8 (N, 3, 32, 32), and digits, int64 (N,), of "train" or "test"."""
    if mosaic.is_mosaic(folder, split):
        return mosaic.read(folder, split)
    path = folder / f"{split}_32x32.mat"
    try:
        content = read_file(path)
    except OSError:
        raise GdwsError(
            f"{folder} has no {path.name}: expected SVHN's cropped digits (`gdws download svhn {folder}` fetches them)"
        ) from None
    try:
        arrays = matrices(content, str(path))
        images, labels = arrays["X"], arrays["y"].ravel()
    except (ValueError, LookupError, struct.error, zlib.error) as error:
        if isinstance(error, GdwsError):
            raise
        raise GdwsError(f"{path} is not a MATLAB 5 file with arrays X and y: {error}, is it truncated?") from None
    if images.shape != (32, 32, 3, len(labels)) or images.dtype != np.uint8 or not np.isin(labels, range(11)).all():
        raise GdwsError(
            f"{path} has images {images.shape} {images.dtype} and {len(labels)} labels: expected (32, 32, 3, N) uint8 and N "
            "digits, the digit 0 as label 10"
        )
    return torch.from_numpy(images.transpose(3, 2, 0, 1).copy()), torch.from_numpy(labels.astype(np.int64) % 10)


def matrices(file: bytes, source: str) -> dict[str, Any]:
    """The numeric arrays of a MATLAB 5 file by name."""
    if len(file) < HEADER or file[126:128] != b"IM":
        raise ValueError("it has no little-endian header")
    found, left = {}, max_bytes(len(file))
    for kind, data in _elements(memoryview(file)[HEADER:]):
        if kind == COMPRESSED:
            stream = zlib.decompressobj()
            unpacked = stream.decompress(data, left + 1)
            check_bytes(f"an array of {source}", len(unpacked) + max_bytes(len(file)) - left, len(file))
            left -= len(unpacked)
            if not stream.eof:
                raise ValueError("a compressed array ends early")
            ((kind, data),) = _elements(memoryview(unpacked))
        if kind == MATRIX:
            (_, flags), (_, shape), (_, name), *values = itertools.islice(_elements(data), 4)  # there may be millions
            if flags[0] in NUMERIC:
                numbers, content = values[0]
                array = np.frombuffer(content, NUMBERS[numbers])
                found[bytes(name).decode("latin1")] = array.reshape(np.frombuffer(shape, "<i4"), order="F")
    return found


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each element, one after the other."""
    position = 0
    while position < len(data):
        kind, size = struct.unpack_from("<II", data, position)
        start = position + 8
        if kind >> 16:  # up to four bytes lie in the tag itself
            kind, size, start = kind & 0xFFFF, kind >> 16, position + 4
        if start + size > len(data):
            raise ValueError(f"an element of {size} bytes ends after {len(data) - start}")
        yield kind, data[start : start + size]
        end = max(start + size, position + 8)
        position = end if kind == COMPRESSED else end + -end % 8
