"""Samples, mostly images with labels: batches, parts and splits of them, the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from gdws.core.checks import check_seed, check_values, classes, is_count, unpack_batch
from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments, Inputs, map_tensors, tensors_of

MOST_VALUES = 3 * 2**23
"""In a batch of what lies in files: eight images of 1,024 x 1,024 pixels. One sample may have more."""


class Stored(Protocol):
    """Samples that are not in memory: they can be counted, chosen from, and read."""

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: slice | Tensor) -> Self: ...

    def batches(self, size: int) -> Iterator[slice]:
        """Which share a batch: at most `size` of one shape, one after the other."""
        ...

    def read(self) -> Tensor:
        """All of them: images, uint8 (N, C, H, W), or values of another type (N, ...)."""
        ...


class Dataset:
    """Images with a label each, or without labels; or other samples that a network takes.

    Iterating gives batches of (float images (B, C, H, W) in [0, 1], int64 labels (B,)), or of images alone. Samples of any
    other type than uint8 come out as they are.

    name        what messages call it.
    images      uint8 (N, C, H, W); or values of another type (N, ...); or several arguments of a network; or samples in files,
                which are read batch by batch every time.
    labels      integers (N,), the classes, which count from 0.
    batch_size  samples in a batch; the last one may have fewer, and so may those of samples in files that have several shapes
                or are large.

    len() counts samples. Raises GdwsError when there are none, or not one label for each.

    >>> import torch
    >>> from gdws import data
    >>> own = data.Dataset("own", torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5), batch_size=2)
    >>> [tuple(images.shape) for images, labels in own]
    [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]
    """

    def __init__(self, name: str, images: Inputs | Stored, labels: Tensor | None, batch_size: int = 100) -> None:
        if (isinstance(images, Tensor) and images.ndim == 0) or len(images) == 0:
            raise GdwsError(f"{name} holds no images: expected at least one")
        for value in tensors_of(images) if isinstance(images, Tensor | Arguments) else ():
            check_values(value, f"the images of {name} are", "numbers (N, ...)")
        if isinstance(images, Tensor) and images.dtype == torch.uint8 and images.ndim != 4:
            raise GdwsError(f"the images of {name} are {images.dtype} {tuple(images.shape)}: expected uint8 (N, C, H, W)")
        if labels is not None and labels.ndim > 0 and len(images) != len(labels):
            raise GdwsError(f"{name} has {len(images)} images and {len(labels)} labels: expected a label for each image")
        labels = None if labels is None else classes(labels, len(images))
        self.name = name
        self._labels = labels
        self.batch_size = batch_size
        self._source = images

    @property
    def images(self) -> Tensor:
        """All images, uint8 (N, C, H, W), or samples of another type.

        Those in files are all read now: `take` a part of a large data set first. Raises GdwsError when they are of several
        sizes, or when a sample is several arguments.
        """
        found = self._read()
        if isinstance(found, Arguments):
            raise GdwsError(f"{self.name} holds the arguments {', '.join(found.names)}: expected images, or to be iterated")
        return found

    def _read(self) -> Inputs:
        return self._source if isinstance(self._source, Tensor | Arguments) else self._source.read()

    @property
    def labels(self) -> Tensor:
        """Of all images."""
        if self._labels is None:
            raise GdwsError(f"{self.name} has no labels: expected a label for each image")
        return self._labels

    @classmethod
    def from_batches(cls, name: str, batches: Iterable[Any], batch_size: int = 100) -> Dataset:
        """Make a data set of batches, such as a DataLoader gives. All images are then in memory, as bytes.

        name        what messages call it.
        batches     pairs of (float images (B, 3, H, W) in [0, 1], integer labels (B,)).
        batch_size  images in a batch of the data set.

        Raises GdwsError when there are no batches, or one has no labels or images outside [0, 1].
        """
        pairs = [unpack_batch(batch) for batch in batches]
        if not pairs or any(labels is None for _, labels in pairs):
            raise GdwsError(f"{name} has batches without labels, or none at all: expected (images, labels)")
        shapes = list(dict.fromkeys(tuple(images.shape[1:]) for images, _ in pairs))
        if len(shapes) > 1:
            raise GdwsError(f"{name} has images {shapes[0]} and {shapes[1]}: expected one size")
        images = torch.cat([(images.detach().cpu() * 255).round().to(torch.uint8) for images, _ in pairs])
        return cls(name, images, torch.cat([labels.cpu().long() for _, labels in pairs if labels is not None]), batch_size)

    def __len__(self) -> int:
        """Number of images."""
        return len(self._source)

    @property
    def number_of_batches(self) -> int:
        """How many batches one pass over the images gives."""
        return sum(1 for _ in self._batches())

    def __iter__(self) -> Iterator[Any]:
        for rows in self._batches():
            part = self.select(rows)
            inputs = map_tensors(part._read(), _as_floats)
            yield inputs if part._labels is None else (inputs, part._labels)

    def _batches(self) -> Iterator[slice]:
        if isinstance(self._source, Tensor | Arguments):
            return even_batches(len(self), self.batch_size)
        return self._source.batches(self.batch_size)

    def take(self, count: int | None, batch_size: int | None = None) -> Dataset:
        """The first `count` images, or all of them with None.

        count       images to take; there may be fewer.
        batch_size  images in a batch; as before by default.

        Returns another Dataset. Raises GdwsError when a number is below 1.
        """
        if count is not None and not is_count(count, 1):
            raise GdwsError(f"{count} images of {self.name} were asked for: expected at least 1")
        if batch_size is not None and not is_count(batch_size, 1):
            raise GdwsError(f"batches of {batch_size} images were asked for: expected at least 1")
        part = self.select(slice(count))
        return Dataset(part.name, part._source, part._labels, batch_size or self.batch_size)

    def select(self, chosen: slice | Tensor) -> Dataset:
        """Some of the images, as another Dataset: `chosen` is a slice, or indices int64 (n,) whose order is kept."""
        labels = None if self._labels is None else self._labels[chosen]
        source = self._source
        part = source.map(lambda value: value[chosen]) if isinstance(source, Arguments) else source[chosen]
        return Dataset(self.name, part, labels, self.batch_size)

    def split(self, count: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Hold some images apart at random, as many of each class as there are enough of; any, without labels.

        count  images to hold apart.
        seed   of the draw, which is the same on every machine.

        Returns two Datasets, (rest, held), both in their old order. Raises GdwsError when count is below 1, or all images.
        """
        check_seed(seed)
        if not 1 <= count < len(self):
            raise GdwsError(
                f"{count} of the {len(self)} images of {self.name} were to be held apart: expected at least 1, not all"
            )
        order = balanced_order([0] * len(self) if self._labels is None else self._labels.tolist(), seed)
        held, rest = torch.tensor(sorted(order[:count])), torch.tensor(sorted(order[count:]))
        return self.select(rest), self.select(held)


def even_batches(count: int, size: int) -> Iterator[slice]:
    """So many samples in batches of one size; the last one may be smaller."""
    return (slice(start, start + size) for start in range(0, count, size))


def _as_floats(value: Tensor) -> Tensor:
    return value.float() / 255 if value.dtype == torch.uint8 else value


def balanced_order(labels: Sequence[int], seed: int = 0) -> list[int]:
    """Indices of all labels in random rounds, each with one of every class that is not used up: any start is balanced.

    From Random.random alone, which Python promises never to change: numpy and torch may shuffle otherwise tomorrow.
    """
    random = Random(seed)
    shuffled = sorted(range(len(labels)), key=lambda _: random.random())
    drawn, rounds = Counter[int](), dict[int, int]()
    for index in shuffled:
        rounds[index] = drawn[labels[index]]
        drawn[labels[index]] += 1
    return sorted(shuffled, key=rounds.__getitem__)
