"""A model in eval mode, float32 and on the CPU as a graph that torch.export traces, for inputs of as many sizes as it can be.

What the graph gives are tensors by name where the model gives several (gdws.deploy.interface).
"""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection

from gdws.core.checks import checked_logits
from gdws.core.errors import GdwsError, first_line
from gdws.core.execution import evaluating, own_copy, placement, private_copy
from gdws.core.inputs import Inputs, call_model, names_of, place, repeat_first, tensors_of
from gdws.core.unwrap import unwrap
from gdws.deploy.interface import Outputs, are_logits, check_range, is_alone, named_outputs
from gdws.deploy.onnx.signature import match_ports, signature_of

_EXPORTER = threading.RLock()
Free = list[tuple[int, ...]]
"""The axes of each input whose sizes are free."""


def trace_model(model: nn.Module, example: Inputs, *, any_size: bool = False) -> ExportedProgram:
    """The model in eval mode, float32 and on the CPU as a torch.export graph for any batch or, failing that, the example's.

    any_size: also for images of any height and width, unless the model is a classifier or cannot be traced so; of a model that
    came from a file, for all sizes that are free there.
    """
    tracer = _Tracer(model, example)
    try:
        return tracer.trace_widest(any_size)
    except GdwsError as error:
        program = tracer.trace([()] * len(tensors_of(example)))
        count = len(tensors_of(example)[0])
        warnings.warn(f"what is made of this model takes batches of {count} only: {error}", stacklevel=2)
        return program


def trace_any_batch(model: nn.Module, example: Inputs, *, any_size: bool = False) -> ExportedProgram:
    """The model as `trace_model` gives it, with a dynamic batch, unless it came from a file that has one of its own."""
    return _Tracer(model, example).trace_widest(any_size)


def has_one_size(program: ExportedProgram) -> bool:
    """Whether at most the batch of all inputs is free."""
    given = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder") if node.name in given]
    return all(isinstance(size, int) for value in values for size in value.shape[1:])


class _Tracer:
    """A model and inputs to trace it with, both in float32 and on the CPU.

    Refuses what was scripted, images for a classifier that are not in [0, 1], and answers of a classifier that are no logits. A
    model that came from a file has a range of its own, and answers as the file does.
    """

    def __init__(self, model: nn.Module, example: Inputs) -> None:
        network = unwrap(model)
        if isinstance(network, torch.jit.ScriptModule):
            raise GdwsError(f"the model is a {type(network).__name__}: expected the nn.Module that it was made from")
        self.signature = signature_of(network)
        self.example = place(example, "cpu", torch.float32)
        self.model = private_copy(network)
        if placement(self.model) != (torch.device("cpu"), torch.float32):
            self.model = own_copy(self.model).to("cpu", torch.float32)
        with silence_exporter(), evaluating(self.model), torch.no_grad():
            output = call_model(self.model, self.example)
            self.is_classifier = are_logits(output, self.example)
            if self.signature is None and (self.is_classifier or is_alone(output, example)):
                check_range(example)
            if self.is_classifier and isinstance(self.example, Tensor) and self.signature is None:
                checked_logits(self.model, self.example)
        # What torch.export does not know as a container, such as a dataclass, would otherwise stop it.
        self.model.register_forward_hook(partial(_named, taken=_names_taken(network, example)))

    def trace_widest(self, any_size: bool) -> ExportedProgram:
        """For as many sizes as it can be, but for any batch at least."""
        *wider, batch = self._free_sizes(any_size)
        for free in wider:
            try:
                return self.trace(free)
            except GdwsError:
                continue
        return self.trace(batch)

    def trace(self, free: Free) -> ExportedProgram:
        # A batch of one would be taken for a constant.
        inputs = repeat_first(self.example, 2) if all(0 in axes for axes in free) else self.example
        shapes, batch = ShapesCollection(), Dim("batch")
        for value, axes in zip(tensors_of(inputs), free, strict=True):
            if axes:
                shapes[value] = {axis: batch if axis == 0 else Dim.DYNAMIC for axis in axes}
        arguments, named = ((inputs,), {}) if isinstance(inputs, Tensor) else (inputs.positional, inputs.named)
        dynamic = any(free)
        with silence_exporter(), evaluating(self.model), torch.no_grad():
            try:
                given = shapes.dynamic_shapes(self.model, arguments, named) if dynamic else None
                return torch.export.export(self.model, arguments, named, dynamic_shapes=given)
            except Exception as error:
                size = "any size" if dynamic else f"{len(tensors_of(inputs)[0])}"
                raise GdwsError(f"the model cannot be traced for a batch of {size} ({first_line(error)})") from None

    def _free_sizes(self, any_size: bool) -> list[Free]:
        """What to try, the most first; the last has a free batch, unless the file that the model came from has none."""
        tensors = tensors_of(self.example)
        if self.signature is None:
            any_size = any_size and not self.is_classifier
            batch: Free = [(0,)] * len(tensors)
            whole: Free = [(0, 2, 3) if value.ndim == 4 and value.is_floating_point() else (0,) for value in tensors]
        else:
            ports = dict(zip(match_ports(self.example, self.signature.inputs), self.signature.inputs, strict=True))
            shapes = [ports[index].shape or (None,) * value.ndim for index, value in enumerate(tensors)]
            whole = [tuple(axis for axis, size in enumerate(shape) if not isinstance(size, int)) for shape in shapes]
            batch = [axes[:1] if axes[:1] == (0,) else () for axes in whole]
        return [whole, batch] if any_size and whole != batch else [batch]


def _names_taken(model: nn.Module, inputs: Inputs) -> set[str]:
    """What the inputs may be called in a file."""
    return {*names_of(inputs), *inspect.signature(model.forward).parameters}


def _named(module: nn.Module, inputs: Any, output: Any, taken: set[str]) -> Outputs:
    """A forward hook: what the model gives as a tensor, or tensors by name, each of its own."""
    found = named_outputs(output, taken)
    if isinstance(found, dict):
        seen: set[int] = set()
        for name, value in found.items():
            found[name] = value.clone() if id(value) in seen else value
            seen.add(id(value))
    return found


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
