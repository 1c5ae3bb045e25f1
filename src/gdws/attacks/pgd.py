"""Projected gradient descent in the l-infinity ball (Madry et al. 2018), in [0, 1] image space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.errors import GdwsError


@dataclass(frozen=True)
class PGD:
    """x <- clip(x + step * sign(grad CE)), within eps of the image and within [0, 1], from one random start.

    eps and step are in units of the image range. The random start comes from the generator given to the call, never
    from the global one: reseeding that inside an evaluation would repeat a training loop's augmentations.
    """

    eps: float = 8 / 255
    step: float = 2 / 255
    steps: int = 20

    def __post_init__(self) -> None:
        if self.eps < 0 or self.step <= 0 or self.steps < 0:
            raise GdwsError(
                f"PGD got eps={self.eps}, step={self.step}, steps={self.steps}: expected eps >= 0, step > 0 and steps >= 0"
            )

    def __str__(self) -> str:
        return f"PGD-{self.steps} (l-inf, eps {self.eps * 255:g}/255, step {self.step * 255:g}/255)"

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """The attacked images. images (B, C, H, W) in [0, 1], labels (B,); generator on the images' device or the CPU."""
        low, high = (images - self.eps).clamp_min(0), (images + self.eps).clamp_max(1)
        noise = torch.rand(images.shape, generator=generator, device=generator.device, dtype=images.dtype)
        x = torch.clamp(images + (2 * noise.to(images.device) - 1) * self.eps, low, high)
        for _ in range(self.steps):
            x.requires_grad_(True)
            with torch.enable_grad():
                loss = F.cross_entropy(model(x), labels, reduction="sum")
                (gradient,) = torch.autograd.grad(loss, x)
            x = torch.clamp(x.detach() + self.step * gradient.sign(), low, high)
        return x.detach()
