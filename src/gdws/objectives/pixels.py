"""A class for each pixel: logits (B, classes, H, W), as segmentation networks give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.objectives.base import Objective, divergence
from gdws.objectives.classes import draw_class
from gdws.objectives.softening import temperature_of

LOOKED_AT = 4096
"""Pixels of each batch whose entropy tells the temperature."""


@dataclass(frozen=True)
class Pixels(Objective):
    """Keep the class that each pixel is given: the first output is logits (B, classes, H, W).

    The metric is the divergence of the class probabilities, as of gdws.objectives.Classes, averaged over the pixels.

    temperature  of the probabilities in the metric; found on the calibration data.

    The distance is the share of the pixels that get another class.

    >>> import torch
    >>> before, after = torch.rand(4, 2, 8, 8), torch.rand(4, 2, 8, 8)
    >>> bool((Pixels().distances(before, after) <= 1).all())
    True
    """

    name: ClassVar[str] = "pixels"
    unit: ClassVar[str] = "of the pixels differ"
    temperature: float = 1.0

    def outputs(self, output: Any) -> list[Tensor]:
        return super().outputs(output)[:1]

    def check(self, output: Any, samples: int) -> None:
        super().check(output, samples)
        (logits,) = self.outputs(output)
        if logits.ndim != 4 or logits.shape[1] < 2:
            raise GdwsError(
                f"the model returned {tuple(logits.shape)}: expected logits (B, classes, H, W) of at least two classes "
                "for the objective 'pixels'"
            )

    def settled(self, outputs: Sequence[list[Tensor]]) -> Self:
        rows = [_rows(logits) for (logits,) in outputs]
        return replace(self, temperature=temperature_of(torch.cat([part[:: -(-len(part) // LOOKED_AT)] for part in rows])))

    def tensors(self) -> dict[str, Tensor]:
        return {"temperature": torch.tensor(self.temperature, dtype=torch.float64)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        return replace(self, temperature=float(tensors["temperature"]))

    def cotangents(self, outputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        # (p - onehot(k)) / sqrt(HW) at each pixel, with a class k drawn there: pixels are independent, so squares add up.
        (logits,) = outputs
        batch, classes, height, width = logits.shape
        drawn = draw_class(_rows(logits), self.temperature, generator) / (height * width) ** 0.5
        return [drawn.view(batch, height, width, classes).permute(0, 3, 1, 2)]

    def loss(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        rows = [logits.permute(0, 2, 3, 1).flatten(0, 2) for logits in (before[0], after[0])]
        return divergence(rows[0], rows[1], self.temperature)

    def distances(self, before: Any, after: Any) -> Tensor:
        (first,), (second,) = self.outputs(before), self.outputs(after)
        return (first.argmax(1) != second.argmax(1)).double().mean((1, 2)).cpu()


def _rows(logits: Tensor) -> Tensor:
    """(B, classes, H, W) as (BHW, classes)."""
    return logits.detach().permute(0, 2, 3, 1).flatten(0, 2)
