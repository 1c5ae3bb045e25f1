"""A model made ready to run fast on this CPU: in ONNX Runtime, OpenVINO, or PyTorch with packed weights."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gdws.core.checks import unpack
from gdws.deploy.benchmark import bench
from gdws.deploy.fx.pack_weights import PackedModel
from gdws.deploy.onnx import to_onnx, trace_model
from gdws.deploy.quantize import is_quantized, quantize, quantize_openvino
from gdws.deploy.runtimes import OnnxRuntime, OpenVino
from gdws.errors import GdwsError

PRECISIONS = ("float32", "int8")
PACKAGES = {
    "onnxruntime": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
    "torch": (),
}
"""What each engine needs besides PyTorch; openvino needs nncf too, for int8."""


@dataclass(frozen=True)
class Compiled:
    """A model in an engine: images (B, C, H, W) in [0, 1] to logits (B, classes), both float32 torch tensors on the CPU."""

    engine: str
    precision: str
    threads: int
    run: Callable[[Tensor], Tensor]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.precision}"

    def __call__(self, images: Tensor) -> Tensor:
        return self.run(images)


def compile(
    model: nn.Module | Path | str,
    engine: str = "auto",
    *,
    example: Tensor,
    threads: int | None = None,
    precision: str = "float32",
    calibration: Tensor | None = None,
) -> Compiled:
    """Make a model, or an ONNX file, ready for an engine: "onnxruntime", "openvino", "torch" (models in float32 only), or
    "auto", which builds all that are installed and keeps the fastest on `example`.

    example (B, C, H, W): images of the size, and best of the batch, that will be run. threads: of the engine (default: as many
    as PyTorch has). precision "int8" needs calibration images (N, C, H, W); a file that is quantised already stays as it is.
    """
    if engine not in (*PACKAGES, "auto"):
        raise GdwsError(f"engine is {engine!r}: expected auto, {', '.join(PACKAGES)}")
    if precision not in PRECISIONS:
        raise GdwsError(f"precision is {precision!r}: expected {' or '.join(PRECISIONS)}")
    threads = torch.get_num_threads() if threads is None else threads
    if threads < 1:
        raise GdwsError(f"threads is {threads}: expected at least 1")
    unpack(example)
    quantised = not isinstance(model, nn.Module) and is_quantized(Path(model))
    precision = "int8" if quantised else precision
    to_quantise = precision == "int8" and not quantised
    if to_quantise and calibration is None:
        raise GdwsError("precision is int8 without calibration images: expected a tensor (N, C, H, W) of them")
    traceable = isinstance(model, nn.Module) and precision == "float32"
    if engine == "torch" and not traceable:
        raise GdwsError("the engine torch is for an nn.Module in float32: expected onnxruntime or openvino here")
    engines = [engine] if engine != "auto" else installed_engines(precision if to_quantise else "float32", traceable)
    built = {}
    with tempfile.TemporaryDirectory() as folder:
        program, file = None, Path(folder, "model.onnx") if isinstance(model, nn.Module) else Path(model)
        if isinstance(model, nn.Module):
            program = trace_model(model, example)
            if engines != ["torch"]:
                to_onnx(program, file, example)
        for name in engines:
            if name == "torch":
                assert program is not None
                run: Callable[[Tensor], Tensor] = PackedModel(program, threads)
            else:
                run = open_session(
                    name, prepare_for_engine(name, file, calibration if to_quantise else None, Path(folder)), example, threads
                )
            built[name] = Compiled(name, precision, threads, run)
    if len(built) == 1:
        return built[engines[0]]
    timings = bench(built, example, warmup=5, repeats=30)
    return built[min(timings, key=lambda name: timings[name].quartile)]


def prepare_for_engine(engine: str, file: Path, calibration: Tensor | None, folder: Path) -> Any:
    """What a session of an engine reads: an ONNX file or, if there are images, its int8 form by the engine's own tool."""
    if calibration is None:
        return file
    if engine == "openvino":
        return quantize_openvino(file, calibration)
    int8 = folder / "int8.onnx"
    quantize(file, int8, calibration)
    return int8


def open_session(engine: str, model: Any, example: Tensor, threads: int, profiled: bool = False) -> OnnxRuntime | OpenVino:
    """A session on what `prepared` gave."""
    if engine == "openvino":
        return OpenVino(model, example, threads, profiled)
    return OnnxRuntime(model, threads, profiled)


def installed_engines(precision: str, traceable: bool) -> list[str]:
    """The engines that can be built here, for a model that is still to be brought to this precision."""
    names = []
    for name, packages in PACKAGES.items():
        wanted = (*packages, "nncf") if name == "openvino" and precision == "int8" else packages
        if all(map(importlib.util.find_spec, wanted)) and (traceable or name != "torch"):
            names.append(name)
    if not names:
        raise GdwsError("no engine that could run this is installed: expected one (pip install 'gdws[engines]')")
    return names
