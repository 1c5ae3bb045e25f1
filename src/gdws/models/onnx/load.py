"""A network from an ONNX file: read with the checks of untrusted files, built, and compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from gdws.core.checks import check_weights
from gdws.core.errors import GdwsError, first_line
from gdws.deploy.onnx.general import OPERATORS, READ
from gdws.deploy.onnx.operators import unread_attribute
from gdws.deploy.onnx.reading import check_onnx, operator_set, parse_onnx, unreadable_file
from gdws.deploy.onnx.signature import signature_in
from gdws.deploy.packages import require
from gdws.models.onnx.batches import take_any_batch
from gdws.models.onnx.build import build
from gdws.models.onnx.layers import WEIGHTS
from gdws.models.onnx.parity import check_parity

OLDEST = 18
"""The opset that the operators here are of; files of earlier ones are converted."""
OLDER = {"Upsample"}
"""Operators that the conversion replaces."""
READER = "gdws"


def from_onnx(path: Path | str) -> nn.Module:
    """The network of an ONNX file, in eval mode and float32, with layers that can be replaced.

    path  of the file. It is data: nothing in it is executed.

    Convolutions with constant weights are nn.Conv2d, called after the file's weights or nodes; so are linear layers,
    BatchNorm, transposed convolutions and LSTMs of PyTorch's kinds. The module takes the file's inputs in their order or by
    their names, and gives its output or, of several, {name: output}. A file for one sample at a time gives a module for any
    batch. It remembers the names and types of inputs and outputs, for gdws.to_onnx.

    Raises GdwsError when onnx is not installed, the file is not whole, has an operator that is not known here, such as a loop,
    holds NaN, or gives other values than ONNX Runtime does (where that is installed) by a thousandth of the largest.

    >>> import gdws, torch
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))
    >>> images = torch.rand(2, 3, 8, 8)
    >>> gdws.to_onnx(network, "mine.onnx", images[:1])
    >>> again = gdws.models.from_onnx("mine.onnx")
    >>> type(again.get_submodule("0")).__name__, torch.allclose(again(images), network(images), atol=1e-5)
    ('Conv2d', True)
    """
    path = Path(path)
    proto = parse_onnx(path, READER)
    _check_operators(proto, path)
    check_onnx(proto, path, READER, strict=False)
    _check_numbers(proto, path)
    signature = signature_in(proto)
    graph = _of_known_set(proto, path)
    for node in graph.graph.node:
        if found := unread_attribute(require("onnx"), node, operator_set(graph), READ):
            raise GdwsError(f"{path} has {node.op_type} with {found}: expected that left out")
    network = take_any_batch(graph, lambda changed: build(changed, str(path), signature), signature)
    check_weights(network)
    check_parity(network, proto, path)
    return network


def _check_operators(proto: Any, path: Path) -> None:
    """Name what is not known here, before anything else: it is what decides whether a network can be read at all."""
    known = {*OPERATORS, *WEIGHTS, "Constant"}
    named = {".".join(filter(None, (node.domain.removeprefix("ai.onnx"), node.op_type))) for node in proto.graph.node}
    if unknown := sorted(named - known - OLDER):
        more = f" and {len(unknown) - 6} more" if len(unknown) > 6 else ""
        names = ", ".join(name[:40] for name in unknown[:6])
        raise GdwsError(f"{path} has the operators {names}{more}: expected those of gdws.deploy.onnx.general")


def _of_known_set(proto: Any, path: Path) -> Any:
    """The graph with the operators as they are since a set of 2022, and with the shapes that can be inferred."""
    onnx = require("onnx")
    version = operator_set(proto)
    try:
        if version < OLDEST:
            proto = onnx.version_converter.convert_version(proto, OLDEST)
    except Exception as error:
        raise GdwsError(
            f"{path} has opset {version} and cannot be converted ({first_line(error)}): expected {OLDEST} or later"
        ) from None
    _check_operators(proto, path)
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception as error:
        raise unreadable_file(path, READER, error) from None


def _check_numbers(proto: Any, path: Path) -> None:
    onnx = require("onnx")
    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise GdwsError(f"{path} holds NaN in {tensor.name[:40]!r}: expected finite weights")
