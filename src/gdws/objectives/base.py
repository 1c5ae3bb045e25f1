"""What an objective is: what a compressed network must keep of the original's outputs.

It says two things. The first is a metric on small changes dy of the outputs, given by random cotangents c:

    loss = 1/2 E (c . dy)^2,

the expectation over c and over the samples. Sent back through the network, the same cotangents tell what a change inside of it
does (gdws.calibration.hooks). The second is a distance between the outputs of two networks, for people.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.core.errors import GdwsError
from gdws.core.inputs import Inputs, call_model, floats_in


class Objective(ABC):
    """What a compressed network must keep. Subclass it, or take gdws.objectives.Own, for one of your own.

    >>> import torch
    >>> from gdws.objectives import Values
    >>> before = torch.rand(4, 3, 8, 8)
    >>> Values().distances(before, before).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    name: ClassVar[str]
    """What plans, files and tables call it."""
    unit: ClassVar[str]
    """What the distances are called, when their mean is shown in percent."""
    attackable: ClassVar[bool] = False
    """Whether gdws.attacks know how to move such outputs."""

    def outputs(self, output: Any) -> list[Tensor]:
        """The tensors of an `output` that count, each with a row for every sample."""
        return floats_in(output)

    def check(self, output: Any, samples: int) -> None:
        """Refuse an `output` for so many `samples` that the objective does not fit, with a sentence."""
        found = self.outputs(output)
        if not found:
            raise GdwsError(f"the model returned {_described(output)}: expected at least one floating-point tensor")
        for value in found:
            if value.ndim == 0 or len(value) != samples:
                raise GdwsError(
                    f"the model returned {tuple(value.shape)} for {samples} samples: expected a row for each, "
                    "whatever the batch (outputs that change their shape cannot be compared)"
                )
            if not bool(value.detach().isfinite().all()):
                raise GdwsError("the model returned NaN or infinite values: expected finite numbers (are its weights intact?)")

    def answers(self, model: nn.Module, inputs: Inputs) -> list[Tensor]:
        """The tensors of `model`(`inputs`) that count, checked."""
        output = call_model(model, inputs)
        self.check(output, len(inputs))
        return self.outputs(output)

    def settled(self, outputs: Sequence[list[Tensor]]) -> Self:
        """The objective with what it learns from the original's outputs on the calibration data.

        outputs  of each batch what `outputs` gives, on the CPU, in float32.
        """
        return self

    def tensors(self) -> dict[str, Tensor]:
        """What `settled` learned, by name."""
        return {}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """The objective with what the method of that name gave: `tensors` by name."""
        return self

    @abstractmethod
    def cotangents(self, outputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        """One random cotangent for each of the `outputs`, of its shape, drawn from `generator` on the CPU."""

    def loss(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        """What training minimizes so that `after` becomes `before`, both as `outputs` gives them: one number with a graph.

        By default the squared error, relative to the variance of each output in this batch.
        """
        return torch.stack([relative_error(b, a) for b, a in zip(before, after, strict=True)]).mean()

    @abstractmethod
    def distances(self, before: Any, after: Any) -> Tensor:
        """How far an output (`after`) is from the original's (`before`), for each sample: (B,) in float64, 0 for none."""


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"{output.dtype} {tuple(output.shape)}"
    return f"a {type(output).__name__} without any"


def random_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent signs of the shape, type and device of a tensor."""
    drawn = torch.randint(0, 2, like.shape, generator=generator, device=generator.device, dtype=torch.int8)
    return (drawn * 2 - 1).to(like.device, like.dtype)


def relative_error(wanted: Tensor, found: Tensor) -> Tensor:
    """Mean squared error as a share of the variance of what is wanted; one number."""
    target = wanted.detach().float()
    scale = target.var(correction=0).clamp_min(torch.finfo(torch.float32).tiny)
    return (found.float() - target).square().mean() / scale


def divergence(wanted: Tensor, found: Tensor, temperature: float) -> Tensor:
    """KL(softmax(wanted / T) || softmax(found / T)), the mean over rows (N, classes), in nats."""
    target = (wanted.detach().float() / temperature).log_softmax(1)
    return F.kl_div((found.float() / temperature).log_softmax(1), target, reduction="batchmean", log_target=True)
