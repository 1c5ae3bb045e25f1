"""A model as one ONNX file, and the proof that the file decides as the model does.

The graph is what the engines run best: BatchNorm folded into the convolution before it where nothing else reads that
convolution's output, a GDWS layer as Gather -> depthwise Conv -> pointwise Conv (no Gather where every channel is used once).
A BatchNorm that no convolution precedes, as in pre-activation networks, stays one node: both engines turn it into a scale and
shift in their own layout. The input normalization stays too: a zero-padded convolution cannot take its shift exactly.
"""

from __future__ import annotations

import logging
import math
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from gdws.core.checks import checked_logits, unpack_batch
from gdws.core.execution import evaluating, own_copy, placement, private_copy
from gdws.core.files import Kind, write_atomically
from gdws.core.unwrap import unwrap
from gdws.deploy.packages import require
from gdws.deploy.runtimes import OnnxRuntime
from gdws.deploy.straight_through import StraightThrough
from gdws.errors import GdwsError, first_line

_EXPORTER = threading.RLock()
TIE = 1e-4
"""Two classes whose logits differ by less are tied: rounding may decide between them."""


def to_onnx(model: nn.Module | ExportedProgram, path: Path | str, example: Tensor) -> None:
    """Export a model as one self-contained ONNX file.

    model    an nn.Module on any device, or what torch.export made of one.
    path     of the file; an ONNX file that is there is replaced.
    example  images (B, C, H, W) in [0, 1], which give the size; the batch of the file is dynamic. A model that can be
             traced for batches of one size only becomes a file for batches of the example's, with a warning; one that was
             loaded from a file becomes that file.

    The file takes float32 `images` (batch, C, H, W) in [0, 1] and gives `logits` (batch, classes). Nodes with a weight carry
    its name ("layer1.0.conv1.depthwise"), so that gdws.quantize can speak of them. BatchNorm is folded into convolutions where
    that is exact.

    Raises GdwsError when onnx or onnxscript is not installed, the model cannot be traced, the file
    would be larger than 2 GB, or it cannot be written.

    >>> import gdws, torch
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))
    >>> images = torch.rand(8, 3, 8, 8)
    >>> gdws.to_onnx(network, "network.onnx", images[:1])
    >>> gdws.verify("network.onnx", network, images).changed
    0
    """
    if isinstance(model, StraightThrough):
        write_atomically(Path(path), model.path.read_bytes(), Kind.ONNX)
        return
    require("onnx"), require("onnxscript")
    program = model if isinstance(model, ExportedProgram) else trace_model(model, example)
    shapes = _batch() if program.range_constraints else None
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["logits"]}
    with silence_exporter():
        try:
            made = torch.onnx.export(program, dynamo=True, verbose=False, dynamic_shapes=shapes, **names)
        except Exception as error:
            raise GdwsError(f"the model has no ONNX form: {first_line(error)}") from None
    assert made is not None
    proto = made.model_proto
    _tidy(proto)
    try:
        content = proto.SerializeToString()
    except ValueError:
        raise GdwsError(f"{path} would be larger than 2 GB: expected a model that fits into one ONNX file") from None
    write_atomically(Path(path), content, Kind.ONNX)


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
    return _trace(model, pair, _batch())


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

    Returns gdws.deploy.onnx.Parity: the number of images, the largest difference of a logit, and the decisions that changed
    although the model's two best logits differ by more than 1e-4. Raises GdwsError when a logit differs by more than the
    tolerance or a decision changes, when onnxruntime is not installed, or when the file cannot be read or run.

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


def _batch() -> tuple[dict[int, Dim]]:
    return ({0: Dim("batch")},)


def _tidy(proto: Any) -> None:
    """Name convolutions after their weights and gathers after their layers; drop the exporter's notes, which hold paths."""
    graph = proto.graph
    # Layers of several stages have weights without the ending; OpenVINO gives no two things the same name.
    weights = {weight.name: weight.name.removesuffix(".weight") + ".weight" for weight in graph.initializer}
    uses: Counter[str] = Counter()
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        if node.op_type in ("Conv", "Gemm") and node.input[1] in weights:
            uses[node.input[1]] += 1
            again = f".use{uses[node.input[1]]}" if uses[node.input[1]] > 1 else ""
            node.name = weights[node.input[1]].removesuffix(".weight") + again
    gathers = {node.output[0]: node for node in graph.node if node.op_type == "Gather"}
    for node in graph.node:
        if ".depthwise" in node.name and node.input[0] in gathers:
            gathers[node.input[0]].name = node.name.replace(".depthwise", ".gather")
    renamed = {old: weights[old] for old in uses}
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    for value in (*graph.value_info, *graph.input, *graph.output, *graph.initializer):
        value.name = renamed.get(value.name, value.name)
        del value.metadata_props[:]
    del graph.metadata_props[:], proto.metadata_props[:]


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
