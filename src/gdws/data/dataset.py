"""Images, mostly with labels: batches, parts and splits of them, the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from gdws.core.checks import unpack_batch
from gdws.errors import GdwsError


class Stored(Protocol):
    """Images that are not in memory: they can be counted, chosen from, and read as uint8 (N, 3, H, W)."""

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: slice | Tensor) -> Self: ...

    def read(self) -> Tensor: ...


class Dataset:
    """Images with a label each, int64 (N,), or without labels. Iterating gives batches of (float images in [0, 1], labels), or
    of images alone.

    Images are uint8 (N, 3, H, W), in memory or stored: those are read batch by batch, every time they are iterated.
    """

    def __init__(self, name: str, images: Tensor | Stored, labels: Tensor | None, batch_size: int = 100) -> None:
        if len(images) == 0:
            raise GdwsError(f"{name} holds no images: expected at least one")
        if labels is not None and len(images) != len(labels):
            raise GdwsError(f"{name} has {len(images)} images and {len(labels)} labels: expected a label for each image")
        self.name = name
        self._labels = labels
        self.batch_size = batch_size
        self._source = images

    @property
    def images(self) -> Tensor:
        """All images, uint8 (N, 3, H, W); stored ones are read now, so ask a large data set for a part of it first."""
        return self._source if isinstance(self._source, Tensor) else self._source.read()

    @property
    def labels(self) -> Tensor:
        """Of all images."""
        if self._labels is None:
            raise GdwsError(f"{self.name} has no labels: expected a label for each image")
        return self._labels

    @classmethod
    def from_batches(cls, name: str, batches: Iterable[Any], batch_size: int = 100) -> Dataset:
        """All images and labels of a DataLoader, or of any batches of (float images in [0, 1], labels), as bytes in memory."""
        pairs = [unpack_batch(batch) for batch in batches]
        if not pairs or any(labels is None for _, labels in pairs):
            raise GdwsError(f"{name} has batches without labels, or none at all: expected (images, labels)")
        images = torch.cat([(images.detach().cpu() * 255).round().to(torch.uint8) for images, _ in pairs])
        return cls(name, images, torch.cat([labels.cpu().long() for _, labels in pairs if labels is not None]), batch_size)

    def __len__(self) -> int:
        """Number of images."""
        return len(self._source)

    @property
    def number_of_batches(self) -> int:
        return -(-len(self) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), self.batch_size):
            part = self.select(slice(start, start + self.batch_size))
            images = part.images.float() / 255
            yield images if part._labels is None else (images, part._labels)

    def take(self, count: int | None, batch_size: int | None = None) -> Dataset:
        """The first `count` images (all with None), in batches of batch_size."""
        if count is not None and count < 1:
            raise GdwsError(f"{count} images of {self.name} were asked for: expected at least 1")
        if batch_size is not None and batch_size < 1:
            raise GdwsError(f"batches of {batch_size} images were asked for: expected at least 1")
        part = self.select(slice(count))
        return Dataset(part.name, part._source, part._labels, batch_size or self.batch_size)

    def select(self, chosen: slice | Tensor) -> Dataset:
        """The images in a slice or of these indices, int64 (n,), in that order."""
        labels = None if self._labels is None else self._labels[chosen]
        return Dataset(self.name, self._source[chosen], labels, self.batch_size)

    def split(self, count: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """(rest, held): `count` images drawn at random and held apart from the rest, both in their old order.

        The held ones are as many of each class as of any other, unless a class has too few.
        """
        if not 1 <= count < len(self):
            raise GdwsError(
                f"{count} of the {len(self)} images of {self.name} were to be held apart: expected at least 1, not all"
            )
        order = balanced_order(self.labels.tolist(), seed)
        held, rest = torch.tensor(sorted(order[:count])), torch.tensor(sorted(order[count:]))
        return self.select(rest), self.select(held)


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
