"""Projected gradient descent (Madry et al. 2018) in the l-inf, l-2 or l-1 ball, in [0, 1] image space."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.attacks.base import LONGEST, NAMES, default_generator, pixels
from gdws.attacks.gradient_ascent import Advance, advance, ascend, ascend_until_wrong, grain_of, still_right
from gdws.attacks.norm_balls import BALLS, ball
from gdws.core.checks import is_count
from gdws.core.cuda_graphs import GraphedCallable
from gdws.core.errors import GdwsError
from gdws.core.reading.schema import Between


@dataclass(frozen=True)
class PGD:
    """Projected gradient descent (Madry et al. 2018) in an l-inf, l-2 or l-1 ball around each image.

        x <- project(x + steepest-ascent step on the cross-entropy), within eps of the image and within [0, 1]

    eps         radius of the ball, in the norm, in units of the image range.
    step        length of a step, in the same unit.
    steps       number of steps; each costs a forward and a backward pass.
    norm        "linf", "l2" or "l1", over all C*H*W values of an image.
    restarts    independent random starts. For each image the first point that the model gets wrong is taken or, failing
                that, the one with the largest loss.
    early_exit  leave alone an image that is wrong already, and stop each image at its first wrong iterate: faster, and
                never weaker. Without it every image takes every step, and its last iterate counts.

    Raises GdwsError when eps or steps is below 0, step is not above 0, restarts is below 1 or the norm is unknown.

    Random numbers come from the generator given to the call, never from the global one: reseeding that inside an evaluation
    would repeat a training loop's augmentations. The starts of all images and restarts are always drawn, so two models that
    are given the same generator state are attacked from the same starts and leave it in the same state.

    >>> from gdws import attacks, data, models
    >>> attack = attacks.PGD(steps=3, norm="l2", eps=0.5, step=0.25)
    >>> print(attack)
    PGD-3 (l-2, eps 0.5, step 0.25)
    >>> images, labels = next(iter(data.load("demo", "test").take(4)))
    >>> attack(models.embedded(), images, labels).shape
    torch.Size([4, 3, 32, 32])
    """

    eps: float = 8 / 255
    step: float = 2 / 255
    steps: Annotated[int, Between(0, 10_000)] = 20
    norm: str = "linf"
    restarts: Annotated[int, Between(1, 1_000)] = 1
    early_exit: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.eps <= LONGEST and 0 < self.step <= LONGEST and is_count(self.steps)):
            raise GdwsError(
                f"PGD got eps={self.eps}, step={self.step}, steps={self.steps}: expected eps >= 0, step > 0, both "
                f"at most {LONGEST:g}, and a whole number of steps >= 0"
            )
        if self.norm not in BALLS or not is_count(self.restarts, 1):
            raise GdwsError(
                f"PGD got norm={self.norm!r}, restarts={self.restarts}: expected a norm of {', '.join(BALLS)} and restarts >= 1"
            )

    def __str__(self) -> str:
        times = f"{self.restarts} x " if self.restarts > 1 else ""
        return f"{times}PGD-{self.steps} ({NAMES[self.norm]}, eps {pixels(self.eps)}, step {pixels(self.step)})"

    @torch.no_grad()
    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Make adversarial images.

        model      takes images (B, C, H, W) in [0, 1] and returns logits (B, classes).
        images     floats (B, C, H, W) in [0, 1], on the model's device.
        labels     integers (B,), the true classes.
        generator  on the images' device or the CPU; without one, every call takes a fresh one with seed 0.

        Returns images of the same shape, type and device, in [0, 1].
        """
        generator = generator or default_generator()
        step, grain = GraphedCallable(self.advance(model)), grain_of(images)
        active = still_right(model, images, labels) if self.early_exit else torch.arange(len(images), device=images.device)
        worst = images.clone()
        damage = torch.full(labels.shape, -torch.inf, dtype=images.dtype, device=images.device)
        for _ in range(self.restarts):
            start = self.start(images, generator)
            if len(active) == 0:
                continue
            truth = labels[active]
            if self.early_exit:
                x = ascend_until_wrong(step, images[active], truth, start[active], self.steps, grain)
            else:
                x = ascend(step, images, labels, start, self.steps)
            if self.restarts == 1:
                worst[active] = x
                continue
            logits = model(x)
            wrong = logits.argmax(1) != truth
            found = F.cross_entropy(logits, truth, reduction="none").masked_fill(wrong, torch.inf)
            better = (found > damage[active]).view(-1, 1, 1, 1)
            worst[active] = torch.where(better, x, worst[active])
            damage[active] = torch.maximum(found, damage[active])
            if self.early_exit:
                active = active[~wrong]
        return worst

    def scaled(self, share: float) -> PGD:
        """The same attack with `share` times the radius and the step length."""
        return replace(self, eps=share * self.eps, step=share * self.step)

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """A random point of the ball around each of the images (B, C, H, W), drawn with the generator."""
        return ball(self.norm, self.eps).random(images, generator)

    def advance(self, model: nn.Module) -> Advance:
        """One step of the attack on this model, without randomness.

        Returns a function of (points, images, labels): the next points, and a bool (B,) for each, whether the model classified
        the point before correctly.
        """
        region = ball(self.norm, self.eps)

        def move(x: Tensor, gradient: Tensor, images: Tensor, labels: Tensor) -> Tensor:
            return region.project(region.step(x, gradient, self.step), images)

        return advance(model, move)
