"""AutoAttack (Croce and Hein 2020) through the package pyautoattack."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdws.attacks.base import NAMES, default_generator, optional, pixels, weights_without_gradients
from gdws.errors import GdwsError

PARTS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")


@dataclass(frozen=True)
class AutoAttack:
    """The parts of a version one after another, each on the images that are left standing.

    version  "standard": APGD on the cross-entropy, targeted APGD and FAB, and Square; "rand" for a model with randomness in
             its forward pass; "custom" for the parts named in `parts`.
    norm     "linf", "l2" or "l1", with eps its radius in units of the image range.

    The generator gives one seed. The package then draws only for the images left standing, so two models are attacked with
    the same seed but not from the same starts.
    """

    eps: float = 8 / 255
    norm: str = "linf"
    version: str = "standard"
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))  # a record that was JSON has a list
        if self.eps <= 0 or self.norm not in NAMES or self.version not in ("standard", "rand", "custom"):
            raise GdwsError(
                f"AutoAttack got eps={self.eps}, norm={self.norm!r}, version={self.version!r}: expected eps > 0, a norm of "
                f"{', '.join(NAMES)} and a version of standard, rand, custom"
            )
        if not set(self.parts) <= set(PARTS) or bool(self.parts) != (self.version == "custom"):
            raise GdwsError(
                f"AutoAttack {self.version} got parts={self.parts}: expected some of {', '.join(PARTS)} for custom, else none"
            )

    def __str__(self) -> str:
        detail = {"standard": "", "rand": " rand", "custom": f" {'+'.join(self.parts)}"}[self.version]
        return f"AutoAttack{detail} ({NAMES[self.norm]}, eps {pixels(self.eps)})"

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The attacked images; one that no part breaks comes back unchanged. images (B, C, H, W) in [0, 1], labels (B,)."""
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
