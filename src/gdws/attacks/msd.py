"""Multi steepest descent (Maini et al. 2020): one attack on the union of an l-inf, an l-2 and an l-1 ball."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.attacks.base import LONGEST, pixels
from gdws.attacks.gradient_ascent import Advance, advance, ascend, ascend_until_wrong, grain_of, still_right
from gdws.attacks.norm_balls import BALLS, ball
from gdws.core.checks import is_count
from gdws.core.cuda_graphs import GraphedCallable
from gdws.core.errors import GdwsError


@dataclass(frozen=True)
class MSD:
    """Multi steepest descent (Maini et al. 2020): one attack on the union of an l-inf, an l-2 and an l-1 ball.

    Each step tries every norm's step, projected onto its own ball, and keeps for each image the worst of the three. So every
    iterate is within one of the balls, and which one may change from step to step. It starts from the image: no random
    numbers. A step costs a forward and a backward pass and one forward pass more for each norm.

    eps         three radii, for l-inf, l-2 and l-1, in units of the image range.
    step        three step lengths, in the same order and unit.
    steps       number of steps.
    early_exit  leave alone an image that is wrong already, and stop each image at its first wrong iterate.

    Raises GdwsError when there are not three eps >= 0 and three step > 0, or steps is below 0.

    >>> from gdws import attacks, data, models
    >>> attack = attacks.MSD(steps=2)
    >>> print(attack)
    MSD-2 (l-inf, l-2, l-1, eps 0.03, 0.5, 12)
    >>> images, labels = next(iter(data.load("demo", "test").take(4)))
    >>> attack(models.embedded(), images, labels).shape
    torch.Size([4, 3, 32, 32])
    """

    eps: tuple[float, float, float] = (0.03, 0.5, 12.0)
    step: tuple[float, float, float] = (0.003, 0.05, 1.0)
    steps: int = 50
    early_exit: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", tuple(self.eps))  # a record that was JSON has lists
        object.__setattr__(self, "step", tuple(self.step))
        three = (len(self.eps), len(self.step)) == (3, 3) and all(0 <= eps <= LONGEST for eps in self.eps)
        if not (three and all(0 < step <= LONGEST for step in self.step) and is_count(self.steps)):
            raise GdwsError(
                f"MSD got eps={self.eps}, step={self.step}, steps={self.steps}: expected three eps >= 0 and three step > 0, "
                f"for l-inf, l-2 and l-1, all at most {LONGEST:g}, and a whole number of steps >= 0"
            )

    def __str__(self) -> str:
        return f"MSD-{self.steps} (l-inf, l-2, l-1, eps {', '.join(map(pixels, self.eps))})"

    @torch.no_grad()
    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Make adversarial images.

        model      takes images (B, C, H, W) in [0, 1] and returns logits (B, classes).
        images     floats (B, C, H, W) in [0, 1], on the model's device.
        labels     integers (B,), the true classes.
        generator  not used: this attack draws no random numbers.

        Returns images of the same shape, type and device, in [0, 1].
        """
        step = GraphedCallable(self.advance(model))
        if not self.early_exit:
            return ascend(step, images, labels, images, self.steps)
        attacked, active = images.clone(), still_right(model, images, labels)
        if len(active):
            start, truth = images[active], labels[active]
            attacked[active] = ascend_until_wrong(step, start, truth, start, self.steps, grain_of(images))
        return attacked

    def scaled(self, share: float) -> MSD:
        """The same attack with `share` times the radii and the step lengths."""
        (a, b, c), (d, e, f) = self.eps, self.step
        return replace(self, eps=(share * a, share * b, share * c), step=(share * d, share * e, share * f))

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The images (B, C, H, W) themselves: MSD has no random start, and the generator is not used."""
        return images

    def advance(self, model: nn.Module) -> Advance:
        """One step of the attack on this model: a backward pass, and a forward pass for each norm.

        Returns a function of (points, images, labels): the next points, and a bool (B,) for each, whether the model classified
        the point before correctly.
        """
        regions = [ball(norm, eps) for norm, eps in zip(BALLS, self.eps, strict=True)]

        def move(x: Tensor, gradient: Tensor, images: Tensor, labels: Tensor) -> Tensor:
            worst, damage = x, x.new_full((len(x),), -torch.inf)
            for region, length in zip(regions, self.step, strict=True):
                candidate = region.project(region.step(x, gradient, length), images)
                loss = F.cross_entropy(model(candidate), labels, reduction="none")
                worst = torch.where((loss > damage).view(-1, 1, 1, 1), candidate, worst)
                damage = torch.maximum(loss, damage)
            return worst

        return advance(model, move)
