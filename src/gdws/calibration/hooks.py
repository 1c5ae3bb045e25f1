"""Watch a network's convolutions through one forward pass and backward passes of its decision.

The decision of a sample with logits z and predicted class n moves when some delta_j = z_j - z_n changes sign. Equation (8) of
the paper sums squared derivatives of delta_j over j, each divided by sqrt(2) delta_j. With independent random signs eps_j

    E_eps || sum_j eps_j D_j / (sqrt(2) delta_j) ||^2 = sum_j ||D_j||^2 / (2 delta_j^2),

so one backward pass with the cotangent of sum_j eps_j delta_j / (sqrt(2) delta_j) is an unbiased estimate of the whole sum.

The calibrated method asks how far the network's outputs move instead, in the metric of its objective (gdws.objectives). For
classes that is the Fisher information. Unlike 1 / delta^2 it has no heavy tail: with attacked images, a few ties of logits
would otherwise outweigh all other samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError
from gdws.core.inputs import Inputs, tensors_of
from gdws.core.sites import input_of

LARGEST = 1e16
"""Of what is squared and summed up in float32; and one over it the smallest."""
TIE = 1e-4
"""delta_j below this share of the spread of a sample's logits counts as that much: a tie would divide by zero."""


@dataclass
class Use:
    """One call of a convolution: its input and, after a backward pass, the gradient of its output."""

    input: Tensor
    gradient: Tensor | None = None


@contextmanager
def record_uses(convolutions: Mapping[str, nn.Conv2d]) -> Iterator[dict[str, list[Use]]]:
    """Uses of each convolution in the forward passes inside; each backward pass renews their gradients.

    The gradient is taken by a hook on the output as it leaves the convolution, so an in-place ReLU after it does no harm.
    """
    uses: dict[str, list[Use]] = {name: [] for name in convolutions}

    def watch(name: str, conv: nn.Conv2d) -> torch.utils.hooks.RemovableHandle:
        def note(_: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
            dtype = conv.weight.dtype  # of which, under autocast, neither may be
            use = Use(input_of(inputs, named).detach().to(dtype))
            uses[name].append(use)
            if output.requires_grad:
                output.register_hook(lambda gradient: setattr(use, "gradient", gradient.detach().to(dtype)))

        return conv.register_forward_hook(note, prepend=True, with_kwargs=True)  # before others, which may change the output

    handles = [watch(name, conv) for name, conv in convolutions.items()]
    try:
        yield uses
    finally:
        for handle in handles:
            handle.remove()


def check_scales(name: str, uses: Iterable[Use]) -> None:
    """Refuse a convolution of which statistics would vanish or overflow without a word: they are sums of squares in float32."""
    seen = [(float(use.input.abs().max()), float(use.gradient.abs().max())) for use in uses if use.gradient is not None]
    x, g = (max(sizes, default=0.0) for sizes in zip(*seen, strict=True)) if seen else (0.0, 0.0)
    if x and g and not all(1 / LARGEST <= size <= LARGEST for size in (x, g, x * g)):
        raise GdwsError(
            f"{name} has inputs up to {x:.0e} and gradients up to {g:.0e}: expected both and their product from "
            f"{1 / LARGEST:.0e} to {LARGEST:.0e}, whose squares float32 can hold"
        )


def backpropagate(outputs: Sequence[Tensor], inputs: Inputs, cotangents: Iterable[Sequence[Tensor]]) -> Iterator[None]:
    """One backward pass for each set of cotangents, from the outputs to the inputs; no gradient is stored in any parameter."""
    wanted = [value for value in tensors_of(inputs) if value.requires_grad]
    for drawn in cotangents:
        moving = [(value, c) for value, c in zip(outputs, drawn, strict=True) if value.requires_grad]
        values, own = zip(*moving, strict=True)
        torch.autograd.grad(values, wanted, own, retain_graph=True, allow_unused=True)
        yield


def margins(logits: Tensor) -> tuple[Tensor, Tensor]:
    """1 / (sqrt(2) delta_j) for each class, 0 at the predicted one; and the predicted class (B, 1)."""
    z = logits.detach()
    predicted = z.argmax(1, keepdim=True)
    delta = z - z.gather(1, predicted)
    floor = TIE * (z.amax(1, keepdim=True) - z.amin(1, keepdim=True)) + torch.finfo(z.dtype).tiny
    return (2**-0.5 / delta.abs().maximum(floor)).scatter(1, predicted, 0), predicted


def each_class(logits: Tensor) -> Iterator[Tensor]:
    """The cotangents of delta_j / (sqrt(2) delta_j) for every class j: equation (8) term by term."""
    weights, predicted = margins(logits)
    for index in range(logits.shape[1]):
        column = weights[:, index : index + 1]
        yield (
            torch.zeros_like(weights)
            .index_add(1, torch.tensor([index], device=weights.device), column)
            .scatter_add(1, predicted, -column)
        )


def random_signs(logits: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """The one cotangent whose squared derivatives estimate equation (8)."""
    weights, predicted = margins(logits)
    signs = torch.randint(0, 2, weights.shape, generator=generator, device=generator.device) * 2 - 1
    signed = weights * signs.to(weights)
    yield signed.scatter_add(1, predicted, -signed.sum(1, keepdim=True))
