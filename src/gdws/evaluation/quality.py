"""How good a network other than a classifier is: against the truth, against the original, or by a measure of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gdws.compression.fidelity import CheckImages, Metric, MetricCheck, attack_of, build_check, refuse_calibration_images
from gdws.core.checks import AnyBatches, unpack_inputs
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, full_precision, placement
from gdws.core.inputs import Inputs, call_model, floats_in, place
from gdws.core.unwrap import unwrap
from gdws.objectives import Objective
from gdws.objectives.fitting import find_objective
from gdws.planning.fidelity_records import AnyFidelity
from gdws.planning.plan import plan_of

AT_ONCE = 4
"""Samples that run together: outputs may be large."""


@dataclass(frozen=True)
class Quality:
    """What a measure says of a network.

    name     of the measure: "PSNR", "pixels right" or that of the user's function.
    value    in its unit; more is better.
    unit     "dB", "%", or empty.
    samples  that it was measured on; 0 where only the user's function knows.
    """

    name: str
    value: float
    unit: str
    samples: int

    def __str__(self) -> str:
        where = f" on {self.samples} samples" if self.samples else ""
        return f"{self.name} {self.value:.4g}{' ' if self.unit else ''}{self.unit}{where}"

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def quality(model: nn.Module, truth: AnyBatches | Metric) -> Quality:
    """Measure a network against the truth: PSNR of pictures and other values, or the share of correct pixels.

    model  any network but a classifier of whole samples, for which there is gdws.evaluate.
    truth  batches of (inputs, targets): targets of the outputs' shape, for which the mean over the samples of
           10 log10(peak^2 / mean squared error) is given, the peak being 1 for targets in [0, 1], else their largest minus
           their smallest value; or class numbers (B, H, W). Or a function that gives a number for a network, more being better.

    Returns Quality. Raises GdwsError when a batch has no targets or others than the outputs, or when the network was calibrated
    on some of the samples.

    >>> import gdws, torch
    >>> model = torch.nn.Conv2d(3, 3, 3, padding=1)
    >>> x = torch.rand(2, 3, 8, 8)
    >>> gdws.quality(model, [(x, model(x).detach() + 0.1)]).name
    'PSNR'
    """
    if callable(truth):
        found = MetricCheck(model, truth)
        return Quality(found.name, found.before, "", 0)
    batches = list(truth) if isinstance(truth, Iterator) else truth
    refuse_calibration_images({"the network": model}, batches)
    network = unwrap(model)
    values: list[float] = []
    name, unit = "", ""
    with evaluating(network), full_precision(), torch.no_grad():
        for batch in batches:
            inputs, targets = unpack_inputs(batch)
            if targets is None:
                raise GdwsError("a batch has no targets: expected (inputs, targets), or a measure of your own")
            parts: list[Inputs] = list(inputs.split(AT_ONCE))
            for part, wanted in zip(parts, targets.split(AT_ONCE), strict=True):
                output = floats_in(call_model(network, place(part, *placement(network))))[0].float().cpu()
                (name, unit), measured = _measured(output, wanted.cpu())
                values += measured
    if not values:
        raise GdwsError("the evaluation data is empty: expected at least one batch")
    return Quality(name, sum(values) / len(values), unit, len(values))


def _measured(output: Tensor, wanted: Tensor) -> tuple[tuple[str, str], list[float]]:
    if not wanted.is_floating_point() and output.ndim == 4 and wanted.shape == (len(output), *output.shape[2:]):
        return ("pixels right", "%"), (100 * (output.argmax(1) == wanted).double().mean((1, 2))).tolist()
    if wanted.shape != output.shape or not wanted.is_floating_point():
        raise GdwsError(
            f"targets are {wanted.dtype} {tuple(wanted.shape)}: expected floats {tuple(output.shape)}, as the outputs, or "
            "class numbers of their pixels"
        )
    low, high = float(wanted.min()), float(wanted.max())
    peak = 1.0 if low >= 0 and high <= 1 else high - low
    errors = (output.double() - wanted.double()).square()[..., None].flatten(1).mean(1).clamp_min(1e-20)
    return ("PSNR", "dB"), (10 * (peak**2 / errors).log10()).tolist()


def fidelity(
    model: nn.Module, other: nn.Module, images: AnyBatches | Metric, objective: str | Objective = "auto"
) -> AnyFidelity:
    """Measure how near the outputs of a network are to the original's, on samples that neither was calibrated on.

    model      the original.
    other      the network to compare it with, such as what gdws.compress made of it.
    images     batches as in gdws.compress, for a classifier with labels or without; or a measure of your own.
    objective  by which distances are measured; by default that of the other's plan, or what the shapes speak for.

    Returns a record of gdws.planning.fidelity_records: print it, or read its fields. Raises GdwsError when a network was
    calibrated on some of the samples, or the outputs do not fit the objective.

    >>> import gdws, torch
    >>> model = torch.nn.Conv2d(3, 3, 3, padding=1)
    >>> print(gdws.fidelity(model, model, [torch.rand(6, 3, 8, 8)]))
    0.00 % relative error, on 6 held-out samples (95 % interval 0.00 to 0.00)
    """
    check, made = CheckImages.gather(images), plan_of(other)
    attack = None if made is None else attack_of(made)
    model, network = unwrap(model), unwrap(other)
    if check.images is not None:
        refuse_calibration_images({"the first model": model, "the second model": other}, [check.images])
        if objective == "auto" and made is not None:
            objective = made.objective
        elif objective == "auto":
            objective = find_objective(objective, model, check.images, check.labels)
    return build_check(model, check, attack, objective).fidelity(network)
