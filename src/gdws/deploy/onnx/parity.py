"""The proof that an ONNX file answers as its model does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gdws.core.checks import checked_logits
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, placement
from gdws.core.inputs import Inputs, call_model, floats_in, map_tensors, place
from gdws.core.unwrap import unwrap
from gdws.deploy.interface import Given, are_logits, check_range, checked_inputs
from gdws.deploy.onnx.signature import signature_of
from gdws.deploy.runtimes import OnnxRuntime

TIE = 1e-4
"""Two classes whose logits differ by less are tied: rounding may decide between them."""


@dataclass(frozen=True)
class Parity:
    """How far an exported file is from its model.

    images      number of images, or of other samples, that both answered.
    difference  of a classifier the largest absolute difference of a logit; of another model the largest difference of a
                value, as a share of the largest magnitude in the same output.
    changed     predictions of a classifier that differ although the model's two best logits are more than 1e-4 apart; 0 of
                other models.
    """

    images: int
    difference: float
    changed: int


def verify(path: Path | str, model: nn.Module, images: Given, *, tolerance: float | None = 1e-3, batch: int = 100) -> Parity:
    """Compare an ONNX file in ONNX Runtime with its model, and refuse it where they differ.

    path       of the file.
    model      that it was exported from. It is left as it was found.
    images     what both are called with: images (N, C, H, W), clean or adversarial ones, which for a classifier are in [0, 1];
               or gdws.Arguments of several tensors.
    tolerance  the largest difference; None only measures, for int8.
    batch      samples at a time.

    A model with one output (B, classes) is taken for a classifier: its logits and predictions are compared. Of another model
    all floating-point outputs are, in their order, each in the unit of the largest magnitude in it.

    Returns gdws.deploy.onnx.parity.Parity: the number of images, the largest difference, and the predictions that changed
    although the model's two best logits differ by more than 1e-4. Raises GdwsError when the difference is above the tolerance
    or a prediction changes, when onnxruntime is not installed, or when the file cannot be read or run.

    >>> import gdws, torch
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))
    >>> gdws.to_onnx(network, "exported.onnx", torch.rand(1, 3, 8, 8))
    >>> gdws.verify("exported.onnx", network, torch.rand(20, 3, 8, 8)).difference < 1e-4
    True
    """
    images = checked_inputs(images)
    model, session = unwrap(model), OnnxRuntime(Path(path))
    device, dtype = placement(model)
    with evaluating(model), torch.inference_mode():
        first = place(_filled(images[:1], session.batch or 1), device, dtype)
        is_classifier = are_logits(call_model(model, first), first)
        has_own_range = signature_of(model) is not None
        if is_classifier and not has_own_range:
            check_range(images)
        distance = _Distance(Path(path), is_classifier)
        for part in images.split(session.batch or batch):
            whole = _filled(part, session.batch or len(part))
            placed = place(whole, device, dtype)
            if is_classifier and isinstance(placed, Tensor) and not has_own_range:
                wanted = checked_logits(model, placed)
            else:
                wanted = call_model(model, placed)
            distance.add(_rows(session(whole), whole, part), _rows(wanted, whole, part))
    difference, changed = distance.largest(), distance.changed
    if tolerance is not None and (not difference <= tolerance or changed):
        if is_classifier:
            what = f"by {difference:.2g} in a logit and in {changed} of {len(images)} predictions"
            raise GdwsError(f"{path} differs from its model {what}: expected at most {tolerance:g} and 0")
        what = f"by {difference:.2g} of the largest magnitude of an output"
        raise GdwsError(f"{path} differs from its model {what}: expected at most {tolerance:g}")
    return Parity(len(images), difference, changed)


class _Distance:
    """How far the outputs of a file are from those of its model, batch by batch."""

    def __init__(self, path: Path, is_classifier: bool) -> None:
        self.path, self.is_classifier, self.changed = path, is_classifier, 0
        self.differences: list[float] = []
        self.magnitudes: list[float] = []

    def add(self, given: list[Tensor], wanted: list[Tensor]) -> None:
        shapes, expected = ([tuple(value.shape) for value in each] for each in (given, wanted))
        if shapes != expected:
            what = "logits" if self.is_classifier else "outputs"
            shown = [", ".join(map(str, each)) or "none" for each in (shapes, expected)]
            raise GdwsError(f"{self.path} gives {what} {shown[0]}: expected {shown[1]}, as the model does")
        apart = [_largest(one - other) for one, other in zip(given, wanted, strict=True)]
        sizes = [_largest(value) for value in wanted]
        self.differences = [max(pair) for pair in zip(self.differences or [0.0] * len(apart), apart, strict=True)]
        self.magnitudes = [max(pair) for pair in zip(self.magnitudes or [0.0] * len(sizes), sizes, strict=True)]
        if self.is_classifier:
            self.changed += _changed(given[0], wanted[0])

    def largest(self) -> float:
        if not self.differences:
            raise GdwsError(f"the model of {self.path} gives no floating-point numbers: expected some to compare")
        if self.is_classifier:
            return self.differences[0]
        smallest = torch.finfo(torch.float32).tiny
        return max(apart / max(size, smallest) for apart, size in zip(self.differences, self.magnitudes, strict=True))


def _changed(given: Tensor, wanted: Tensor) -> int:
    """Predictions that differ although they are no ties."""
    best = wanted.topk(2).values if wanted.shape[1] > 1 else wanted[:, :1] + torch.tensor([TIE, 0])
    return int(((given.argmax(1) != wanted.argmax(1)) & (best[:, 0] - best[:, 1] > TIE)).sum())


def _filled(part: Inputs, rows: int) -> Inputs:
    """The samples, the last of them repeated until there are so many."""
    return map_tensors(part, lambda value: torch.cat([value, value[-1:].expand(rows - len(value), *value.shape[1:])]))


def _rows(output: Any, whole: Inputs, part: Inputs) -> list[Tensor]:
    """The floats of an output, of the samples that were not filled up."""
    floats = [value.float().cpu() for value in floats_in(output)]
    return [value[: len(part)] if value.ndim and len(value) == len(whole) else value for value in floats]


def _largest(difference: Tensor) -> float:
    """The largest magnitude, infinite where something is not a number."""
    return float(difference.abs().nan_to_num(nan=math.inf).max()) if difference.numel() else 0.0
