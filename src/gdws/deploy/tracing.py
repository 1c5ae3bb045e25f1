"""A model in eval mode, float32 and on the CPU as a graph that torch.export traces."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from gdws.core.checks import checked_logits, unpack_batch
from gdws.core.execution import evaluating, own_copy, placement, private_copy
from gdws.core.unwrap import unwrap
from gdws.errors import GdwsError, first_line

_EXPORTER = threading.RLock()


def trace_model(model: nn.Module, example: Tensor) -> ExportedProgram:
    """The model in eval mode, float32 and on the CPU as a torch.export graph for any batch or, failing that, the example's."""
    try:
        return trace_any_batch(model, example)
    except GdwsError as error:
        images, _ = unpack_batch(example)
        program = _trace(model, images, None)
        warnings.warn(f"what is made of this model takes batches of {len(images)} only: {error}", stacklevel=2)
        return program


def trace_any_batch(model: nn.Module, example: Tensor) -> ExportedProgram:
    """The model as `trace_model` gives it, with a dynamic batch."""
    images, _ = unpack_batch(example)
    pair = images[:1].repeat(2, 1, 1, 1)  # a batch of one would be taken for a constant
    return _trace(model, pair, free_batch())


def _trace(model: nn.Module, images: Tensor, shapes: tuple[dict[int, Dim]] | None) -> ExportedProgram:
    model, images = private_copy(unwrap(model)), images.to("cpu", torch.float32)
    if placement(model) != (torch.device("cpu"), torch.float32):
        model = own_copy(model).to("cpu", torch.float32)
    with silence_exporter(), evaluating(model), torch.no_grad():
        checked_logits(model, images)
        try:
            return torch.export.export(model, (images,), dynamic_shapes=shapes)
        except Exception as error:
            size = "any size" if shapes else f"{len(images)}"
            raise GdwsError(f"the model cannot be traced for a batch of {size} ({first_line(error)})") from None


def free_batch() -> tuple[dict[int, Dim]]:
    return ({0: Dim("batch")},)


@contextmanager
def silence_exporter() -> Iterator[None]:
    """Inside, torch's exporter keeps to itself what it warns of (its own deprecations, an absent torchvision) and the graphs
    that it prints where it fails. One thread at a time: the exporter is for one, and so is what silences it."""
    with _EXPORTER:
        before = logging.root.manager.disable
        logging.disable(logging.ERROR)
        try:
            with warnings.catch_warnings(), redirect_stderr(StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(before)
