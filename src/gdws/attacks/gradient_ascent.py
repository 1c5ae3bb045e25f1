"""The loop that our iterative attacks share: the loss's gradient, a move, and images that leave once they are broken.

It costs its forward and backward passes. An image that an iterate breaks stops there, without a word to the host; the host
only looks after 1, 2, 4, 8, ... steps, and from then on computes the images that still stand.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Move = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""move(x, gradient, images, labels) -> the next x."""

Advance = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""advance(x, images, labels) -> the next x, and which x (B,) the model classified correctly."""


def advance(model: nn.Module, move: Move) -> Advance:
    """One step of an attack on this model. labels are classes (B,), or probabilities (B, classes) to be moved away from."""

    def step(x: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits, gradient = loss_gradient(model, x, labels)
        truth = labels if labels.ndim == 1 else labels.argmax(1)
        return move(x, gradient, images, labels), logits.argmax(1) == truth

    return step


def ascend(step: Advance, images: Tensor, labels: Tensor, start: Tensor, steps: int) -> Tensor:
    """The points reached from `start` after all the steps."""
    x = start
    for _ in range(steps):
        x = step(x, images, labels)[0]
    return x.clone()


def ascend_until_wrong(step: Advance, images: Tensor, labels: Tensor, start: Tensor, steps: int, grain: int = 1) -> Tensor:
    """The points reached from `start` after all the steps, or where the model first went wrong.

    Batches have a multiple of `grain` images: few sizes, and for each of them a recording serves again and again.
    """
    result, count = start.clone(), len(start)
    index = _filled(torch.arange(count, device=start.device), grain)
    x, images, labels = start[index], images[index], labels[index]
    for number in range(steps):
        moved, right = step(x, images, labels)
        x = torch.where(right.view(-1, 1, 1, 1), moved, x)
        if number & (number + 1) == 0:  # one less than a power of two
            left = right[:count].nonzero().squeeze(1)
            if len(left) == 0:
                break
            remaining = _filled(left, grain)
            if len(remaining) < len(x):
                result[index[:count]] = x[:count]
                count = len(left)
                x, images, labels, index = x[remaining], images[remaining], labels[remaining], index[remaining]
    result[index[:count]] = x[:count]
    return result


def grain_of(images: Tensor) -> int:
    """Batches shrink by eighths on a GPU, where recordings pay, and by single images elsewhere."""
    return -(-len(images) // 8) if images.is_cuda else 1


def _filled(index: Tensor, grain: int) -> Tensor:
    """The index, and its first entry again and again up to a multiple of `grain`."""
    return torch.cat([index, index[:1].expand(-len(index) % grain)])


def loss_gradient(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The logits (B, classes) and, for every image, the gradient of its cross-entropy. The weights get no gradient."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        logits = model(x)
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), x)
    return logits.detach(), gradient


def still_right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Which images the model classifies correctly, as indices: one host synchronization."""
    with torch.no_grad():
        logits: Tensor = model(images)
    return (logits.argmax(1) == labels).nonzero().squeeze(1)
