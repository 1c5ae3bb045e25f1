"""Boxes of a detector: what must be kept of them, and do those of two detectors agree?

An output is (B, places, 6): the middle of a box relative to its place and the logarithms of its sizes, all in strides, and two
factors of its score. Places are those of foreign.captchas' squares, row by row, for one stride after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foreign import captchas
from gdws.objectives.base import Objective, random_signs

STRIDES = (8, 16, 32)
CONFIDENT, POSSIBLE, OVERLAP, AGREES = 0.5, 0.1, 0.45, 0.9
"""Scores of boxes that must be found again, and of those that may count as finding them; of two that overlap by more (IoU) the
better is kept; what the IoU of an original's box and the fast detector's must be over."""

Floats = NDArray[np.float32]
Run = Callable[[Tensor], Floats]
"""The output (places, 6) for one picture (1, 3, 416, 416)."""


class Boxes(Objective):
    """Keep boxes in proportion to their score, relative to their size, and scores. The squared error is

    sum over places of  score (dx^2 / w^2 + dy^2 / h^2 + dlog(w)^2 + dlog(h)^2) + dscore^2.
    """

    name: ClassVar[str] = "boxes"
    unit: ClassVar[str] = "squared error of a picture's boxes"

    def errors(self, before: Tensor, after: Tensor) -> Tensor:
        """What is squared, (B, places, 5): linear in small changes of the output."""
        first, second = (torch.cat([o[..., :4], o[..., 4:5] * o[..., 5:]], 2).float() for o in (before, after))
        score, sizes = first[..., 4:], first[..., 2:4].exp()
        weights = torch.cat([score.sqrt() / sizes, score.sqrt().expand_as(sizes), torch.ones_like(score)], 2)
        return weights.detach() * (second - first.detach())

    def cotangents(self, outputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        (output,) = outputs
        moving = output.detach().requires_grad_(True)
        with torch.enable_grad():
            errors = self.errors(output.detach(), moving)
            return list(torch.autograd.grad((errors * random_signs(errors, generator)).sum(), moving))

    def loss(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        return self.errors(before[0], after[0]).square().flatten(1).sum(1).mean()

    def distances(self, before: Any, after: Any) -> Tensor:
        return self.errors(before, after).double().square().flatten(1).sum(1).cpu()


def found(output: Floats) -> tuple[Floats, Floats]:
    """Corners (N, 4) in pixels and scores (N,) of the boxes in one output (places, 6), the best of those that overlap."""
    sides = [captchas.SIDE // stride for stride in STRIDES]
    grid = np.concatenate([np.stack(np.meshgrid(np.arange(n), np.arange(n)), -1).reshape(-1, 2) for n in sides])
    stride = np.repeat(STRIDES, [n * n for n in sides])[:, None]
    middle, half = (output[:, :2] + grid) * stride, np.exp(output[:, 2:4]) * stride / 2
    boxes, scores = np.concatenate([middle - half, middle + half], 1), output[:, 4] * output[:, 5]
    kept: list[int] = []
    for index in np.argsort(-scores):
        if scores[index] < POSSIBLE:
            break
        if not kept or overlaps(boxes[[index]], boxes[kept]).max() <= OVERLAP:
            kept.append(int(index))
    return boxes[kept], scores[kept]


def overlaps(first: Floats, second: Floats) -> Floats:
    """Intersection over union of boxes (N, 4) and (M, 4): (N, M)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clip(0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (first, second)]
    found: Floats = shared / (areas[0][:, None] + areas[1] - shared)
    return found


def agreement(runs: Sequence[Run], pictures: Tensor) -> dict[str, float]:
    """How the boxes of the original and a fast detector agree: per cent of the original's confident ones that the other has,
    and of the other's that the original has, with the other threshold for a match."""
    counts, matched = [0, 0], [0, 0]
    ious: list[float] = []
    for picture in pictures.split(1):
        sides = [found(run(picture)) for run in runs]
        for index, (boxes, scores) in enumerate(sides):
            others = sides[1 - index][0]
            wanted = boxes[scores >= CONFIDENT]
            best = overlaps(wanted, others).max(1) if len(others) and len(wanted) else np.zeros(len(wanted))
            counts[index] += len(wanted)
            matched[index] += int((best > AGREES).sum())
            if index == 0:
                ious += best.tolist()
    return {
        "confident": counts[0],
        "found, %": 100 * matched[0] / counts[0],
        "median IoU": float(np.median(ious)),
        "confident of the other": counts[1],
        "of these in the original, %": 100 * matched[1] / counts[1],
    }
