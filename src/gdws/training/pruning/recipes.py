"""How the stages of pruning train, by the name of a preset (docs/reference/presets.md).

HYDRA's settings after Sehwag et al. (2020), ADMM's after Ye et al. (2019): plain momentum 0.9, weight decay 1e-4, batches of
128.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gdws.attacks import PGD
from gdws.attacks.norm_balls import ball
from gdws.training.recipes import Recipe

NEARBY = 0.001
"""Standard deviation of where TRADES starts: at the image itself its divergence has no gradient."""


@dataclass(frozen=True)
class NearbyPGD(PGD):
    """PGD from image + 0.001 N(0, 1), as TRADES was published with."""

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(images.shape, generator=generator, device=generator.device, dtype=images.dtype)
        return ball(self.norm, self.eps).project(images + NEARBY * noise.to(images.device), images)


_PUBLISHED = Recipe(batch=128, weight_decay=1e-4, nesterov=False, average=0.0, keep="last")
_TRADES = replace(_PUBLISHED, loss="trades", schedule="cosine", attack=NearbyPGD(eps=0.031, step=0.0078, steps=10))
_ADVERSARIAL = replace(_PUBLISHED, rate=0.01, attack=PGD(steps=10))

SCORES = replace(_TRADES, epochs=20, rate=0.1)
"""HYDRA's scores, in both presets."""
PERIOD = {
    "fast": replace(_ADVERSARIAL, epochs=4, schedule="thirds"),
    "paper": replace(_ADVERSARIAL, epochs=20, schedule="thirds"),
}
"""One period of ADMM."""
FINETUNE = {
    "fast-hydra": replace(_TRADES, epochs=20, rate=0.01, average=0.999),
    "paper-hydra": replace(_TRADES, epochs=100, rate=0.01),
    "fast-admm": replace(_ADVERSARIAL, epochs=20, schedule="cosine", average=0.999),
    "paper-admm": replace(_ADVERSARIAL, epochs=200, schedule="steps-early"),
    "fast-magnitude": replace(_TRADES, epochs=40, rate=0.01, average=0.999),
    "paper-magnitude": replace(_TRADES, epochs=120, rate=0.01),
}
"""What is left is trained so. Magnitude pruning gets as many epochs as HYDRA has in all."""
