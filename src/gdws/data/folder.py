"""Image folders: DIR/CLASS/image.jpg, or DIR/train/CLASS/... beside DIR/val/CLASS/..., as ImageNet is kept.

Images are decoded when they are read: ImageNet does not fit into memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.progress import track
from gdws.core.reading.limits import BYTES_A_PIXEL, check_bytes
from gdws.data.dataset import balanced_order, even_batches
from gdws.data.picture_files import SUFFIXES, decoded, files_below, leads_back, size_of

SMALL = 64
"""Images of one size, with no side above this, come out as they are."""

SHORTER, CROP = 256, 224
"""All others: the shorter side is resized to the first, and a square of the second cut from the center."""


@dataclass(frozen=True)
class Files:
    """Images on disk: gdws.data.dataset.Stored. resized: to CROP x CROP; otherwise all have the same size already."""

    paths: tuple[Path, ...]
    resized: bool

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, chosen: slice | Tensor) -> Files:
        indices = range(len(self.paths))[chosen] if isinstance(chosen, slice) else chosen.tolist()
        return replace(self, paths=tuple(self.paths[index] for index in indices))

    def batches(self, size: int) -> Iterator[slice]:
        return even_batches(len(self), size)

    def read(self) -> Tensor:
        """uint8 (N, 3, H, W), decoded in threads: Pillow lets go of the interpreter while it decodes."""
        with ThreadPoolExecutor() as threads:
            pixels = list(threads.map(self._pixels, self.paths))
        return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()

    def _pixels(self, path: Path) -> np.ndarray:
        with decoded(path) as colors:
            return np.asarray(_center(colors, path) if self.resized else colors)


def read(folder: Path, split: str, needed: bool = True) -> tuple[Files, Tensor | None]:
    """Files and labels, int64 (N,), in a fixed mixed order: every start of it has all classes alike.

    Where no labels are needed and there are no folders of classes, the images in the folder itself, without labels.
    """
    if not needed and (images := _without_classes(folder, split)):
        mixed = tuple(images[index] for index in balanced_order([0] * len(images)))
        return Files(mixed, not _alike_and_small(mixed)), None
    root, classes = _split(folder, split)
    paths, labels = list[Path](), list[int]()
    for label, name in enumerate(classes):
        found = files_below(root / name) if (root / name).is_dir() else []
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise GdwsError(f"{root} holds no images: expected {root}/CLASS/NAME with NAME ending in {', '.join(SUFFIXES)}")
    order = balanced_order(labels)
    ordered = tuple(paths[index] for index in order)
    return Files(ordered, not _alike_and_small(ordered)), torch.tensor([labels[index] for index in order])


def _without_classes(folder: Path, split: str) -> list[Path]:
    """Images that lie in the folder itself, or in that of the split beside the other's; none where there are classes."""
    train, test, val = (folder / part for part in ("train", "test", "val"))
    if not any(part.is_dir() for part in (train, test, val)):
        return [] if _classes(folder) else files_below(folder)
    root = train if split == "train" else test if test.is_dir() else val
    return [] if _classes(root) else files_below(root)


def _split(folder: Path, split: str) -> tuple[Path, list[str]]:
    """The folder that holds the class folders of a split, and the classes by name."""
    if not folder.is_dir():
        raise GdwsError(f"there is no folder {folder}: expected {folder}/CLASS/IMAGE, or {folder}/train/CLASS/IMAGE and val")
    train, test, val = (folder / part for part in ("train", "test", "val"))
    if not any(map(_classes, (train, test, val))):
        if not (classes := _classes(folder)):
            raise GdwsError(f"{folder} has no folders inside: expected one for each class")
        return folder, classes
    # ImageNet's test images have no labels and so no class folders.
    root = train if split == "train" else test if _classes(test) else val
    if not (own := _classes(root)):
        raise GdwsError(f"{folder} has no class folders in {root.name}: expected {root}/CLASS/IMAGE for its {split} images")
    classes = _classes(train) or own  # a class has the same number in every split
    if unknown := sorted(set(own) - set(classes)):
        raise GdwsError(f"{root} has a class {unknown[0]!r} that {train} lacks: expected the same classes")
    return root, classes


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        inside = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return sorted(entry.name for entry in inside if not (entry.is_symlink() and leads_back(entry.path, folder)))


def _alike_and_small(paths: Sequence[Path]) -> bool:
    """Whether all images have one small size. Headers are read until one says no: for photographs, the first."""
    sizes = set[tuple[int, int]]()
    for path in track(paths, "image sizes"):
        sizes.add(size := size_of(path))
        if len(sizes) > 1 or max(size) > SMALL:
            return False
    return True


def _center(image: Image.Image, path: Path) -> Image.Image:
    """CROP x CROP out of the center, after resizing: the pixels of torchvision's usual evaluation."""
    width, height = image.size
    shorter = min(width, height)
    # The longer side is rounded down, and half a pixel to the even side, as there.
    width, height = SHORTER * width // shorter, SHORTER * height // shorter
    check_bytes(f"{path}, with {SHORTER} pixels on its shorter side,", BYTES_A_PIXEL * width * height)
    left, top = round((width - CROP) / 2), round((height - CROP) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + CROP, top + CROP))
