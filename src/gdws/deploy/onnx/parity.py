"""The proof that an ONNX file decides as its model does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gdws.core.checks import checked_logits, unpack_batch
from gdws.core.execution import evaluating, placement
from gdws.core.unwrap import unwrap
from gdws.deploy.runtimes import OnnxRuntime
from gdws.errors import GdwsError

TIE = 1e-4
"""Two classes whose logits differ by less are tied: rounding may decide between them."""


@dataclass(frozen=True)
class Parity:
    """How far an exported file is from its model.

    images      number of images that both decided.
    difference  the largest absolute difference of a logit.
    changed     decisions that differ although the model's two best logits are more than 1e-4 apart.
    """

    images: int
    difference: float
    changed: int


def verify(path: Path | str, model: nn.Module, images: Tensor, *, tolerance: float | None = 1e-3, batch: int = 100) -> Parity:
    """Run an ONNX file in ONNX Runtime beside its model, and refuse it where they differ.

    path       of the file.
    model      that it was exported from. It is left as it was found.
    images     (N, C, H, W) in [0, 1]: clean ones, or adversarial ones.
    tolerance  the largest difference of a logit; None only measures, for int8.
    batch      images at a time.

    Returns gdws.deploy.onnx.parity.Parity: the number of images, the largest difference of a logit, and the decisions that
    changed although the model's two best logits differ by more than 1e-4. Raises GdwsError when a logit differs by more than
    the tolerance or a decision changes, when onnxruntime is not installed, or when the file cannot be read or run.

    >>> import gdws, torch
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))
    >>> gdws.to_onnx(network, "exported.onnx", torch.rand(1, 3, 8, 8))
    >>> gdws.verify("exported.onnx", network, torch.rand(20, 3, 8, 8)).difference < 1e-4
    True
    """
    images, _ = unpack_batch(images)
    model, session = unwrap(model), OnnxRuntime(Path(path))
    batch = session.batch or batch
    device, dtype = placement(model)
    difference, changed = 0.0, 0
    with evaluating(model), torch.inference_mode():
        for part in images.split(batch):
            missing = batch - len(part) if session.batch else 0
            whole = torch.cat([part, part[-1:].expand(missing, *part.shape[1:])])
            wanted = checked_logits(model, whole.to(device, dtype)).float().cpu()[: len(part)]
            given = session(whole)[: len(part)]
            if given.shape != wanted.shape:
                raise GdwsError(f"{path} gives logits {tuple(given.shape)}: expected {tuple(wanted.shape)}, as the model does")
            difference = max(difference, _largest(given - wanted))
            best = wanted.topk(2).values if wanted.shape[1] > 1 else wanted[:, :1] + torch.tensor([TIE, 0])
            changed += int(((given.argmax(1) != wanted.argmax(1)) & (best[:, 0] - best[:, 1] > TIE)).sum())
    if tolerance is not None and (not difference <= tolerance or changed):
        raise GdwsError(
            f"{path} differs from its model by {difference:.2g} in a logit and in {changed} of {len(images)} decisions: "
            f"expected at most {tolerance:g} and 0"
        )
    return Parity(len(images), difference, changed)


def _largest(difference: Tensor) -> float:
    """The largest magnitude, infinite where something is not a number."""
    return float(difference.abs().nan_to_num(nan=math.inf).max())
