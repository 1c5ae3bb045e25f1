"""What a compression cost: how far the outputs of both networks are apart; of classes, how many images get the same class from
both, and how many the right one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gdws.attacks.pgd import PGD
from gdws.calibration.collect import gather_inputs
from gdws.calibration.sensitivity import attacked
from gdws.calibration.tiles import cut_tiles
from gdws.core.checks import AnyBatches, checked_logits, classes, unpack_batch, unpack_inputs
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, full_precision, placement
from gdws.core.hashing import sample_hashes
from gdws.core.inputs import Inputs, call_model, map_tensors, place, split_with_labels
from gdws.core.unwrap import unwrap
from gdws.objectives import OBJECTIVES, Classes, Objective, Values
from gdws.objectives.values import peak_signal_to_noise
from gdws.planning.fidelity_records import HELD_OUT, Fidelity, MetricChange, OutputChange
from gdws.planning.plan import Plan, plan_of
from gdws.planning.significance import paired_change

Metric = Callable[[nn.Module], float]
"""A measure of the user's own: a number for a network, of which more is better."""

SHARE_HELD_BACK = 0.2
"""Share of the calibration images that a budget of points holds back."""
ATTACKED, ATTACKED_AT_ONCE, AT_ONCE = 200, 100, 8
"""Images that are attacked, where nothing depends on how many: an attack takes as long as twenty passes. In such batches;
and samples at a time of networks other than classifiers."""


def hold_back(images: Inputs, labels: Tensor | None) -> tuple[tuple[Inputs, Tensor | None], tuple[Inputs, Tensor | None]]:
    """Samples and labels to calibrate on, and those held back to check on."""
    fit = len(images) - max(1, round(SHARE_HELD_BACK * len(images)))
    if fit < 1:
        raise GdwsError(f"there is {len(images)} calibration image: expected at least 2, to hold some back")
    parts = slice(None, fit), slice(fit, None)
    first, second = ((images[part], None if labels is None else labels[part]) for part in parts)
    return first, second


def refuse_calibration_images(networks: Mapping[str, nn.Module], batches: AnyBatches) -> None:
    """Refuse images that a network was calibrated on: its accuracy there says nothing of others.

    Batches that can be gone through only once are not looked at.
    """
    plans = {name: plan_of(network) for name, network in networks.items()}
    seen = {name: set(plan.images) for name, plan in plans.items() if plan is not None and plan.images}
    if not seen or isinstance(batches, Iterator):  # images that are files are decoded once more for this
        return
    judged = {digest for batch in batches for digest in sample_hashes(map_tensors(unpack_inputs(batch)[0], Tensor.cpu))}
    for name, images in seen.items():
        if shared := images & judged:
            raise GdwsError(
                f"{name} was calibrated on {len(shared)} of these images: expected an evaluation on images that it has not seen"
            )


def agreement(model: nn.Module, other: nn.Module, images: Tensor) -> float:
    """Measure how many images two networks give the same class.

    model   takes images (B, C, H, W) in [0, 1] and returns logits (B, classes).
    other   the network to compare it with, of the same classes.
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
    """Percentage of the images that both models give the same class, whatever they were calibrated on."""
    return 100 * int((decisions(model, images) == decisions(other, images)).sum()) / len(images)


def decisions(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> Tensor:
    """The class (N,) that a model gives each image, on the CPU. It must have a class for every label."""
    device, dtype = placement(model)
    parts = split_with_labels(images, labels, 50)  # maps of larger batches get their memory from the system anew each time
    with evaluating(model), full_precision(), torch.no_grad():
        # Only floats change their type.
        placed = ((part.to(device, dtype if part.is_floating_point() else None), truth) for part, truth in parts)
        return torch.cat([checked_logits(model, part, truth).argmax(1).cpu() for part, truth in placed])


@dataclass(frozen=True)
class CheckImages:
    """Samples and, perhaps, labels that a network is not calibrated on, and where they come from: one of HELD_OUT, TRAINING,
    HELD_BACK of gdws.planning.fidelity_records. Or a measure of the user's own in their place."""

    images: Inputs | None
    labels: Tensor | None = None
    source: str = HELD_OUT
    metric: Metric | None = None

    @classmethod
    def gather(cls, check: AnyBatches | CheckImages | Metric, source: str = HELD_OUT) -> CheckImages:
        """Those of batches, which a user gives."""
        if isinstance(check, CheckImages):
            return check
        return cls(None, metric=check) if callable(check) else cls(*gather_inputs(check), source)

    def refuse(self, calibration: Inputs) -> None:
        """Refuse held-out images that the network is calibrated on: there it says nothing of others."""
        if self.images is None or self.source != HELD_OUT:
            return
        if shared := set(sample_hashes(self.images)) & set(sample_hashes(calibration)):
            raise GdwsError(
                f"{len(shared)} of the {len(self.images)} images to check on are calibration images: expected others"
            )


def attack_of(plan: Plan) -> PGD | None:
    """The attack that the calibration images of a plan were attacked with."""
    return None if plan.attack is None else PGD(**plan.attack)


class DecisionCheck:
    """A classifier on images that others are compared with it on: its predictions, which are computed once.

    attack  made on the network, for the first `most` images: against the labels, or its own predictions without labels.
    """

    def __init__(
        self, model: nn.Module, images: Tensor, labels: Tensor | None, source: str, attack: PGD | None, most: int
    ) -> None:
        self.source, self.images = source, images
        self.labels = None if labels is None else classes(labels, len(images))
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


class OutputCheck:
    """Any network on samples that others are compared with it on: its outputs, which are computed once."""

    def __init__(self, model: nn.Module, samples: Inputs, source: str, objective: Objective) -> None:
        self.source, self.samples = source, cut_tiles(model, samples)
        self.before = list(self._outputs(model))
        self.objective = objective.settled([[value.float() for value in objective.outputs(output)] for output in self.before])

    def _outputs(self, network: nn.Module) -> Iterator[Any]:
        """What a network answers, batch by batch, on the CPU."""
        device, dtype = placement(network)
        with evaluating(network), full_precision(), torch.no_grad():
            for part in self.samples.split(AT_ONCE):
                yield _on_cpu(call_model(network, place(part, device, dtype)))

    def fidelity(self, other: nn.Module) -> OutputChange:
        """The other network beside it."""
        distances, pictures = [], []
        for before, after in zip(self.before, self._outputs(other), strict=True):
            self.objective.check(after, len(self.objective.outputs(before)[0]))
            distances.append(self.objective.distances(before, after))
            pictures.append((self.objective.outputs(before), self.objective.outputs(after)))
        found = torch.cat(distances)
        mean, half = float(found.mean()), 1.96 * float(found.std(correction=0)) / math.sqrt(len(found))
        low, high = max(0.0, mean - half), mean + half
        if isinstance(self.objective, Values):  # of squares
            mean, low, high = (math.sqrt(value) for value in (mean, low, high))
        return OutputChange(
            objective=self.objective.name,
            unit=self.objective.unit,
            source=self.source,
            samples=len(found),
            distance=mean,
            low=low,
            high=high,
            noise=_noise(pictures),
        )


class MetricCheck:
    """A measure of the user's own, taken of the original once."""

    def __init__(self, model: nn.Module, metric: Metric) -> None:
        self.metric = metric
        self.name = str(getattr(metric, "__name__", type(metric).__name__))
        self.before = self._measured(model)

    def _measured(self, network: nn.Module) -> float:
        with evaluating(network):
            found = self.metric(network)
        try:
            number = float(found)
        except (TypeError, ValueError):
            raise GdwsError(f"the measure {self.name} gives a {type(found).__name__}: expected a number") from None
        if not math.isfinite(number):
            raise GdwsError(f"the measure {self.name} gives {number}: expected a finite number")
        return number

    def fidelity(self, other: nn.Module) -> MetricChange:
        return MetricChange(name=self.name, before=self.before, after=self._measured(other))


Check = DecisionCheck | OutputCheck | MetricCheck


def build_check(
    model: nn.Module, check: CheckImages, attack: PGD | None, objective: Objective | str, most: int = ATTACKED
) -> Check:
    """What compressed networks are compared with the original on. objective: or its name in a plan."""
    if check.metric is not None:
        return MetricCheck(model, check.metric)
    assert check.images is not None
    if isinstance(objective, str):
        objective = OBJECTIVES.get(objective, Values)()
    if isinstance(objective, Classes) and isinstance(check.images, Tensor):
        return DecisionCheck(model, check.images, check.labels, check.source, attack, most)
    return OutputCheck(model, check.images, check.source, objective)


def _on_cpu(output: Any) -> Any:
    """An output, nested in lists and dictionaries, with its tensors on the CPU."""
    if isinstance(output, Tensor):
        return output.cpu()
    if isinstance(output, Mapping):
        return {name: _on_cpu(value) for name, value in output.items()}
    if isinstance(output, list | tuple):
        return [_on_cpu(value) for value in output]
    return output


def _noise(batches: list[tuple[list[Tensor], list[Tensor]]]) -> float | None:
    """PSNR of all pictures together, where each output is one batch of pictures."""
    if any(len(before) != 1 or before[0].ndim != 4 for before, _ in batches):
        return None
    before, after = (torch.cat([pair[index][0].flatten() for pair in batches]) for index in (0, 1))
    unit = float(before.min()) >= -0.1 and float(before.max()) <= 1.1
    found = peak_signal_to_noise(before, after, 1.0 if unit else None)
    return found if math.isfinite(found) else None


def attack_held_back(model: nn.Module, images: Tensor, labels: Tensor | None, attack: PGD) -> Tensor:
    """Held-back images, attacked in float32 from starts that the calibration has not used."""
    device, dtype = placement(model)
    generator = torch.Generator().manual_seed(1)
    parts = split_with_labels(images, labels, ATTACKED_AT_ONCE)
    with full_precision(), evaluating(model):
        return torch.cat([attacked(model, part.to(device, dtype), truth, attack, generator).cpu() for part, truth in parts])
