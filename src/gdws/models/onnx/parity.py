"""The network of a file compared with the file itself in ONNX Runtime."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdws.core.errors import GdwsError, first_line
from gdws.core.execution import full_precision
from gdws.deploy.onnx.signature import Signature, signature_of
from gdws.deploy.packages import require
from gdws.models.onnx.network import OnnxNetwork, outputs_of
from gdws.models.onnx.noise import SIDES, is_single, noise

TOLERANCE, OF_HALF = 1e-3, 3e-2
"""Shares of an output's largest value by which the network may differ: of files in float32, and of those in 16 bits."""
TIED = 0.01
"""Share of an output's whole numbers, such as classes, that may differ: rounding decides between tied ones."""
SMALLEST = 1e-3
"""Outputs below this count as so large: what a sigmoid gives far from its step is rounding alone."""
HALF = (10, 16)


def check_parity(network: OnnxNetwork, proto: Any, path: Path) -> None:
    """Refuse a network that gives other values than its file on noise; where onnxruntime is not installed, one that fails."""
    signature = signature_of(network)
    assert signature is not None
    session = _session(proto, path) if importlib.util.find_spec("onnxruntime") else None
    failed: Exception | None = None
    for side in SIDES if any(not isinstance(size, int) for port in signature.inputs for size in port.shape[1:]) else SIDES[:1]:
        tensors = noise(signature, 2, side)
        try:
            wanted = None if session is None else _in_runtime(session, signature, tensors)
            with torch.no_grad(), full_precision():
                found = network(*tensors)
        except Exception as error:  # of another size it may run
            failed = failed or error
            continue
        if wanted is not None:
            _compare(outputs_of(found), wanted, signature, path, _tolerance(proto))
        return
    assert failed is not None
    if isinstance(failed, GdwsError):
        raise failed
    raise GdwsError(f"{path} cannot be run on noise: {first_line(failed)}")


def _session(proto: Any, path: Path) -> Any:
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # fast to make; it runs once
    try:
        return runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise GdwsError(f"{path} is not an ONNX model that ONNX Runtime reads: {first_line(error)}") from None


def _in_runtime(session: Any, signature: Signature, tensors: list[Tensor]) -> list[Tensor]:
    """What the file itself gives, one sample at a time where it takes one."""
    single = is_single(signature)
    parts = [[value[row : row + 1] for value in tensors] for row in range(len(tensors[0]))] if single else [tensors]
    rows = []
    for part in parts:
        given = {
            port.name: value.numpy().astype("float16") if port.dtype == "float16" else value.numpy()
            for port, value in zip(signature.inputs, part, strict=True)
        }
        rows.append([torch.from_numpy(each) for each in session.run(None, given)])
    return [torch.cat(column) for column in zip(*rows, strict=True)] if single else rows[0]


def _tolerance(proto: Any) -> float:
    graph = proto.graph
    kinds = {tensor.data_type for tensor in graph.initializer} | {value.type.tensor_type.elem_type for value in graph.input}
    return OF_HALF if kinds & set(HALF) else TOLERANCE


def _compare(found: list[Tensor], wanted: list[Tensor], signature: Signature, path: Path, tolerance: float) -> None:
    for port, given, true in zip(signature.outputs, found, wanted, strict=True):
        if given.shape != true.shape:
            raise GdwsError(
                f"the network of {path} gives {tuple(given.shape)} for {port.name[:40]!r}: expected {tuple(true.shape)}, as "
                "ONNX Runtime does"
            )
        if not true.is_floating_point():
            difference, most = float((given != true).double().mean()) if true.numel() else 0.0, TIED
        else:
            left, right = given.double(), true.double()
            largest = float(right[right.isfinite()].abs().max()) if bool(right.isfinite().any()) else 1.0
            apart = (left - right).abs().masked_fill(left.eq(right) | (left.isnan() & right.isnan()), 0)
            difference = float(apart.nan_to_num(nan=math.inf).max()) / max(largest, SMALLEST) if true.numel() else 0.0
            most = tolerance
        if not difference <= most:
            raise GdwsError(
                f"the network of {path} differs from ONNX Runtime by {difference:.2g} of the largest value of "
                f"{port.name[:40]!r}: expected at most {most:g}"
            )
