"""An array in an .npy file, read in parts; and what arrays become as inputs of a network.

The header is checked against the size of the file before memory is taken, and nothing is unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.reading.limits import check_bytes, open_file
from gdws.data.dataset import MOST_VALUES, even_batches

COLORS = (1, 3, 4)
"""Channels of pictures: gray, RGB, RGBA."""


class Header(NamedTuple):
    """What an .npy file says of its array: where that starts, in bytes, its shape and type, and whether columns come first."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes]) -> Header:
    """Raises whatever comes of a broken one."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(file)
    return Header(file.tell(), shape, kind, fortran)


@dataclass(frozen=True)
class Rows:
    """The rows of an array on disk, or some of them: gdws.data.dataset.Stored."""

    path: Path
    header: Header
    chosen: range | np.ndarray

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, chosen: slice | Tensor) -> Rows:
        if isinstance(chosen, slice):
            return replace(self, chosen=self.chosen[chosen])
        numbers = chosen.numpy()
        if isinstance(self.chosen, range):  # of a large file too many to be listed
            return replace(
                self, chosen=self.chosen.start + self.chosen.step * np.where(numbers < 0, numbers + len(self), numbers)
            )
        return replace(self, chosen=self.chosen[numbers])

    def batches(self, size: int) -> Iterator[slice]:
        return even_batches(len(self), max(1, min(size, MOST_VALUES // math.prod(self.header.shape[1:]))))

    def read(self) -> Tensor:
        """Images, uint8 (N, C, H, W), or values (N, ...)."""
        rows, kind = np.asarray(self.chosen), self.header.dtype
        check_bytes(f"{len(rows):,} rows of {self.path}", self._row_bytes * len(rows), self.path.stat().st_size)
        values = np.empty((len(rows), *self.header.shape[1:]), kind)
        with open_file(self.path) as file:
            for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):  # rows that lie side by side
                if len(run):
                    file.seek(self.header.start + int(rows[run[0]]) * self._row_bytes)
                    _fill(values[run[0] : run[-1] + 1], file, self.path)
        return images_of(values) if is_images(values) else tensor_of(values, str(self.path))

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.header.shape[1:]) * self.header.dtype.itemsize


def read(path: Path) -> Rows | Tensor:
    """The array of a file: on disk, or in memory where its rows do not lie one after the other."""
    if not path.is_file():
        raise GdwsError(f"there is no file {path}: expected an .npy file with an array (N, ...)")
    with open_file(path) as file:
        size = path.stat().st_size
        try:
            header = read_header(file)
        except Exception as error:  # a broken header fails in many ways
            raise GdwsError(f"{path} is not an .npy file with an array (N, ...): {error}") from None
        check_type(header.dtype, str(path))
        if not header.shape or min(header.shape) < 1:
            raise GdwsError(
                f"{path} has an array of shape {header.shape}: expected (N, ...) with at least one value in each row"
            )
        if header.bytes != size - header.start:
            raise GdwsError(f"{path} claims an array of shape {header.shape} and has {size:,} bytes: expected a whole file")
        if not header.fortran or len(header.shape) == 1:
            return Rows(path, header, range(header.shape[0]))
        check_bytes(f"{path}, whose rows do not lie one after the other,", header.bytes)
        columns = np.empty(header.shape[::-1], header.dtype)
        _fill(columns, file, path)
    values = columns.T
    return images_of(values) if is_images(values) else tensor_of(values, str(path))


def _fill(values: np.ndarray, file: BufferedReader, path: Path) -> None:
    """Read as many bytes as the array has."""
    if file.readinto(values.reshape(-1).view(np.uint8).data) != values.nbytes:
        raise GdwsError(f"{path} ends early: expected it to stay as it was when it was opened")


def check_type(kind: np.dtype, what: str) -> None:
    """Refuse types that no network takes."""
    if kind.kind not in "biuf" or kind == np.uint64 or kind.itemsize > 8:
        raise GdwsError(f"{what} holds {kind}: expected floats, integers of up to int64, or bools")


def kept_type(kind: np.dtype) -> np.dtype:
    """What values of a type become that are no pixels."""
    return np.dtype({"f": np.float32, "b": np.bool_}.get(kind.kind, np.int64))


def is_images(array: np.ndarray | Header) -> bool:
    """Bytes of four dimensions are pixels."""
    return array.dtype == np.uint8 and len(array.shape) == 4


def images_of(array: np.ndarray) -> Tensor:
    """uint8 (N, C, H, W) of bytes (N, H, W, C) with one, three or four channels, (N, C, H, W), or (N, H, W)."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[-1] in COLORS:
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(array.copy(order="C"))


def tensor_of(array: np.ndarray, what: str) -> Tensor:
    """Images as uint8 (N, C, H, W); other floats as float32, other integers as int64, bools as they are."""
    check_type(array.dtype, what)
    if is_images(array):
        return images_of(array)
    with np.errstate(over="ignore"):  # an infinity is told where inputs are checked
        return torch.from_numpy(np.ascontiguousarray(array, kept_type(array.dtype)).reshape(array.shape))
