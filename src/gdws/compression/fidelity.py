"""What a compression cost: how many images both networks decide alike, and rightly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gdws.attacks.pgd import PGD
from gdws.calibration.collect import gather_images
from gdws.calibration.sensitivity import attacked
from gdws.core.checks import Batches, checked_logits, unpack_batch
from gdws.core.execution import evaluating, full_precision, placement
from gdws.core.hashing import image_hashes
from gdws.core.significance import paired_change
from gdws.core.unwrap import unwrap
from gdws.errors import GdwsError
from gdws.planning.plan import HELD_OUT, Fidelity, Plan, plan_of

SHARE_HELD_BACK = 0.2
"""Share of the calibration images that a budget of points holds back."""
ATTACKED, ATTACKED_AT_ONCE = 200, 100
"""Images that are attacked, where nothing depends on how many: an attack takes as long as twenty decisions. In such batches."""


def hold_back(images: Tensor, labels: Tensor | None) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
    """Images and labels to calibrate on, and those held back to check on."""
    fit = len(images) - max(1, round(SHARE_HELD_BACK * len(images)))
    if fit < 1:
        raise GdwsError(f"there is {len(images)} calibration image: expected at least 2, to hold some back")
    parts = slice(None, fit), slice(fit, None)
    first, second = ((images[part], None if labels is None else labels[part]) for part in parts)
    return first, second


def refuse_calibration_images(networks: Mapping[str, nn.Module], batches: Batches) -> None:
    """Refuse images that a network was calibrated on: its accuracy there says nothing of others.

    Batches that can be gone through only once are not looked at.
    """
    plans = {name: plan_of(network) for name, network in networks.items()}
    seen = {name: set(plan.images) for name, plan in plans.items() if plan is not None and plan.images}
    if not seen or isinstance(batches, Iterator):  # images that are files are decoded once more for this
        return
    judged = {digest for batch in batches for digest in image_hashes(unpack_batch(batch)[0].cpu())}
    for name, images in seen.items():
        if shared := images & judged:
            raise GdwsError(
                f"{name} was calibrated on {len(shared)} of these images: expected an evaluation on images that it has not seen"
            )


def agreement(model: nn.Module, other: nn.Module, images: Tensor) -> float:
    """Measure how many images two networks decide alike.

    model   takes images (B, C, H, W) in [0, 1] and returns logits (B, classes).
    other   the network beside it, of the same classes.
    images  floats (N, C, H, W) in [0, 1].

    Returns the percentage of images, from 0 to 100. Raises GdwsError when one of the networks was calibrated on some of these
    images: agreement there says nothing about others.

    >>> import gdws, torch
    >>> model = gdws.models.embedded()
    >>> gdws.agreement(model, model, torch.rand(4, 3, 32, 32))
    100.0
    """
    unpack_batch(images)
    refuse_calibration_images({"the first model": model, "the second model": other}, [images])
    return decided_alike(unwrap(model), unwrap(other), images)


def decided_alike(model: nn.Module, other: nn.Module, images: Tensor) -> float:
    """Per cent of the images that both models decide alike, whatever they were calibrated on."""
    return 100 * int((decisions(model, images) == decisions(other, images)).sum()) / len(images)


def decisions(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> Tensor:
    """The class (N,) that a model gives each image, on the CPU. It must have a class for every label."""
    device, dtype = placement(model)
    truths = [None] * len(images) if labels is None else labels.split(50)
    with evaluating(model), full_precision(), torch.no_grad():
        # Maps of larger batches get their memory from the system anew each time.
        parts = zip(images.split(50), truths, strict=False)
        return torch.cat([checked_logits(model, part.to(device, dtype), truth).argmax(1).cpu() for part, truth in parts])


@dataclass(frozen=True)
class CheckImages:
    """Images (N, C, H, W) and, perhaps, labels (N,) that a network is not calibrated on, and where they come from: one of
    HELD_OUT, TRAINING, HELD_BACK of gdws.planning.plan."""

    images: Tensor
    labels: Tensor | None
    source: str = HELD_OUT

    @classmethod
    def gather(cls, check: Batches | CheckImages) -> CheckImages:
        """Those of batches, which a user gives."""
        return check if isinstance(check, CheckImages) else cls(*gather_images(check))

    def refuse(self, calibration: Tensor) -> None:
        """Refuse held-out images that the network is calibrated on: there it says nothing of others."""
        if self.source == HELD_OUT and (shared := set(image_hashes(self.images)) & set(image_hashes(calibration))):
            raise GdwsError(
                f"{len(shared)} of the {len(self.images)} images to check on are calibration images: expected others"
            )


def attack_of(plan: Plan) -> PGD | None:
    """The attack that the calibration images of a plan were attacked with."""
    return None if plan.attack is None else PGD(**plan.attack)


class Check:
    """A network on images that others are compared with it on: what it decides, which is looked up once.

    attack  made on the network, for the first `most` images: against the labels, or its own decisions without labels.
    """

    def __init__(self, model: nn.Module, check: CheckImages, attack: PGD | None, most: int = ATTACKED) -> None:
        self.source, self.labels = check.source, check.labels
        self.images = check.images
        self.decided = decisions(model, self.images, self.labels)
        self.wanted = self.decided if self.labels is None else self.labels.cpu()
        self.attacked: Tensor | None = None
        if attack is not None:
            labels = None if self.labels is None else self.labels[:most]
            self.attacked = attack_held_back(model, self.images[:most], labels, attack)
            self.decided_attacked = decisions(model, self.attacked)

    def fidelity(self, other: nn.Module) -> Fidelity:
        """The other network beside it."""
        after = decisions(other, self.images)
        found = Fidelity(
            source=self.source,
            images=len(self.images),
            agreed=int((after == self.decided).sum()),
            change=None if self.labels is None else paired_change(self.decided == self.wanted, after == self.wanted),
        )
        if self.attacked is None:
            return found
        before, after = self.decided_attacked, decisions(other, self.attacked)
        wanted = self.wanted[: len(after)]
        return replace(
            found,
            attacked=len(after),
            attacked_agreed=int((after == before).sum()),
            attacked_lost=int(((before == wanted) & (after != wanted)).sum()),
        )


def attack_held_back(model: nn.Module, images: Tensor, labels: Tensor | None, attack: PGD) -> Tensor:
    """Held-back images, attacked in float32 from starts that the calibration has not used."""
    device, dtype = placement(model)
    generator = torch.Generator().manual_seed(1)
    truths = [None] * len(images) if labels is None else labels.split(ATTACKED_AT_ONCE)
    with full_precision(), evaluating(model):
        parts = zip(images.split(ATTACKED_AT_ONCE), truths, strict=False)
        return torch.cat([attacked(model, part.to(device, dtype), truth, attack, generator).cpu() for part, truth in parts])
