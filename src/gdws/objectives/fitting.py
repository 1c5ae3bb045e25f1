"""Which objective fits a network, told by the shape of what it returns and of the targets that come with its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gdws.core.checks import INTEGERS
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, placement
from gdws.core.inputs import Inputs, call_model, place
from gdws.objectives.base import Objective
from gdws.objectives.classes import Classes
from gdws.objectives.pixels import Pixels
from gdws.objectives.values import Values

AUTO = "auto"
"""Look at what the network returns."""
OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (Classes, Pixels, Values)}
"""Every objective by its name."""


def find_objective(given: str | Objective, model: nn.Module, samples: Inputs, targets: Tensor | None) -> Objective:
    """The objective of a name, or for "auto" the one that the answer of a model to the first sample speaks for."""
    with evaluating(model), torch.no_grad():
        return choose_objective(given, call_model(model, place(samples[:1], *placement(model))), targets)


def choose_objective(given: str | Objective, output: Any, targets: Tensor | None) -> Objective:
    """Find the objective of a name, or for "auto" the one that the shapes speak for.

    given    an objective, its name, or "auto".
    output   what the network returned.
    targets  that came with its inputs, or None.

    Logits (B, classes) of at least two classes, with class numbers (B,) or without targets: a class for each sample.
    Logits (B, classes, H, W) with class numbers (B, H, W): a class for each pixel. Anything else: values.

    Returns an Objective. Raises GdwsError when the name is unknown.

    >>> import torch
    >>> choose_objective("auto", torch.rand(4, 10), None).name
    'classes'
    """
    if isinstance(given, Objective):
        return given
    if given != AUTO:
        if given not in OBJECTIVES:
            raise GdwsError(f"the objective is {given!r}: expected {AUTO}, {', '.join(OBJECTIVES)} or a gdws.objectives.Own")
        return OBJECTIVES[given]()
    numbers = targets is None or targets.dtype in INTEGERS
    if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] != 1 and numbers:
        return Classes()
    if isinstance(output, Tensor) and output.ndim == 4 and output.shape[1] > 1 and targets is not None and numbers:
        return Pixels() if targets.shape[1:] == output.shape[2:] else Values()
    return Values()
