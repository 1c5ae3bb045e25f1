"""Sessions of the inference engines that run ONNX graphs on a CPU: torch tensors in, torch tensors out."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdws.deploy.onnx.reading import read_onnx, unreadable_file
from gdws.deploy.packages import require
from gdws.errors import GdwsError, first_line


@dataclass(frozen=True)
class NodeTime:
    """What one node of an engine's own graph took in one pass. The engine names and types it after what it was fused from."""

    name: str
    kind: str
    seconds: float


class OnnxRuntime:
    """An ONNX file in ONNX Runtime: float32 (B, C, H, W) to (B, classes), for any batch size or, of some files, one.

    profiled: count the time of every node, for `passes`, which costs some microseconds a node.
    """

    def __init__(self, path: Path, threads: int | None = None, profiled: bool = False) -> None:
        runtime = require("onnxruntime")
        read_onnx(path, "ONNX Runtime")
        options = runtime.SessionOptions()
        if profiled:
            self._folder = tempfile.TemporaryDirectory()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(self._folder.name, "profile"))
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what fails is raised; the log would show names of nodes as they are
        # Its threads otherwise go on spinning after a pass, on the cores that the next engine of a benchmark needs.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise unreadable_file(path, "ONNX Runtime", error) from None
        (self._input,) = self._session.get_inputs()

    @property
    def batch(self) -> int | None:
        """The one batch size that the file takes, or None for any."""
        size = self._input.shape[0]
        return size if isinstance(size, int) else None

    def __call__(self, images: Tensor) -> Tensor:
        try:
            # numpy views of torch memory and back: nothing is copied where the images are float32 and contiguous.
            outputs = self._session.run(None, {self._input.name: _float32(images).numpy()})
        except Exception as error:
            if list(images.shape) != [self.batch or len(images), *self._input.shape[1:]]:
                raise wrong_shape(images, self._input.shape) from None
            raise GdwsError(f"ONNX Runtime cannot run the model: {first_line(error)}") from None
        return checked_output(torch.from_numpy(outputs[0]), images)

    def passes(self) -> list[list[NodeTime]]:
        """The nodes of every pass so far, in the order in which they ran; of a profiled session, which ends with this."""
        passes, nodes = [], []
        for event in json.loads(Path(self._session.end_profiling()).read_text()):
            if event["name"].endswith("_kernel_time"):
                name = event["name"].removesuffix("_kernel_time")
                nodes.append(NodeTime(name, event["args"]["op_name"], event["dur"] / 1e6))
            elif event["name"] == "model_run":  # comes after its nodes
                passes.append(nodes)
                nodes = []
        self._folder.cleanup()
        return passes


class OpenVino:
    """A model in OpenVINO: float32 (B, C, H, W) to (B, classes).

    It is compiled for the shape of `example`, which is faster than for any shape; the first batch of another size compiles it
    once more, for any. model: the path of an ONNX file or an openvino.Model with a dynamic batch. profiled: as in OnnxRuntime.
    """

    def __init__(self, model: Any, example: Tensor, threads: int | None = None, profiled: bool = False) -> None:
        openvino = require("openvino")
        self._core = openvino.Core()
        self._passes: list[list[NodeTime]] | None = [] if profiled else None
        self._settings = {
            "INFERENCE_NUM_THREADS": threads or torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # some CPUs would compute in bfloat16 without being asked
            "PERF_COUNT": profiled,
        }
        if isinstance(model, Path):
            read_onnx(model, "OpenVINO")
            try:
                self._model = self._core.read_model(str(model))
            except Exception as error:
                raise unreadable_file(model, "OpenVINO", error) from None
        else:
            self._model = model
        self._shape = tuple(example.shape)
        fixed = self._model.clone()
        taken = self._model.inputs[0].get_partial_shape()
        self._any_batch = taken[0].is_dynamic
        try:
            if not taken.compatible(openvino.PartialShape(list(self._shape))):
                raise wrong_shape(example, taken)
            fixed.reshape(list(self._shape))
        except Exception:
            raise wrong_shape(example, taken) from None
        self._fixed = self._request(fixed)
        self._any: Any = None

    def __call__(self, images: Tensor) -> Tensor:
        request = self._fixed
        if tuple(images.shape) != self._shape:
            if images.shape[1:] != self._shape[1:] or not self._any_batch:
                raise wrong_shape(images, ("B" if self._any_batch else self._shape[0], *self._shape[1:]))
            request = self._any = self._any or self._request(self._model)
        # The next pass writes into the same output: it is copied, the input is not.
        try:
            logits = torch.from_numpy(request.infer([_float32(images).numpy()], share_inputs=True)[0])
        except Exception as error:
            raise GdwsError(f"OpenVINO cannot run the model: {first_line(error)}") from None
        if self._passes is not None:
            self._passes.append(
                [NodeTime(node.node_name, node.node_type, node.real_time.total_seconds()) for node in request.profiling_info]
            )
        return checked_output(logits, images)

    def passes(self) -> list[list[NodeTime]]:
        """As OnnxRuntime's."""
        return self._passes or []

    def _request(self, model: Any) -> Any:
        try:
            return self._core.compile_model(model, "CPU", self._settings).create_infer_request()
        except Exception as error:
            raise GdwsError(f"OpenVINO cannot compile the model: {first_line(error)}") from None


def wrong_shape(images: Tensor, shape: Any) -> GdwsError:
    return GdwsError(f"images have shape {tuple(images.shape)}: expected {tuple(shape)}")


def checked_output(logits: Tensor, images: Tensor) -> Tensor:
    """What a file gives, if it can be the logits of these images."""
    if logits.ndim != 2 or logits.shape[0] != images.shape[0]:  # a len would be traced as a number
        raise GdwsError(f"the file gives {tuple(logits.shape)} for {len(images)} images: expected logits (B, classes)")
    return logits


def _float32(images: Tensor) -> Tensor:
    return images.detach().to("cpu", torch.float32).contiguous()
