"""Post-training int8, by the engines' own tools: ONNX Runtime's static quantization for ONNX files, NNCF for OpenVINO.

Both give every output channel of a weight its own scale and every activation one, from the smallest and largest value that
calibration images cause; they need no labels. Convolutions and the last layer become int8, the input normalization stays
float. Without VNNI instructions an x86 CPU adds two products of a byte and a byte in 16 bits, which overflow: weights then
use 7 bits.

A BatchNorm that no convolution could take becomes a 1x1 depthwise convolution first, one int8 node where it would be a float
island between layout changes: its weight is one number a channel, which a scale of its own represents exactly. Between the two
convolutions of a factorized one, channels are brought to one scale first (gdws.deploy.onnx.equalizing; NNCF does it itself).
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gdws.core.errors import GdwsError, first_line
from gdws.core.files import Kind, scratch_folder, write_atomically
from gdws.core.inputs import Inputs
from gdws.deploy.interface import Given, check_range, checked_inputs
from gdws.deploy.onnx.equalizing import equalize
from gdws.deploy.onnx.reading import parse_onnx, read_onnx, unreadable_file
from gdws.deploy.onnx.signature import Port, Signature, arrange, is_classifier_file, signature_in, wrong_shape
from gdws.deploy.packages import require

BATCH = 25
"""Images at a time; the ranges do not depend on it."""


def quantize(path: Path | str, out: Path | str, images: Given, *, keep: Sequence[str] = ()) -> None:
    """Write the int8 form of a float32 ONNX file, by ONNX Runtime's static quantization.

    path    of the float32 file, such as gdws.to_onnx wrote.
    out     of the int8 file, whose nodes have QuantizeLinear and DequantizeLinear around them. An ONNX file that is there is
            replaced.
    images  (N, C, H, W), of a classifier in [0, 1]: a few hundred like those that the model will see, without labels; or
            gdws.Arguments of several tensors.
    keep    shell patterns of the names or types of nodes that stay float, such as "*.depthwise".

    Raises GdwsError when onnx or onnxruntime is not installed, or the file cannot be read, quantized or written.

    >>> import gdws, torch
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))
    >>> images = torch.rand(20, 3, 8, 8)
    >>> gdws.to_onnx(network, "float.onnx", images[:1])
    >>> gdws.quantize("float.onnx", "int8.onnx", images)
    >>> gdws.verify("int8.onnx", network, images, tolerance=None).images
    20
    """
    tool, steps = require("onnxruntime.quantization"), require("onnxruntime.quantization.shape_inference")
    inputs = checked_inputs(images)
    with scratch_folder() as folder, _quiet():
        prepared, made = folder / "prepared.onnx", folder / "int8.onnx"
        proto = read_onnx(Path(path), "ONNX Runtime")
        signature = _checked_signature(proto, inputs)
        try:
            equalize(proto, _Reader(signature, inputs))
            _norms_to_convolutions(proto)
            require("onnx").save(proto, prepared)
            steps.quant_pre_process(str(prepared), str(prepared))  # shapes, and what constants allow
            tool.quantize_static(
                str(prepared),
                str(made),
                _Reader(signature, inputs),
                quant_format=tool.QuantFormat.QDQ,
                per_channel=True,
                reduce_range=_overflows(),
                activation_type=tool.QuantType.QUInt8,
                weight_type=tool.QuantType.QInt8,
                nodes_to_exclude=[node.name for node in proto.graph.node if _named(keep, node.name, node.op_type)],
            )
        except Exception as error:
            raise GdwsError(f"{path} cannot be quantized: {first_line(error)}") from None
        write_atomically(Path(out), made.read_bytes(), Kind.ONNX)


def quantize_openvino(path: Path | str, images: Given, *, keep: Sequence[str] = ()) -> Any:
    """The int8 openvino.Model of a float32 ONNX file, by NNCF. Arguments as in `quantize`; types are OpenVINO's."""
    openvino, nncf = require("openvino"), require("nncf")
    inputs = checked_inputs(images)
    ports = _checked_signature(read_onnx(Path(path), "OpenVINO"), inputs).inputs
    try:
        model = openvino.convert_model(str(path))
    except Exception as error:
        raise unreadable_file(Path(path), "OpenVINO", error) from None
    floating = [
        op.get_friendly_name()
        for op in model.get_ops()
        if _named(keep, op.get_friendly_name().removesuffix("/WithoutBiases"), op.get_type_name())
    ]
    parameters = require("nncf.quantization.advanced_parameters")
    with _quiet(), redirect_stdout(StringIO()):
        nncf.set_log_level(logging.ERROR)
        return nncf.quantize(
            model,
            nncf.Dataset(inputs.split(_rows(ports, 1)), lambda part: [value.numpy() for value in arrange(part, ports)]),
            subset_size=len(inputs),
            ignored_scope=nncf.IgnoredScope(names=floating) if floating else None,
            advanced_parameters=parameters.AdvancedQuantizationParameters(
                overflow_fix=parameters.OverflowFix.ENABLE if _overflows() else None
            ),
        )


def is_quantized(path: Path) -> bool:
    """Whether an ONNX file holds quantized nodes."""
    return any(node.op_type == "QuantizeLinear" for node in parse_onnx(path, "onnx").graph.node)


def _checked_signature(proto: Any, inputs: Inputs) -> Signature:
    """That of a file, whose classifier takes images in [0, 1] and whose fixed batch, if it has one, is filled."""
    signature = signature_in(proto)
    if is_classifier_file(signature):
        check_range(inputs)
    wrong = wrong_shape(inputs[: _rows(signature.inputs, BATCH)], signature.inputs)
    if wrong is not None:
        raise wrong
    return signature


def _rows(ports: Sequence[Port], usual: int) -> int:
    """Samples at a time: as many as the file takes, if it takes only so many."""
    return next((port.shape[0] for port in ports if port.shape and isinstance(port.shape[0], int)), usual)


class _Reader:
    """Calibration inputs as ONNX Runtime asks for them: one batch after another, then None."""

    def __init__(self, signature: Signature, inputs: Inputs) -> None:
        ports = signature.inputs
        rows = _rows(ports, BATCH)
        parts = [part for part in inputs.split(rows) if len(part) == rows or rows == BATCH]
        self._batches = iter(
            [{port.name: value.numpy() for port, value in zip(ports, arrange(part, ports), strict=True)} for part in parts]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._batches


def _norms_to_convolutions(proto: Any) -> None:
    """BatchNormalization (x - mean) / sqrt(var + eps) * scale + shift as a depthwise Conv with 1x1 kernels and a bias."""
    onnx = require("onnx")
    constants = {constant.name: onnx.numpy_helper.to_array(constant) for constant in proto.graph.initializer}
    nodes, used = [], set()
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization" and all(name in constants for name in node.input[1:]):
            scale, shift, mean, variance = (constants[name].astype(np.float64) for name in node.input[1:])
            epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
            slope = scale / np.sqrt(variance + epsilon)
            names = [f"{node.name}.weight", f"{node.name}.bias"]
            values = slope.reshape(-1, 1, 1, 1), shift - mean * slope
            proto.graph.initializer.extend(
                onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in zip(names, values, strict=True)
            )
            node = onnx.helper.make_node(
                "Conv", [node.input[0], *names], node.output[:1], node.name, group=len(slope), kernel_shape=[1, 1]
            )
        nodes.append(node)
        used.update(node.input)
    initializers = [constant for constant in proto.graph.initializer if constant.name in used]
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(initializers)


def _named(patterns: Sequence[str], *names: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _overflows() -> bool:
    """Whether this CPU sums byte products in 16 bits."""
    return platform.machine().lower() in ("x86_64", "amd64") and not torch.cpu._is_vnni_supported()


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, the tools keep their advice to themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
