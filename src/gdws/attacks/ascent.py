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


def ascend(model: nn.Module, images: Tensor, labels: Tensor, start: Tensor, steps: int, move: Move, early_exit: bool) -> Tensor:
    """The points reached from `start` after `steps` moves, or where the model first went wrong with early_exit."""
    if not early_exit:
        x = start
        for _ in range(steps):
            x = move(x, loss_gradient(model, x, labels)[1], images, labels)
        return x
    result, x, index = start.clone(), start, torch.arange(len(start), device=start.device)
    for number in range(steps):
        logits, gradient = loss_gradient(model, x, labels)
        right = logits.argmax(1) == labels
        x = torch.where(right.view(-1, 1, 1, 1), move(x, gradient, images, labels), x)
        if number & (number + 1) == 0:  # one less than a power of two
            left = right.nonzero().squeeze(1)
            if len(left) < len(x):
                result[index] = x
                x, images, labels, index = x[left], images[left], labels[left], index[left]
                if len(left) == 0:
                    break
    result[index] = x
    return result


def loss_gradient(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The logits (B, classes) and, for every image, the gradient of its cross-entropy. The weights get no gradient."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        logits = model(x)
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), x)
    return logits.detach(), gradient


def standing(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Which images the model decides rightly, as indices: one host synchronisation."""
    with torch.no_grad():
        logits: Tensor = model(images)
    return (logits.argmax(1) == labels).nonzero().squeeze(1)
