"""A model as one ONNX file.

The graph is what the engines run best: BatchNorm folded into the convolution before it where nothing else reads that
convolution's output, a GDWS layer as Gather -> depthwise Conv -> pointwise Conv (no Gather where every channel is used once).
A BatchNorm that no convolution precedes, as in pre-activation networks, stays one node: both engines turn it into a scale and
shift in their own layout. The input normalization stays too: a zero-padded convolution cannot take its shift exactly.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from gdws.core.files import Kind, write_atomically
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.packages import require
from gdws.deploy.tracing import free_batch, silence_exporter, trace_model
from gdws.errors import GdwsError, first_line


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
    shapes = free_batch() if program.range_constraints else None
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
