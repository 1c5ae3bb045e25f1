"""A class for each sample: logits (B, classes), of which the predicted class counts.

The metric is the divergence of the class probabilities p, temperature-scaled (gdws.objectives.softening): with a class k
drawn from p, the cotangent p - onehot(k) has E (c . dz)^2 = 2 KL(p || p + dp) to second order (the Fisher information).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gdws.core.checks import check_logits
from gdws.objectives.base import Objective, divergence
from gdws.objectives.softening import temperature_of


@dataclass(frozen=True)
class Classes(Objective):
    """Keep the class that each sample is given: outputs are logits (B, classes).

    temperature  of the probabilities in the metric; found on the calibration data.

    The distance is 1 where the predicted class differs, else 0.

    >>> import torch
    >>> Classes().distances(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([[1.0, 3.0], [1.0, 2.0]])).tolist()
    [0.0, 1.0]
    """

    name: ClassVar[str] = "classes"
    unit: ClassVar[str] = "of the predictions differ"
    attackable: ClassVar[bool] = True
    temperature: float = 1.0

    def outputs(self, output: Any) -> list[Tensor]:
        return [output] if isinstance(output, Tensor) else []

    def check(self, output: Any, samples: int) -> None:
        check_logits(output, samples)

    def settled(self, outputs: Sequence[list[Tensor]]) -> Self:
        return replace(self, temperature=temperature_of(torch.cat([logits for (logits,) in outputs])))

    def tensors(self) -> dict[str, Tensor]:
        return {"temperature": torch.tensor(self.temperature, dtype=torch.float64)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        return replace(self, temperature=float(tensors["temperature"]))

    def cotangents(self, outputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        # The factor 1 / temperature of the derivative is left out: it is the same for all layers.
        (logits,) = outputs
        return [draw_class(logits, self.temperature, generator)]

    def loss(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        return divergence(before[0], after[0], self.temperature)

    def distances(self, before: Tensor, after: Tensor) -> Tensor:
        return (before.argmax(1) != after.argmax(1)).double().cpu()


def draw_class(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """p - onehot(k) for k drawn from p = softmax(logits / temperature); logits (N, classes)."""
    probabilities = (logits.detach().float() / temperature).softmax(1)
    drawn = torch.multinomial(probabilities.to(generator.device), 1, generator=generator).to(logits.device)
    ones = torch.ones_like(drawn, dtype=probabilities.dtype)
    return probabilities.scatter_add(1, drawn, -ones).to(logits.dtype)
