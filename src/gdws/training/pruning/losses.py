"""What is minimized while a network is pruned: a loss of gdws.training.losses with something added, or constrained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gdws.training.losses import Loss
from gdws.training.pruning.masks import set_zeros


@dataclass(frozen=True)
class Around(Loss):
    """Another loss as it is."""

    inner: Loss

    def goal(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return self.inner.goal(model, images, labels)

    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.losses(model, attacked, images, labels)

    def record(self) -> dict[str, Any]:
        return {**super().record(), "inner": self.inner.record()}


@dataclass(frozen=True)
class Masked(Around):
    """Of networks that are zero where the masks, by the names of parameters, do not keep them."""

    masks: dict[str, Tensor]

    def constrain(self, model: nn.Module) -> None:
        set_zeros(model, self.masks)


@dataclass(frozen=True)
class Augmented(Around):
    """loss + sum over the layers of rho/2 |W - T|^2, the targets T being by the names of parameters."""

    rho: float
    targets: dict[str, Tensor]

    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        losses, logits = super().losses(model, attacked, images, labels)
        distances = [(model.get_parameter(name) - target).square().sum() for name, target in self.targets.items()]
        return losses + self.rho / 2 * torch.stack(distances).sum(), logits

    def record(self) -> dict[str, Any]:
        return {**super().record(), "rho": self.rho}
