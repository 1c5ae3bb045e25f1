"""Outputs whose numbers count: pictures, densities, depths, boxes and scores, or several tensors at once.

The metric is the squared error, each channel of each output divided by its own variance on the calibration data. With
independent random signs e of the shape of an output, c = e / sqrt(variance * elements) has

    E (c . dy)^2 = mean of dy^2 / variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.objectives.base import Objective, random_signs

LEAST_VARIANCE = 1e-4
"""Of an output's largest: what hardly changes from sample to sample is not weighted without bound."""


@dataclass(frozen=True, eq=False)
class Values(Objective):
    """Keep the numbers of all floating-point outputs: mean squared error, relative to each channel's variance.

    variances  of each output, by channel (its second dimension); found on the calibration data. Without them errors count as
               they are.

    The distance is the mean of the squared errors relative to the variances, averaged over the outputs.

    >>> import torch
    >>> Values().distances(torch.zeros(2, 3, 4, 4), torch.full((2, 3, 4, 4), 2.0)).tolist()
    [4.0, 4.0]
    """

    name: ClassVar[str] = "values"
    unit: ClassVar[str] = "relative error"
    variances: tuple[Tensor, ...] = ()

    def settled(self, outputs: Sequence[list[Tensor]]) -> Self:
        return replace(self, variances=tuple(_variance(parts) for parts in zip(*outputs, strict=True)))

    def tensors(self) -> dict[str, Tensor]:
        return {f"variance{index}": value for index, value in enumerate(self.variances)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        return replace(self, variances=tuple(tensors[f"variance{index}"].cpu() for index in range(len(tensors))))

    def cotangents(self, outputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        weights = self._weights(outputs)
        return [
            random_signs(value, generator) * (weight / max(1, value[0].numel())).sqrt().to(value)
            for value, weight in zip(outputs, weights, strict=True)
        ]

    def loss(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        if not self.variances:
            return super().loss(before, after)
        parts = [
            ((a.float() - b.detach().float()).square() * weight.to(a)).mean()
            for b, a, weight in zip(before, after, self._weights(before), strict=True)
        ]
        return torch.stack(parts).mean()

    def distances(self, before: Any, after: Any) -> Tensor:
        first, second = self.outputs(before), self.outputs(after)
        shapes = [[tuple(value.shape) for value in values] for values in (first, second)]
        if shapes[0] != shapes[1]:
            raise GdwsError(f"the networks returned {shapes[0]} and {shapes[1]}: expected outputs of the same shapes")
        parts = [
            ((b.double() - a.double()).square() * weight.to(a.device))[..., None].flatten(1).mean(1).cpu()  # also of (B,)
            for a, b, weight in zip(first, second, self._weights(first), strict=True)
        ]
        return torch.stack(parts).mean(0)

    def _weights(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """One over the variances, to multiply each output with."""
        if not self.variances:
            return [torch.ones(1, dtype=torch.float64) for _ in outputs]
        if len(self.variances) != len(outputs):
            raise GdwsError(f"the model returned {len(outputs)} tensors: expected {len(self.variances)}, as when calibrated")
        return [
            (1 / variance).view(1, -1, *(1 for _ in value.shape[2:])) if value.ndim > 1 else 1 / variance
            for value, variance in zip(outputs, self.variances, strict=True)
        ]


def _variance(parts: Sequence[Tensor]) -> Tensor:
    """float64 by channel, over all samples and positions; of outputs (B,) one number. No output is weighted without bound."""
    channels = parts[0].shape[1] if parts[0].ndim > 1 else 1
    count, total, squares = 0, torch.zeros(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
    for part in parts:
        rows = part.detach().double().view(len(part), channels, -1)
        count += rows[:, 0].numel()
        total += rows.sum((0, 2))
        squares += rows.square().sum((0, 2))
    found = (squares / count - (total / count).square()).clamp_min(0)
    largest = float(found.max()) if len(found) else 0.0
    return found.clamp_min(LEAST_VARIANCE * largest) if largest > 0 else torch.ones_like(found)


def peak_signal_to_noise(before: Tensor, after: Tensor, peak: float | None = None) -> float:
    """10 log10(peak^2 / mean squared error) in dB; peak: the largest minus the smallest value of `before`, if None."""
    peak = float(before.max() - before.min()) if peak is None else peak
    error = float((before.double() - after.double()).square().mean())
    if error == 0:
        return float("inf")
    return float(10 * torch.log10(torch.tensor(peak**2 / error, dtype=torch.float64)))
