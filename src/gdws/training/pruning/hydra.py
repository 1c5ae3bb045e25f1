"""HYDRA (Sehwag et al. 2020): learn under attack which weights to keep, then train those.

In the first stage the network's weights stand still. Each has a score; the weights with the largest |score| of their layer are
kept, and the gradient passes to the scores as if the mask were the score itself (straight through):

    w' = w 1[|s| is among the largest],    dL/ds = dL/dw' w

The mask follows the scores after each step, outside of the passes, so that an attack's many passes do not sort anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gdws.core.execution import own_copy
from gdws.training.pruning.losses import Around
from gdws.training.pruning.masks import largest, parameter_name, prunable_layers
from gdws.training.pruning.method import Method, Stage, loss_of
from gdws.training.pruning.recipes import FINETUNE, SCORES
from gdws.training.recipes import Recipe
from gdws.training.tuning import NORMS


@dataclass(frozen=True, kw_only=True)
class Hydra(Method):
    """Keep the weights of each layer that a training under attack finds important (Sehwag et al. 2020).

    keep      the share of the weights of every convolution and linear layer that is kept.
    prune     how the scores of the weights are trained, beside BatchNorm.
    finetune  how what is left is trained.

    Raises GdwsError when keep is not between 0 and 1, or a recipe does not keep its last epoch.

    >>> from gdws import training
    >>> method = training.Hydra(keep=0.1)
    >>> method.prune.epochs, method.finetune.epochs
    (20, 20)
    """

    prune: Recipe = SCORES
    finetune: Recipe = FINETUNE["fast-hydra"]

    @property
    def groups(self) -> str:
        return "irregular"

    def choose(self, network: nn.Module, stage: Stage) -> tuple[nn.Module, dict[str, Tensor]]:
        layers = list(prunable_layers(network, self.groups, self.keep))
        scored = with_scores(network, layers, self.keep)
        trained = stage("prune", scored, self.prune, Scored(loss_of(self.prune), self.keep))
        return without_scores(trained, network, layers)


class StraightThrough(nn.Module):
    """As a parametrization of a weight: the weight itself under a mask. What is trained in its place are its scores."""

    def __init__(self, weight: Tensor, keep: float) -> None:
        super().__init__()
        self.weight: Tensor
        self.mask: Tensor
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("mask", largest(weight.detach().abs(), keep))

    def forward(self, scores: Tensor) -> Tensor:
        masked: Tensor = _Mask.apply(scores, self.weight, self.mask)  # type: ignore[no-untyped-call]
        return masked

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The first scores, of the size that new weights would have: sqrt(6 / fan in) w / max |w|."""
        fan_in = weight.numel() // len(weight)
        return math.sqrt(6 / fan_in) * weight / weight.abs().max()


class _Mask(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return weight * mask

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return gradients[0] * weight, None, None


@dataclass(frozen=True)
class Scored(Around):
    """Of networks whose masks are those of their scores."""

    keep: float

    def constrain(self, model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, parametrize.ParametrizationList) and isinstance(module[0], StraightThrough):
                module[0].mask.copy_(largest(module.original.abs(), self.keep))


def with_scores(network: nn.Module, layers: Iterable[str], keep: float) -> nn.Module:
    """A copy whose layers have scores. Only these and the parameters of normalization layers, as far as they did, train."""
    scored = own_copy(network)
    for module in scored.modules():
        if not isinstance(module, NORMS):
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
    for name in layers:
        layer = scored.get_submodule(name)
        assert isinstance(layer.weight, Tensor)
        parametrize.register_parametrization(layer, "weight", StraightThrough(layer.weight, keep))
        layer.parametrizations.weight.original.requires_grad_(True)  # type: ignore[union-attr]
    return scored


def without_scores(scored: nn.Module, network: nn.Module, layers: Iterable[str]) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network with what was trained beside the scores, whole weights, and the masks of the weights."""
    plain = own_copy(network)
    names = {parameter_name(layer, "weight"): parameter_name(layer, "parametrizations.weight.0") for layer in layers}
    state = {name: attrgetter(f"{names[name]}.weight" if name in names else name)(scored) for name in plain.state_dict()}
    plain.load_state_dict(state)
    return plain, {name: scored.get_buffer(f"{place}.mask") for name, place in names.items()}
