"""What adversarial training minimizes: a loss for each attacked image, and what its attack moves away from.

p(x) are the model's probabilities, y the label, x an image and x' the attacked one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.core.hashing import weights_hash


class Loss(ABC):
    """`goal` is asked in eval mode, before the attack; `losses` in train mode, after it; `constrain` after every step."""

    def goal(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """What the attack raises the cross-entropy to: classes (B,) or probabilities (B, classes)."""
        return labels

    def constrain(self, model: nn.Module) -> None:  # noqa: B027, most losses allow everything
        """Bring the network back, in place, to where it is minimized over; nothing here may wait for the device."""

    def record(self) -> dict[str, Any]:
        """What a training that is continued must have in common with its beginning."""
        return {"kind": type(self).__name__}

    @abstractmethod
    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) losses, and the logits (B, classes) of the attacked images."""


class Robust(Loss):
    """-log p_y(x') (Madry et al. 2018)."""

    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(attacked)
        return F.cross_entropy(logits, labels, reduction="none"), logits


@dataclass(frozen=True)
class Trades(Loss):
    """-log p_y(x) + weight KL(p(x) || p(x')), attacked on the second term (Zhang et al. 2019).

    KL(p(x) || .) and the cross-entropy to p(x) differ by a constant: to the attack they are the same.
    """

    weight: float = 6.0

    def goal(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            probabilities: Tensor = model(images).float().softmax(1)
        return probabilities

    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        natural, logits = model(torch.cat([images, attacked])).float().chunk(2)  # one batch: one set of batch statistics
        return F.cross_entropy(natural, labels, reduction="none") + self.weight * divergence(natural, logits), logits


@dataclass(frozen=True)
class Taught(Loss):
    """KL((1 - s) q(x') + s y || p(x')), q being a teacher's probabilities and s the label_share: classify attacked images as
    the original does, a little corrected by their labels.
    """

    teacher: nn.Module
    label_share: float = 0.25

    def record(self) -> dict[str, Any]:
        return {**super().record(), "teacher": weights_hash(self.teacher), "label share": self.label_share}

    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(attacked).float()
        with torch.no_grad():
            taught = self.teacher(attacked).float().softmax(1)
            goal = taught.lerp(F.one_hot(labels, taught.shape[1]).to(taught), self.label_share)
        return F.kl_div(logits.log_softmax(1), goal, reduction="none").sum(1), logits


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(softmax p || softmax q) (B,) of logits (B, classes)."""
    return F.kl_div(q.log_softmax(1), p.log_softmax(1), reduction="none", log_target=True).sum(1)
