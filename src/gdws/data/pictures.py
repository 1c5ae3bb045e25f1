"""Pictures without labels: all in a folder, whole, cut from the middle or cut into squares. They are decoded when read.

images:DIR,patches=96,scale=0.5,channels=1: options come after the last slash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.progress import track
from gdws.core.reading.limits import BYTES_A_PIXEL, check_bytes
from gdws.data.dataset import MOST_VALUES, balanced_order
from gdws.data.picture_files import SUFFIXES, decoded, files_below, size_of

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
OPTIONS = re.compile(r"((?:,[a-z]+=[^,/]*)*)$")
BYTES_A_PIECE = 500
"""Of the list of pieces, while it is put in order."""


@dataclass(frozen=True)
class Cut:
    """What is made of a picture.

    crop      side of a square from the middle, in pixels; the whole picture by default.
    patches   side of squares in its place: as many as fit side by side.
    scale     factor that the picture is resized by before, bicubic.
    channels  1 for gray, 3 for RGB, 4 for RGB and opacity.
    """

    crop: int | None = None
    patches: int | None = None
    scale: float = 1.0
    channels: int = 3

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height after resizing."""
        width, height = (max(1, round(side * self.scale)) for side in size)
        return width, height

    def count(self, size: tuple[int, int]) -> int:
        """Pieces of a picture of this size, after scaling."""
        side = self.patches or self.crop
        if side is None:
            return 1
        fitting = (size[0] // side) * (size[1] // side)
        return fitting if self.patches else min(fitting, 1)

    def boxes(self, size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
        """(left, top, right, bottom) of each piece; what is left over lies around them."""
        side = self.patches or self.crop
        wide, high = (side, side) if side else size
        columns, rows = (size[0] // wide, size[1] // high) if self.patches else (1, 1)
        left, top = (size[0] - columns * wide) // 2, (size[1] - rows * high) // 2
        for y in range(top, top + rows * high, high):
            for x in range(left, left + columns * wide, wide):
                yield x, y, x + wide, y + high


class Piece(NamedTuple):
    """A part of a picture: its file, the size of the whole after scaling, and (left, top, right, bottom) of the part."""

    path: Path
    whole: tuple[int, int]
    box: tuple[int, int, int, int]

    @property
    def size(self) -> tuple[int, int]:
        left, top, right, bottom = self.box
        return right - left, bottom - top


@dataclass(frozen=True)
class Pictures:
    """Pictures on disk, or pieces of them: gdws.data.dataset.Stored."""

    pieces: tuple[Piece, ...]
    cut: Cut

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, chosen: slice | Tensor) -> Pictures:
        indices = range(len(self))[chosen] if isinstance(chosen, slice) else chosen.tolist()
        return replace(self, pieces=tuple(self.pieces[index] for index in indices))

    def batches(self, size: int) -> Iterator[slice]:
        """Those of one size that follow each other, as long as a batch of them is not too large."""
        start = 0
        for (width, height), alike in groupby(self.pieces, lambda piece: piece.size):
            end = start + sum(1 for _ in alike)
            step = max(1, min(size, MOST_VALUES // (self.cut.channels * width * height)))
            for first in range(start, end, step):
                yield slice(first, min(first + step, end))
            start = end

    def read(self) -> Tensor:
        """uint8 (N, C, H, W). Every file is decoded once, in threads: Pillow lets go of the interpreter while it decodes."""
        sizes = list(dict.fromkeys(piece.size for piece in self.pieces))
        if len(sizes) > 1:
            (width, height), (other, high) = sizes[:2]
            raise GdwsError(
                f"the pictures have {width} x {height} and {other} x {high} pixels: expected one size to have them all at once "
                "(the options crop and patches cut them; iterating gives them as they are)"
            )
        of_file = dict[Path, list[int]]()
        for index, piece in enumerate(self.pieces):
            of_file.setdefault(piece.path, []).append(index)
        width, height = sizes[0]
        pixels = np.empty((len(self), height, width, self.cut.channels), np.uint8)

        def fill(indices: list[int]) -> None:
            self._fill(pixels, indices)

        with ThreadPoolExecutor() as threads:
            list(threads.map(fill, of_file.values()))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()

    def _fill(self, pixels: np.ndarray, indices: list[int]) -> None:
        """The pieces of one picture."""
        first = self.pieces[indices[0]]
        with decoded(first.path, MODES[self.cut.channels]) as picture:
            if self.cut.scaled(picture.size) != first.whole:
                raise ValueError("it has another size than before")
            resized = picture if self.cut.scale == 1 else picture.resize(first.whole, Image.Resampling.BICUBIC)
            for index in indices:
                part = np.asarray(resized.crop(self.pieces[index].box))
                pixels[index] = part.reshape(pixels.shape[1:])


def read(location: str, split: str) -> Pictures:
    """The pictures of a folder, or their pieces, in a fixed mixed order: every start of it has all pictures alike."""
    options = OPTIONS.search(location)
    assert options is not None
    given = location[: options.start()]
    cut = _cut(options[1])
    folder = Path(given)
    if not given or not folder.is_dir():
        raise GdwsError(f"there is no folder {given!r}: expected one with pictures, and options after it such as ,patches=96")
    folder = _of_split(folder, split)
    paths = files_below(folder)
    if not paths:
        raise GdwsError(f"{folder} holds no pictures: expected files with names that end in {', '.join(SUFFIXES)}")
    sizes = [_checked_size(path, cut) for path in track(paths, "image sizes")]
    count = sum(map(cut.count, sizes))
    if count == 0:
        largest = max(sizes, key=min)
        raise GdwsError(
            f"the pictures of {folder} have up to {largest[0]} x {largest[1]} pixels: expected at least one with "
            f"{cut.patches} x {cut.patches}"
        )
    check_bytes(f"the list of the {count:,} pieces of {folder}", BYTES_A_PIECE * count)
    pieces, pictures = list[Piece](), list[int]()
    for index, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        found = [Piece(path, size, box) for box in cut.boxes(size)] if cut.count(size) else []
        pieces += found
        pictures += [index] * len(found)
    return Pictures(tuple(pieces[index] for index in balanced_order(pictures)), cut)


def _checked_size(path: Path, cut: Cut) -> tuple[int, int]:
    """Width and height after scaling, which must not take too much memory nor be too small for a crop."""
    width, height = size = cut.scaled(size_of(path))
    if cut.scale != 1:
        check_bytes(f"{path}, scaled by {cut.scale:g},", BYTES_A_PIXEL * width * height)
    if cut.crop and min(size) < cut.crop:
        raise GdwsError(f"{path} has {width} x {height} pixels: expected at least {cut.crop} x {cut.crop} to crop it")
    return size


def _of_split(folder: Path, split: str) -> Path:
    """The folder itself, or one inside of it where it has folders for training and for testing."""
    train, test, val = (folder / part for part in ("train", "test", "val"))
    if not train.is_dir() or not (test.is_dir() or val.is_dir()):
        return folder
    return train if split == "train" else test if test.is_dir() else val


def _cut(options: str) -> Cut:
    """,crop=96,scale=0.5 and so on."""
    given = dict[str, str]()
    for option in filter(None, options.split(",")):
        name, _, value = option.partition("=")
        if name not in Cut.__dataclass_fields__ or name in given:
            known = ", ".join(Cut.__dataclass_fields__)
            raise GdwsError(
                f"the option {option!r} is unknown or given twice: expected each of {known} at most once (a folder of such a "
                "name is written with a slash after it)"
            )
        given[name] = value
    if "crop" in given and "patches" in given:
        raise GdwsError(f"crop={given['crop']} and patches={given['patches']} were given: expected one of them")
    return Cut(
        crop=_side("crop", given.get("crop")),
        patches=_side("patches", given.get("patches")),
        scale=_scale(given.get("scale", "1")),
        channels=_channels(given.get("channels", "3")),
    )


def _side(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) == 0:
        raise GdwsError(f"{name}={text} was given: expected the side of a square in pixels, such as {name}=96")
    return int(text)


def _scale(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < scale < 2**16:
        raise GdwsError(f"scale={text} was given: expected a factor above 0, such as scale=0.5")
    return scale


def _channels(text: str) -> int:
    if text not in map(str, MODES):
        raise GdwsError(f"channels={text} was given: expected 1 (gray), 3 (RGB) or 4 (RGB and opacity)")
    return int(text)
