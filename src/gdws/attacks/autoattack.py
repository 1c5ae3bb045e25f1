"""AutoAttack (Croce and Hein 2020) through the package pyautoattack."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdws.attacks.base import LONGEST, NAMES, default_generator, optional, pixels, weights_without_gradients
from gdws.core.errors import GdwsError

PARTS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")


@dataclass(frozen=True)
class AutoAttack:
    """AutoAttack (Croce and Hein 2020), by the package pyautoattack.

    The parts of a version run one after another, each on the images that are still right.

    eps      radius of the ball, in the norm, in units of the image range.
    norm     "linf", "l2" or "l1".
    version  "standard": APGD on the cross-entropy, targeted APGD and FAB, and Square; "rand" for a model with randomness in
             its forward pass; "custom" for the parts named in `parts`.
    parts    for version "custom" only: some of "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square".

    Raises GdwsError when eps is not above 0, a name is unknown, or parts are given without version "custom". A call raises it
    when pyautoattack is not installed, or when the model has too few classes for a part.

    The generator of a call gives one seed. The package then draws only for the images that are still right. So two models are
    attacked with the same seed but not from the same starts.

    >>> from gdws import attacks
    >>> print(attacks.AutoAttack(version="custom", parts=["apgd-ce", "square"]))
    AutoAttack apgd-ce+square (l-inf, eps 8/255)
    """

    eps: float = 8 / 255
    norm: str = "linf"
    version: str = "standard"
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))  # a record that was JSON has a list
        if not 0 < self.eps <= LONGEST or self.norm not in NAMES or self.version not in ("standard", "rand", "custom"):
            raise GdwsError(
                f"AutoAttack got eps={self.eps}, norm={self.norm!r}, version={self.version!r}: expected eps > 0, at most "
                f"{LONGEST:g}, a norm of {', '.join(NAMES)} and a version of standard, rand, custom"
            )
        if not set(self.parts) <= set(PARTS) or bool(self.parts) != (self.version == "custom"):
            raise GdwsError(
                f"AutoAttack {self.version} got parts={self.parts}: expected some of {', '.join(PARTS)} for custom, else none"
            )

    def __str__(self) -> str:
        detail = {"standard": "", "rand": " rand", "custom": f" {'+'.join(self.parts)}"}[self.version]
        return f"AutoAttack{detail} ({NAMES[self.norm]}, eps {pixels(self.eps)})"

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Make adversarial images.

        model      takes images (B, C, H, W) in [0, 1] and returns logits (B, classes).
        images     floats (B, C, H, W) in [0, 1], on the model's device.
        labels     integers (B,), the true classes.
        generator  on the images' device or the CPU; without one, every call takes a fresh one with seed 0.

        Returns images of the same shape, type and device, in [0, 1]. One that no part breaks comes back unchanged.
        """
        pyautoattack = optional("pyautoattack", "AutoAttack")
        generator = generator or default_generator()
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        with torch.no_grad():
            classes = model(images[:1]).shape[1]
        with weights_without_gradients(model), _alone(images.device):
            attack = pyautoattack.AutoAttack(
                model,
                norm={"linf": "Linf", "l2": "L2", "l1": "L1"}[self.norm],
                eps=self.eps,
                version=self.version,
                attacks=list(self.parts) or None,
                device=images.device,
                seed=seed,
            )
            if classes < 4 and {"apgd-dlr", "apgd-t"} & set(attack.attacks_to_run):
                raise GdwsError(f"the model has {classes} classes: expected at least 4 for AutoAttack's margin loss (or parts)")
            for targeted in (attack.apgd_targeted, attack.fab):
                targeted.n_target_classes = min(targeted.n_target_classes, classes - 1)
            attacked: Tensor = attack.run_standard_evaluation(images, labels, batch_size=len(images))[0]
        return attacked.to(images.dtype)


@contextmanager
def _alone(device: torch.device) -> Iterator[None]:
    """The package seeds the global generators, logs its flags, and takes away the trace function of debuggers and coverage."""
    logger, trace = logging.getLogger("auto-attack"), sys.gettrace()
    disabled, logger.disabled = logger.disabled, True
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        logger.disabled = disabled
        sys.settrace(trace)
