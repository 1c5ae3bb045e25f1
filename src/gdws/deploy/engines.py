"""Every way to run a network fast, in one registry: what `compile`, `Target`, `bench` and the command line know of engines.

A new engine is a new entry of ENGINES: its name, device, precisions and packages, and a function that builds it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from gdws.core.checks import is_count
from gdws.core.errors import GdwsError
from gdws.core.execution import MOST_THREADS, evaluating, own_copy, placement
from gdws.core.files import scratch_folder
from gdws.core.inputs import Inputs, call_model, place
from gdws.core.unwrap import unwrap
from gdws.deploy.autotune import autotune, torch_compile
from gdws.deploy.benchmark import bench
from gdws.deploy.fx.pack_weights import PackedModel
from gdws.deploy.graphed_model import graph_model
from gdws.deploy.interface import Given, Outputs, are_logits, check_range, checked_inputs, is_alone, on_cpu
from gdws.deploy.onnx.export import to_onnx, write_program
from gdws.deploy.onnx.reading import parse_onnx
from gdws.deploy.onnx.signature import is_classifier_file, signature_in, signature_of
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.quantize import is_quantized, quantize, quantize_openvino
from gdws.deploy.runtimes import OnnxRuntime, OpenVino
from gdws.deploy.tracing import has_one_size, trace_model

Run = Callable[[Inputs], Outputs]
"""What a network is called with to what it gives: one tensor or, of several, {name: tensor}."""


class Source:
    """A network, or an ONNX file of one, in the forms that engines read. Each form is made once, when it is asked for."""

    def __init__(self, network: nn.Module | Path, example: Inputs, folder: Path) -> None:
        self.network, self.example, self.folder = network, example, folder

    @property
    def images(self) -> Tensor:
        """The example, for engines that take one tensor."""
        if not isinstance(self.example, Tensor):
            names = ", ".join(self.example.names)
            raise GdwsError(f"the engines of GPUs got {names}: expected one tensor, or the engine eager or compile")
        return self.example

    @property
    def module(self) -> nn.Module:
        if not isinstance(self.network, nn.Module):
            raise GdwsError(f"{self.network} is a file: expected an nn.Module for this engine")
        return self.network

    @cached_property
    def program(self) -> ExportedProgram:
        """For any batch of inputs of the example's size, which some engines know more about than about any."""
        return self._any_size if has_one_size(self._any_size) else trace_model(self.module, self.example)

    @cached_property
    def _any_size(self) -> ExportedProgram:
        return trace_model(self.module, self.example, any_size=True)

    @cached_property
    def file(self) -> Path:
        if not isinstance(self.network, nn.Module):
            return self.network
        path = self.folder / "model.onnx"
        if isinstance(self.network, StraightThrough):
            to_onnx(self.network, path, self.example)
        else:
            write_program(self._any_size, path)
        return path


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A way to run a network.

    device         where it runs: "cpu", "cuda", or "any" for wherever the model is.
    precisions     what it runs a float32 model in; int8 needs calibration images.
    build          makes a run from (source, precision, threads, calibration inputs or None).
    packages       what it needs besides PyTorch, and int8_packages what it needs besides them for int8.
    reads_files    whether it runs ONNX files.
    is_candidate   whether "auto" considers it.
    times_layers   whether single layers can be timed in it, so that plans can be made for it (gdws.Target).
    has_layout     whether it chooses the order of images in memory itself.
    """

    name: str
    device: str
    precisions: tuple[str, ...]
    build: Callable[[Source, str, int, Inputs | None], Run]
    packages: tuple[str, ...] = ()
    int8_packages: tuple[str, ...] = ()
    reads_files: bool = False
    is_candidate: bool = False
    times_layers: bool = False
    has_layout: bool = True

    def is_installed(self, precision: str = "float32") -> bool:
        wanted = self.packages + (self.int8_packages if precision == "int8" else ())
        return all(map(importlib.util.find_spec, wanted))

    def runs_on(self, device: str) -> bool:
        """Whether it is for models on a device of this type: those for CPUs take a model from anywhere."""
        return self.device in ("any", "cpu", device)


@dataclass(frozen=True)
class Compiled:
    """A model in an engine: call it with what the model takes, on the CPU, for what it gives, floats in float32 on the CPU.

    A classifier takes images (B, C, H, W) in [0, 1] and gives logits (B, classes). Several tensors go in as gdws.Arguments and
    come out as {name: tensor}, with the names that gdws.to_onnx gives them.

    engine     the name of the engine.
    precision  that it runs in.
    threads    that it uses on a CPU.
    run        what runs.
    """

    engine: str
    precision: str
    threads: int
    run: Run

    @property
    def name(self) -> str:
        """Engine and precision, as tables show them."""
        return f"{self.engine} {self.precision}"

    @property
    def on_device(self) -> nn.Module | None:
        """What runs on a GPU, or eagerly, for those who have their images there already; None for the engines of CPUs."""
        return self.run if isinstance(self.run, nn.Module) else None

    def __call__(self, inputs: Inputs) -> Any:
        """What the model gives for `inputs`, a tensor or {name: tensor}, on the CPU; floats are float32."""
        if self.on_device is None:
            return on_cpu(self.run(inputs))
        with torch.no_grad():
            return on_cpu(call_model(self.on_device, place(inputs, *placement(self.on_device))))


def compile(
    model: nn.Module | Path | str,
    engine: str = "auto",
    *,
    example: Given,
    precision: str = "float32",
    threads: int | None = None,
    calibration: Given | None = None,
) -> Compiled:
    """Make a model, or an ONNX file, ready to run fast.

    model        an nn.Module, or the path of an ONNX file.
    engine       a name of gdws.deploy.engines.ENGINES, or "auto", which builds those that are installed for the device that
                 the model is on, leaves out those that cannot run it, and keeps the fastest on `example`.
    example      what will be run: images (B, C, H, W), or gdws.Arguments of several tensors, of the size and best of the batch
                 that will be. onnxruntime and openvino take images of other sizes too where gdws.to_onnx leaves sizes free.
    precision    "float32"; "int8" on a CPU, which needs calibration images; "float16" on a GPU. A file that is quantized
                 already stays as it is.
    threads      of a CPU's engine; by default as many as PyTorch has.
    calibration  for int8: a few hundred images, or Arguments, like those that will be run, without labels.

    Engines of GPUs take one tensor. Returns gdws.deploy.engines.Compiled: call it with inputs for outputs. It has fields
    engine, precision, threads and name. Raises GdwsError when the engine or precision is unknown, not installed or not for this
    model, when int8 comes without calibration images, or when the model cannot be exported.

    >>> import gdws, torch
    >>> run = gdws.compile(gdws.models.embedded(), "torch", example=torch.rand(1, 3, 32, 32), threads=1)
    >>> run(torch.rand(5, 3, 32, 32)).shape
    torch.Size([5, 10])
    """
    if engine not in (*ENGINES, "auto"):
        raise GdwsError(f"engine is {engine!r}: expected auto, {', '.join(ENGINES)}")
    if precision not in PRECISIONS:
        raise GdwsError(f"precision is {precision!r}: expected one of {', '.join(PRECISIONS)}")
    threads = torch.get_num_threads() if threads is None else threads
    if not is_count(threads, 1) or threads > MOST_THREADS:
        raise GdwsError(f"threads is {threads}: expected at least 1, and at most {MOST_THREADS}")
    example = checked_inputs(example)
    network = unwrap(model) if isinstance(model, nn.Module) else Path(model)
    if isinstance(network, nn.Module):
        with evaluating(network), torch.no_grad():
            output = call_model(network, place(example, *placement(network)))
        is_own_classifier = signature_of(network) is None and (are_logits(output, example) or is_alone(output, example))
    else:
        is_own_classifier = is_classifier_file(signature_in(parse_onnx(network, "onnx")))
    if is_own_classifier:
        check_range(example)
    is_int8_file = isinstance(network, Path) and is_quantized(network)
    to_precision = "float32" if is_int8_file else precision
    if to_precision == "int8" and calibration is None:
        raise GdwsError("precision is int8 without calibration images: expected a tensor (N, C, H, W) of them")
    engines = [ENGINES[engine]] if engine != "auto" else _candidates(network, to_precision)
    for each in engines:
        _check_runs(each, network, to_precision)
    precision = "int8" if is_int8_file else precision
    images = None if calibration is None else checked_inputs(calibration)
    images = images if to_precision == "int8" else None
    with scratch_folder() as folder:
        source, built, failed = Source(network, example, folder), dict[str, Compiled](), list[GdwsError]()
        for each in engines:
            try:
                run = each.build(source, to_precision, threads, images)
            except GdwsError as error:  # of auto another one may run the model
                failed.append(error)
            else:
                built[each.name] = Compiled(each.name, precision, threads, run)
    if not built:
        raise failed[0]
    if len(built) == 1:
        return next(iter(built.values()))
    timings = bench(built, example, warmup=5, repeats=30)
    return built[min(timings, key=lambda name: timings[name].quartile)]


def installed_engines(device: str, precision: str, *, for_files: bool = False) -> list[Engine]:
    """What "auto" chooses from on a type of device, in this precision, for models or for ONNX files."""
    found = [
        engine
        for engine in ENGINES.values()
        if engine.is_candidate
        and engine.device == device
        and precision in engine.precisions
        and engine.is_installed(precision)
        and (engine.reads_files or not for_files)
    ]
    if not found:
        raise GdwsError(
            f"no engine that runs this in {precision} on {device} is installed: expected one (pip install 'gdws[engines]')"
        )
    return found


def _candidates(network: nn.Module | Path, precision: str) -> list[Engine]:
    if isinstance(network, nn.Module):
        return installed_engines(placement(network)[0].type, precision)
    return installed_engines("cpu", precision, for_files=True)


def _check_runs(engine: Engine, network: nn.Module | Path, precision: str) -> None:
    is_file = not isinstance(network, nn.Module)
    if is_file and not engine.reads_files:
        readers = " or ".join(other.name for other in ENGINES.values() if other.reads_files)
        raise GdwsError(f"{network} is a file and the engine {engine.name}: expected {readers}, or auto")
    if precision not in engine.precisions:
        others = ", ".join(other.name for other in ENGINES.values() if precision in other.precisions)
        raise GdwsError(
            f"the engine {engine.name} got the precision {precision}: expected {' or '.join(engine.precisions)}, "
            f"or one of {others}"
        )
    if isinstance(network, nn.Module) and not engine.runs_on(placement(network)[0].type):
        raise GdwsError(
            f"the engine {engine.name} got a model on {placement(network)[0]}: "
            f"expected it on {engine.device} (--device {engine.device})"
        )


def prepare_for_engine(engine: str, file: Path, calibration: Inputs | None, folder: Path) -> Any:
    """What a session of an engine reads: an ONNX file or, if there are images, its int8 form by the engine's own tool."""
    if calibration is None:
        return file
    if engine == "openvino":
        return quantize_openvino(file, calibration)
    int8 = folder / "int8.onnx"
    quantize(file, int8, calibration)
    return int8


def open_session(engine: str, model: Any, example: Inputs, threads: int, profiled: bool = False) -> OnnxRuntime | OpenVino:
    """A session on what `prepare_for_engine` gave."""
    if engine == "openvino":
        return OpenVino(model, example, threads, profiled)
    return OnnxRuntime(model, threads, profiled)


def _build_session(engine: str) -> Callable[[Source, str, int, Inputs | None], Run]:
    def build(source: Source, precision: str, threads: int, calibration: Inputs | None) -> Run:
        prepared = prepare_for_engine(engine, source.file, calibration, source.folder)
        return open_session(engine, prepared, source.example, threads)

    return build


def _own_threads(source: Source, threads: int, build: Callable[[nn.Module], nn.Module]) -> nn.Module:
    if threads != torch.get_num_threads():
        raise GdwsError(
            f"threads is {threads}, and PyTorch's own {torch.get_num_threads()}: expected them equal (torch.set_num_threads)"
        )
    return build(own_copy(source.module).eval())


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name="onnxruntime",
            device="cpu",
            precisions=("float32", "int8"),
            build=_build_session("onnxruntime"),
            packages=("onnx", "onnxscript", "onnxruntime"),
            reads_files=True,
            is_candidate=True,
            times_layers=True,
        ),
        Engine(
            name="openvino",
            device="cpu",
            precisions=("float32", "int8"),
            build=_build_session("openvino"),
            packages=("onnx", "onnxscript", "openvino"),
            int8_packages=("nncf",),
            reads_files=True,
            is_candidate=True,
            times_layers=True,
        ),
        Engine(
            name="torch",
            device="cpu",
            precisions=("float32",),
            build=lambda source, precision, threads, _: PackedModel(source.program, threads),
            is_candidate=True,
        ),
        Engine(
            name="eager",
            device="any",
            precisions=("float32",),
            build=lambda source, precision, threads, _: _own_threads(source, threads, lambda model: model),
            has_layout=False,
        ),
        Engine(
            name="compile",
            device="any",
            precisions=("float32",),
            build=lambda source, precision, threads, _: _own_threads(source, threads, torch_compile),
            has_layout=False,
        ),
        Engine(
            name="cuda",
            device="cuda",
            precisions=("float32", "float16"),
            build=lambda source, precision, threads, _: graph_model(source.module, source.images, precision),
            is_candidate=True,
            times_layers=True,
        ),
        Engine(
            name="autotuned",
            device="cuda",
            precisions=("float32", "float16"),
            build=lambda source, precision, threads, _: autotune(source.module, source.images, precision),
        ),
    )
}
"""Every engine by its name.

onnxruntime and openvino; torch: PyTorch with packed weights; eager: plain PyTorch; compile: torch.compile; cuda: PyTorch's
kernels as a CUDA graph; autotuned: torch.compile with kernels tried out, as a CUDA graph, which takes minutes to build.
"""

PRECISIONS = tuple(dict.fromkeys(precision for engine in ENGINES.values() for precision in engine.precisions))
