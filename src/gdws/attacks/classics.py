"""FGSM, BIM and DeepFool in the l-inf ball, as foolbox has them: what the paper's appendix reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gdws.attacks.base import LONGEST, optional, pixels, weights_without_gradients
from gdws.attacks.gradient_ascent import still_right
from gdws.core.checks import is_count
from gdws.core.errors import GdwsError


@dataclass(frozen=True)
class FoolboxAttack(ABC):
    """An attack of the package foolbox in the l-inf ball. None of these draws random numbers.

    eps  radius of the ball, in units of the image range.

    Images that the model gets wrong are left alone.
    """

    eps: float = 8 / 255

    def __post_init__(self) -> None:
        settings = asdict(self)
        lengths = [value for name, value in settings.items() if name != "steps"]
        if not all(0 <= length <= LONGEST for length in lengths) or not is_count(settings.get("steps", 1), 1):
            raise GdwsError(
                f"{type(self).__name__} got {settings}: expected eps and step from 0 to {LONGEST:g}, and at least one step"
            )

    def __str__(self) -> str:
        steps = asdict(self).get("steps")
        return f"{type(self).__name__}{f'-{steps}' if steps else ''} (l-inf, eps {pixels(self.eps)})"

    @abstractmethod
    def _build(self, attacks: Any) -> Any:
        """The attack, from foolbox.attacks."""

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Make adversarial images.

        model      takes images (B, C, H, W) in [0, 1] and returns logits (B, classes).
        images     floats (B, C, H, W) in [0, 1], on the model's device.
        labels     integers (B,), the true classes.
        generator  not used: this attack draws no random numbers.

        Returns images of the same shape, type and device, in [0, 1].
        Raises GdwsError when foolbox is not installed.
        """
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
    """One step of length eps along the signs of the gradient (Goodfellow et al. 2015), by the package foolbox.

    eps  radius of the l-inf ball, in units of the image range.

    Raises GdwsError when eps is below 0; a call raises it when foolbox is not installed. Images that the model gets wrong are
    left alone.

    >>> from gdws import attacks
    >>> print(attacks.FGSM(eps=4 / 255))
    FGSM (l-inf, eps 4/255)
    """

    def _build(self, attacks: Any) -> Any:
        return attacks.LinfFastGradientAttack(random_start=False)


@dataclass(frozen=True)
class BIM(FoolboxAttack):
    """The basic iterative method: PGD that starts from the image (Kurakin et al. 2017), by the package foolbox.

    eps    radius of the l-inf ball, in units of the image range.
    step   length of a step, in the same unit; foolbox's own by default.
    steps  number of steps; foolbox's own by default.

    Raises GdwsError when eps or step is below 0 or steps is below 1; a call raises it when foolbox is not installed. Images
    that the model gets wrong are left alone.

    >>> from gdws import attacks
    >>> print(attacks.BIM(steps=5))
    BIM-5 (l-inf, eps 8/255)
    """

    step: float = 1.6 / 255
    steps: int = 10

    def _build(self, attacks: Any) -> Any:
        return attacks.LinfBasicIterativeAttack(abs_stepsize=self.step, steps=self.steps, random_start=False)


@dataclass(frozen=True)
class DeepFool(FoolboxAttack):
    """Steps to the nearest linearized decision boundary (Moosavi-Dezfooli et al. 2016), by the package foolbox.

    eps    radius of the l-inf ball at which the result is cut off, in units of the image range.
    steps  number of steps at most.

    Raises GdwsError when eps is below 0 or steps is below 1; a call raises it when foolbox is not installed. Images that the
    model gets wrong are left alone.

    >>> from gdws import attacks
    >>> print(attacks.DeepFool())
    DeepFool-50 (l-inf, eps 8/255)
    """

    steps: int = 50

    def _build(self, attacks: Any) -> Any:
        return attacks.LinfDeepFoolAttack(steps=self.steps)
