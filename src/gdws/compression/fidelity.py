"""What a compression cost: how many images both networks decide alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from gdws.attacks.pgd import PGD
from gdws.calibration.sensitivity import attacked
from gdws.core.checks import Batches, unpack_batch
from gdws.core.execution import evaluating, full_precision, placement
from gdws.core.hashing import image_hashes
from gdws.errors import GdwsError
from gdws.planning.plan import plan_of

HELD_BACK = 0.2
"""Share of the calibration images that a budget of agreement holds back."""


def hold_back(images: Tensor, labels: Tensor | None) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
    """Images and labels to calibrate on, and those held back to measure agreement on."""
    fit = len(images) - max(1, round(HELD_BACK * len(images)))
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
    refuse_calibration_images({"the first model": model, "the second model": other}, [images])
    return decided_alike(model, other, images)


def decided_alike(model: nn.Module, other: nn.Module, images: Tensor) -> float:
    """Per cent of the images that both models decide alike, whatever they were calibrated on."""
    device, dtype = placement(model)
    same = 0
    with evaluating(model), evaluating(other), full_precision(), torch.no_grad():
        for part in images.split(50):  # maps of larger batches get their memory from the system anew each time
            x = part.to(device, dtype)
            same += int((model(x).argmax(1) == other(x).argmax(1)).sum())
    return 100 * same / len(images)


def agreements(
    model: nn.Module, other: nn.Module, images: Tensor, labels: Tensor | None, attack: PGD | None
) -> dict[str, float]:
    """What a compression cost, on images that it has not seen: `agreement` clean and, if there is an attack, attacked.

    What is attacked is `model`, against the labels, or its own decisions without labels.
    """
    sets = {"clean": images}
    if attack is not None:
        sets["attacked"] = attack_held_back(model, images, labels, attack)
    return {kind: decided_alike(model, other, part) for kind, part in sets.items()}


def attack_held_back(model: nn.Module, images: Tensor, labels: Tensor | None, attack: PGD | None) -> Tensor:
    """Held-back images, attacked in float32 from starts that the calibration has not used."""
    device, dtype = placement(model)
    with full_precision(), evaluating(model):
        return attacked(model, images.to(device, dtype), labels, attack, torch.Generator().manual_seed(1)).cpu()
