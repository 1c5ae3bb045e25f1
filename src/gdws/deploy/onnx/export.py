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
from torch import nn
from torch.export import Dim, ExportedProgram

from gdws.core.errors import GdwsError, first_line
from gdws.core.files import Kind, write_atomically
from gdws.core.unwrap import unwrap
from gdws.deploy.interface import IMAGES, LOGITS, OUTPUT, Given, checked_inputs
from gdws.deploy.onnx.ports import name_ports, name_sizes, take_signature
from gdws.deploy.onnx.signature import Signature, signature_of
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.packages import require
from gdws.deploy.tracing import silence_exporter, trace_model


def to_onnx(model: nn.Module | ExportedProgram, path: Path | str, example: Given) -> None:
    """Export a model as one self-contained ONNX file.

    model    an nn.Module on any device, or what torch.export made of one.
    path     of the file; an ONNX file that is there is replaced.
    example  what the model is called with, which gives the sizes: a tensor, such as images (B, C, H, W), or several as
             gdws.Arguments, a dictionary by name or a tuple. A classifier takes images in [0, 1].

    The batch of the file is free. So are height and width of all inputs (B, C, H, W), unless the model is a classifier or can
    be traced for the example's size only. A model that can be traced for one batch only becomes a file for batches of the
    example's, with a warning; one that was loaded from a file becomes that file. gdws.deploy.onnx.reading.read_signature
    says which sizes a file leaves free: these have names.

    A single tensor is the input `images`; of several each has its name in Arguments, and one by position that of the argument
    of the model's forward pass. A classifier gives `logits` (batch, classes), another model `output`, or the keys of its
    dictionary, or `output`, `output1` and so on for a tuple. Floats are float32. Of a model that came from an ONNX file (it has
    a signature) the file has the names, types and dynamic axes that the other has; inside it computes in float32.

    Nodes with a weight carry its name ("layer1.0.conv1.depthwise"), so that gdws.quantize can speak of them. BatchNorm is
    folded into convolutions where that is exact.

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
    if isinstance(model, ExportedProgram):
        write_program(model, path)
    else:
        write_program(trace_model(model, checked_inputs(example), any_size=True), path, signature_of(unwrap(model)))


def write_program(program: ExportedProgram, path: Path | str, signature: Signature | None = None) -> None:
    """Write what gdws.deploy.tracing made of a model as an ONNX file, with the signature of another, if there is one."""
    require("onnx"), require("onnxscript")
    inputs, outputs = _names(program)
    # A classifier's file is what the exporter makes of it: it is the one that all numbers were measured with.
    plain = (inputs, outputs) == ([IMAGES], [LOGITS]) and signature is None
    names: dict[str, Any] = {"input_names": inputs, "output_names": outputs} if plain else {}
    if plain and program.range_constraints:
        names["dynamic_shapes"] = ({0: Dim("batch")},)
    with silence_exporter():
        try:
            made = torch.onnx.export(program, dynamo=True, verbose=False, **names)
        except Exception as error:
            raise GdwsError(f"the model has no ONNX form: {first_line(error)}") from None
    assert made is not None
    proto = made.model_proto
    _tidy(proto)
    if not plain:
        name_ports(proto, inputs, outputs)
        name_sizes(proto)
    if signature is not None:
        take_signature(proto, signature)
    try:
        content = proto.SerializeToString()
    except ValueError:
        raise GdwsError(f"{path} would be larger than 2 GB: expected a model that fits into one ONNX file") from None
    write_atomically(Path(path), content, Kind.ONNX)


def _names(program: ExportedProgram) -> tuple[list[str], list[str]]:
    """What the file calls the inputs and outputs of a traced model."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    inputs = [str(name) for name in program.graph_signature.user_inputs]
    first, *others = [str(name) for name in program.graph_signature.user_outputs]
    _, named = program.example_inputs or ((), {})
    if len(inputs) == 1 and not named:
        inputs = [IMAGES]
    kind = program.call_spec.out_spec
    if kind is not None and kind.type is dict:
        return inputs, [str(key) for key in kind.context]
    is_classifier = values[first].ndim == 2 and values[first].is_floating_point()
    return inputs, [LOGITS if is_classifier else OUTPUT, *(f"{OUTPUT}{index + 1}" for index in range(len(others)))]


def _tidy(proto: Any) -> None:
    """Name convolutions after their weights and gathers after their layers; drop the exporter's notes, which hold paths."""
    graph = proto.graph
    # Layers of several stages have weights without the ending; OpenVINO gives no two things the same name.
    weights = {weight.name: weight.name.removesuffix(".weight") + ".weight" for weight in graph.initializer}
    uses: Counter[str] = Counter()
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        if node.op_type in ("Conv", "ConvTranspose", "Gemm") and node.input[1] in weights:
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
