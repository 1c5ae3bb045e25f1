"""Balls of radius eps around each image, in the l-inf, l-2 or l-1 norm, within the box [0, 1].

Pure mathematics on batches (B, C, H, W) of images in [0, 1]; eps, lengths and norms are in units of the image range, and a
norm is over all C*H*W values of one image. A ball can draw a point, take a steepest-ascent step and project.

Points are first brought into the ball and then clipped to the box. The image is in the box, so clipping moves no coordinate
away from it: the result is in both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gdws.core.errors import GdwsError

SPARSITY = 10
"""Coordinates that one l-1 step moves: within noise as strong as a new number from 5 to 20 each step (Maini et al. 2020)."""


@dataclass(frozen=True)
class Ball(ABC):
    """{x in [0, 1]^n : |x - image| <= eps}."""

    eps: float

    @abstractmethod
    def random(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """A point drawn uniformly from each image's ball, clipped to the box; one draw from the generator."""

    @abstractmethod
    def step(self, x: Tensor, gradient: Tensor, length: float) -> Tensor:
        """x after a step of the norm's `length` that raises the loss fastest; it may leave the ball and the box."""

    @abstractmethod
    def project(self, x: Tensor, images: Tensor) -> Tensor:
        """The nearest point (l-2 distance) of each image's ball, clipped to the box."""


class Linf(Ball):
    def random(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.project(images + _symmetric(images, images.shape, generator) * self.eps, images)

    def step(self, x: Tensor, gradient: Tensor, length: float) -> Tensor:
        return x + length * gradient.sign()

    def project(self, x: Tensor, images: Tensor) -> Tensor:
        return torch.clamp(x, (images - self.eps).clamp_min(0), (images + self.eps).clamp_max(1))


class L2(Ball):
    def random(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The first n coordinates of a uniform point of the (n + 1)-sphere in R^(n + 2) are uniform in the n-ball."""
        shape = len(images), images[0].numel() + 2
        normal = torch.randn(shape, generator=generator, device=generator.device, dtype=images.dtype).to(images.device)
        inside: Tensor = normal[:, :-2] / torch.linalg.vector_norm(normal, dim=1, keepdim=True)
        return (images + self.eps * inside.view_as(images)).clamp(0, 1)

    def step(self, x: Tensor, gradient: Tensor, length: float) -> Tensor:
        return x + length * _direction(gradient)

    def project(self, x: Tensor, images: Tensor) -> Tensor:
        change = x - images
        return (images + torch.where(_l2(change) > self.eps, self.eps * _direction(change), change)).clamp(0, 1)


class L1(Ball):
    def random(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """n of n + 1 exponential variables, over the sum of them all and with random signs, are uniform in the n-ball."""
        uniform = _symmetric(images, (len(images), images[0].numel() + 1), generator)
        exponential = -(1 - uniform.abs()).clamp_min(torch.finfo(images.dtype).tiny).log()
        inside = (uniform.sign() * exponential / exponential.sum(1, keepdim=True))[:, :-1]
        return (images + self.eps * inside.reshape(images.shape)).clamp(0, 1)

    def step(self, x: Tensor, gradient: Tensor, length: float) -> Tensor:
        """Moves the SPARSITY coordinates of largest |gradient| among those that the box lets move, all by the same amount.

        One coordinate alone would be steepest, but the box stops it at once (Tramer and Boneh 2019; Maini et al. 2020).
        """
        blocked = ((x <= 0) & (gradient < 0)) | ((x >= 1) & (gradient > 0))
        free = gradient.masked_fill(blocked, 0).flatten(1)
        count = min(SPARSITY, free.shape[1])
        chosen = free.abs().topk(count, dim=1, sorted=False).indices
        moves = (length / count) * free.gather(1, chosen).sign()
        return x + torch.zeros_like(free).scatter_(1, chosen, moves).view_as(x)

    def project(self, x: Tensor, images: Tensor) -> Tensor:
        """sign(d) max(|d| - theta, 0), with theta >= 0 the least that gives a norm of eps (Duchi et al. 2008).

        With the |d| in falling order u_1, u_2, ... and their sums s_i, theta is the largest of the (s_i - eps) / i. It is at
        least u_1 - eps, which is taken off first: in sums of floats that are much larger than eps, eps would be lost.
        """
        change = (x - images).flatten(1)
        size = change.abs()
        largest = size.amax(1, keepdim=True)
        size = torch.where(largest > self.eps, (self.eps - (largest - size)).clamp_min(0), size)
        sums = size.sort(dim=1, descending=True).values.cumsum(1) - self.eps
        theta = (sums / torch.arange(1, size.shape[1] + 1, device=x.device)).amax(1, keepdim=True).clamp_min(0)
        return (images + (change.sign() * (size - theta).clamp_min(0)).view_as(x)).clamp(0, 1)


BALLS: dict[str, type[Ball]] = {"linf": Linf, "l2": L2, "l1": L1}


def ball(norm: str, eps: float) -> Ball:
    """The ball of this norm ("linf", "l2" or "l1") and radius."""
    if norm not in BALLS:
        raise GdwsError(f"unknown norm {norm!r}: expected one of {', '.join(BALLS)}")
    return BALLS[norm](eps)


def _symmetric(images: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform in [-1, 1)."""
    uniform = torch.rand(shape, generator=generator, device=generator.device, dtype=images.dtype)
    return 2 * uniform.to(images.device) - 1


def _direction(x: Tensor) -> Tensor:
    """Of length 1, or zero as x is. Scaled first: squares of any floats, and products with a length, are not all floats."""
    scaled = x / _largest(x)
    norm: Tensor = torch.linalg.vector_norm(scaled, dim=(1, 2, 3), keepdim=True)
    return scaled / norm.clamp_min(torch.finfo(x.dtype).tiny)


def _l2(x: Tensor) -> Tensor:
    """(B, 1, 1, 1); infinite where no float is as large."""
    norm: Tensor = _largest(x) * torch.linalg.vector_norm(x / _largest(x), dim=(1, 2, 3), keepdim=True)
    return norm


def _largest(x: Tensor) -> Tensor:
    """|x| at most (B, 1, 1, 1), never zero."""
    return x.abs().amax((1, 2, 3), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
