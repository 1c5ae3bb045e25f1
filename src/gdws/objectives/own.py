"""An objective of two functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.inputs import floats_in
from gdws.objectives.base import Objective


@dataclass(frozen=True)
class Own(Objective):
    """Keep what two functions say.

    cotangent  of (output, generator): a random cotangent c of the output's shape, so that 1/2 E (c . dy)^2 is what a small
               change dy of the output costs. Of several output tensors it gets a tuple, and gives one.
    distance   of (output, other output): how far they are apart for each sample, (B,), 0 for none.

    >>> import gdws, torch
    >>> def sign_noise(output, generator):
    ...     return torch.randint(0, 2, output.shape, generator=generator) * 2.0 - 1
    >>> def largest_error(output, other):
    ...     return (output - other).abs().flatten(1).amax(1)
    >>> gdws.objectives.Own(sign_noise, largest_error).name
    'own'
    """

    name: ClassVar[str] = "own"
    unit: ClassVar[str] = "of its own distance"
    cotangent: Callable[[Any, torch.Generator], Any]
    distance: Callable[[Any, Any], Tensor]

    def cotangents(self, outputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        drawn = floats_in(self.cotangent(outputs[0] if len(outputs) == 1 else tuple(outputs), generator))
        shapes = [[tuple(value.shape) for value in values] for values in (outputs, drawn)]
        if shapes[0] != shapes[1]:
            raise GdwsError(f"the objective's cotangents have the shapes {shapes[1]}: expected {shapes[0]}, as the outputs")
        return [value.to(output) for value, output in zip(drawn, outputs, strict=True)]

    def distances(self, before: Any, after: Any) -> Tensor:
        found = self.distance(before, after)
        samples = len(floats_in(before)[0])
        if not isinstance(found, Tensor) or found.shape != (samples,):
            given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise GdwsError(f"the objective's distance is {given}: expected a number for each of {samples} samples")
        return found.detach().double().cpu()
