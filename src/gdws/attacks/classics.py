"""FGSM, BIM and DeepFool in the l-inf ball, as foolbox has them: what the paper's appendix reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gdws.attacks.base import optional, pixels, weights_without_gradients
from gdws.attacks.gradient_ascent import still_right
from gdws.errors import GdwsError


@dataclass(frozen=True)
class FoolboxAttack(ABC):
    """An attack of foolbox's with a radius, in units of the image range. None of these draws random numbers.

    Images that the model gets wrong are left alone.
    """

    eps: float = 8 / 255

    def __post_init__(self) -> None:
        settings = asdict(self)
        if min(settings.values()) < 0 or settings.get("steps") == 0:
            raise GdwsError(f"{type(self).__name__} got {settings}: expected eps and step >= 0 and at least one step")

    def __str__(self) -> str:
        steps = asdict(self).get("steps")
        return f"{type(self).__name__}{f'-{steps}' if steps else ''} (l-inf, eps {pixels(self.eps)})"

    @abstractmethod
    def _build(self, attacks: Any) -> Any:
        """The attack, from foolbox.attacks."""

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The attacked images. images (B, C, H, W) in [0, 1], labels (B,); the generator is not used."""
        foolbox = optional("foolbox", type(self).__name__)
        attacked, active = images.clone(), still_right(model, images, labels)
        if len(active):
            with weights_without_gradients(model), torch.enable_grad():
                bounded = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
                _, found, _ = self._build(foolbox.attacks)(bounded, images[active], labels[active], epsilons=self.eps)
            attacked[active] = found
        return attacked


@dataclass(frozen=True)
class FGSM(FoolboxAttack):
    """One step of length eps along the gradient's signs (Goodfellow et al. 2015)."""

    def _build(self, attacks: Any) -> Any:
        return attacks.LinfFastGradientAttack(random_start=False)


@dataclass(frozen=True)
class BIM(FoolboxAttack):
    """PGD from the image itself (Kurakin et al. 2017), with foolbox's own step and number of steps."""

    step: float = 1.6 / 255
    steps: int = 10

    def _build(self, attacks: Any) -> Any:
        return attacks.LinfBasicIterativeAttack(abs_stepsize=self.step, steps=self.steps, random_start=False)


@dataclass(frozen=True)
class DeepFool(FoolboxAttack):
    """Steps to the nearest of the linearised boundaries (Moosavi-Dezfooli et al. 2016), cut off at eps."""

    steps: int = 50

    def _build(self, attacks: Any) -> Any:
        return attacks.LinfDeepFoolAttack(steps=self.steps)
