"""What adversarial training minimises: a loss for each attacked image, and what its attack moves away from.

p(x) are the model's probabilities, y the label, x an image and x' the attacked one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.ledger import weights_hash


class Objective(ABC):
    """`goal` is asked in eval mode, before the attack; `losses` after it, in train mode if `trains_statistics`."""

    trains_statistics: ClassVar[bool] = True

    def goal(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """What the attack raises the cross-entropy to: classes (B,) or probabilities (B, classes)."""
        return labels

    def record(self) -> dict[str, Any]:
        """What a training that is continued must have in common with its beginning."""
        return {"kind": type(self).__name__}

    @abstractmethod
    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) losses, and the logits (B, classes) of the attacked images."""


class Robust(Objective):
    """-log p_y(x') (Madry et al. 2018)."""

    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(attacked)
        return F.cross_entropy(logits, labels, reduction="none"), logits


@dataclass(frozen=True)
class Trades(Objective):
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
class Taught(Objective):
    """The mean of KL(q(x) || p(x)) and KL(q(x') || p(x')), q being a teacher's probabilities: decide as the original did.

    In eval mode: a compressed network is so near its original that the noise of a batch's own statistics outweighs what is to
    be learnt. Its statistics stay as they are; norms still move by their weights.
    """

    trains_statistics: ClassVar[bool] = False
    teacher: nn.Module

    def record(self) -> dict[str, Any]:
        return {**super().record(), "teacher": weights_hash(self.teacher)}

    def losses(self, model: nn.Module, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([images, attacked])
        natural, logits = model(both).float().chunk(2)
        with torch.no_grad():
            taught = self.teacher(both).float().chunk(2)
        return (divergence(taught[0], natural) + divergence(taught[1], logits)) / 2, logits


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(softmax p || softmax q) (B,) of logits (B, classes)."""
    return F.kl_div(q.log_softmax(1), p.log_softmax(1), reduction="none", log_target=True).sum(1)
