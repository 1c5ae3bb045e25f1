"""Pictures of several sizes, and large ones: cut into parts of one size, so that memory is bounded.

Convolutions see a few pixels at a time. Of a network that takes pictures of any size, statistics of parts are those of the
whole but for the margins.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, placement
from gdws.core.inputs import Inputs, call_model, concatenate, floats_in, map_tensors, place, tensors_of

SIDE, STEP = 128, 32
"""Pictures of more than SIDE x SIDE pixels are cut into tiles, of sides that are multiples of STEP; smaller ones where the
network enlarges."""
MOST_TILES = 512
"""Tiles that are taken, at equal distances among all."""

Size = tuple[int, int]


def cut_to_one_size(parts: Sequence[Inputs]) -> list[Inputs]:
    """Batches of pictures of several sizes as batches of the smallest height and width: as many parts of each as it has."""
    sizes = [_size_of(part) for part in parts]
    known = [size for size in sizes if size is not None]
    if len(set(sizes)) < 2:
        return list(parts)
    if len(known) < len(sizes):
        raise GdwsError(f"the batches have pictures of {len(known)} of {len(sizes)} batches: expected all of one kind")
    smallest = min(height for height, _ in known), min(width for _, width in known)
    return [cut(part, smallest) for part in parts]


def cut_tiles(model: nn.Module, samples: Inputs) -> Inputs:
    """Large pictures as tiles, where the network gives to a part what it gives to that part of the whole; else as they are."""
    size = _size_of(samples)
    if size is None or size[0] * size[1] <= SIDE * SIDE:
        return samples
    device, dtype = placement(model)

    def output_sizes(inputs: Inputs) -> list[tuple[int, ...]]:
        with evaluating(model), torch.no_grad():
            outputs = floats_in(call_model(model, place(inputs, device, dtype)))
        return [tuple(value.shape[2:]) for value in outputs if value.ndim == 4]

    corner = cut(samples[:1], (min(size[0], SIDE), min(size[1], SIDE)))[:1]
    try:
        part, given = output_sizes(corner), _size_of(corner)
    except GdwsError:  # a network for pictures of one size
        return samples
    assert given is not None
    whole = output_sizes(samples[:1])
    expected = [tuple(round(n * own / all_) for n, own, all_ in zip(shape, given, size, strict=True)) for shape in whole]
    if not whole or part != expected:
        return samples
    growth = max(1.0, max(shape[0] * shape[1] for shape in part) / (given[0] * given[1]))
    side = max(STEP, int(SIDE / growth**0.5) // STEP * STEP)
    tiles = cut(samples, (min(side, size[0]), min(side, size[1])))
    step = max(1, len(tiles) // MOST_TILES)
    return map_tensors(tiles, lambda value: value[::step][:MOST_TILES])


def cut(samples: Inputs, size: Size) -> Inputs:
    """Every picture as the parts of this size that it has side by side, around its middle. What is no picture of the same size
    as the first, such as a noise level, goes with each part."""
    whole = _size_of(samples)
    if whole is None or whole == size:
        return samples
    counts = [all_ // own for all_, own in zip(whole, size, strict=True)]
    begins = [(all_ - count * own) // 2 for all_, count, own in zip(whole, counts, size, strict=True)]
    corners = [
        (begins[0] + row * size[0], begins[1] + column * size[1]) for row in range(counts[0]) for column in range(counts[1])
    ]

    def part(value: Tensor, corner: Size) -> Tensor:
        if value.ndim != 4 or tuple(value.shape[2:]) != whole:
            return value
        return value[:, :, corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1]]

    return concatenate([map_tensors(samples, partial(part, corner=corner)) for corner in corners])


def _size_of(samples: Inputs) -> Size | None:
    """The height and width of the first picture; None if there is none."""
    picture = next((value for value in tensors_of(samples) if value.ndim == 4), None)
    return None if picture is None else (picture.shape[2], picture.shape[3])
