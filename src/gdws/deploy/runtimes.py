"""Sessions of the inference engines that run ONNX graphs on a CPU: torch tensors in, torch tensors out."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gdws.core.errors import GdwsError, first_line
from gdws.core.inputs import Inputs
from gdws.deploy.interface import Outputs, unpacked
from gdws.deploy.onnx.reading import read_onnx, unreadable_file
from gdws.deploy.onnx.signature import Port, Signature, arrange, signature_in, wrong_shape
from gdws.deploy.packages import require


@dataclass(frozen=True)
class NodeTime:
    """What one node of an engine's own graph took in one pass. The engine names and types it after what it was fused from."""

    name: str
    kind: str
    seconds: float


class OnnxRuntime:
    """An ONNX file in ONNX Runtime: what it takes, by name or in its order, to its output or, of several, {name: output}.

    signature: of the file, which says what sizes it takes. profiled: count the time of every node, for `passes`, which costs
    some microseconds a node.
    """

    def __init__(self, path: Path, threads: int | None = None, profiled: bool = False) -> None:
        runtime = require("onnxruntime")
        self.signature = signature_in(read_onnx(path, "ONNX Runtime"))
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

    @property
    def batch(self) -> int | None:
        """The one batch size that the file takes, or None for any."""
        sizes = [port.shape[0] for port in self.signature.inputs if port.shape]
        return next((size for size in sizes if isinstance(size, int)), None)

    def __call__(self, inputs: Inputs) -> Outputs:
        ports = self.signature.inputs
        # numpy views of torch memory and back: nothing is copied where the inputs are in the file's types and contiguous.
        given = {port.name: value.numpy() for port, value in zip(ports, arrange(inputs, ports), strict=True)}
        try:
            outputs = self._session.run(None, given)
        except Exception as error:
            if told := wrong_shape(inputs, ports):
                raise told from None
            raise GdwsError(f"ONNX Runtime cannot run the model: {first_line(error)}") from None
        named = zip(self.signature.outputs, outputs, strict=True)
        return unpacked({port.name: torch.from_numpy(value) for port, value in named})

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
    """A model in OpenVINO: what it takes, by name or in its order, to its output or, of several, {name: output}.

    It is compiled for the shapes of `example`, which is faster than for any; the first inputs of other shapes compile it once
    more, for all that it takes. model: the path of an ONNX file or an openvino.Model with a dynamic batch. signature: of the
    model. profiled: as in OnnxRuntime.
    """

    def __init__(self, model: Any, example: Inputs, threads: int | None = None, profiled: bool = False) -> None:
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
            self.signature = signature_in(read_onnx(model, "OpenVINO"))
            try:
                self._model = self._core.read_model(str(model))
            except Exception as error:
                raise unreadable_file(model, "OpenVINO", error) from None
        else:
            self._model = model
            self.signature = _signature_of_model(model)
        ports = self.signature.inputs
        self._shapes = [list(value.shape) for value in arrange(example, ports)]
        fixed = self._model.clone()
        try:
            if told := wrong_shape(example, ports):
                raise told
            fixed.reshape({given: openvino.PartialShape(own) for given, own in zip(fixed.inputs, self._shapes, strict=True)})
        except GdwsError:
            raise
        except Exception as error:
            raise GdwsError(f"OpenVINO cannot run the model on {self._shapes}: {first_line(error)}") from None
        self._fixed = self._request(fixed)
        self._any: Any = None

    def __call__(self, inputs: Inputs) -> Outputs:
        request, ports = self._fixed, self.signature.inputs
        values = arrange(inputs, ports)
        if [list(value.shape) for value in values] != self._shapes:
            if told := wrong_shape(inputs, ports):
                raise told
            request = self._any = self._any or self._request(self._model)
        try:
            found = request.infer([value.numpy() for value in values], share_inputs=True)
        except Exception as error:
            raise GdwsError(f"OpenVINO cannot run the model: {first_line(error)}") from None
        if self._passes is not None:
            self._passes.append(
                [NodeTime(node.node_name, node.node_type, node.real_time.total_seconds()) for node in request.profiling_info]
            )
        # The next pass writes into the same outputs, which are copied here; inputs are not.
        return unpacked({port.name: torch.from_numpy(found[index]) for index, port in enumerate(self.signature.outputs)})

    def passes(self) -> list[list[NodeTime]]:
        """As OnnxRuntime's."""
        return self._passes or []

    def _request(self, model: Any) -> Any:
        try:
            return self._core.compile_model(model, "CPU", self._settings).create_infer_request()
        except Exception as error:
            raise GdwsError(f"OpenVINO cannot compile the model: {first_line(error)}") from None


def _signature_of_model(model: Any) -> Signature:
    """That of an openvino.Model."""

    def port(value: Any) -> Port:
        sizes = (size.get_length() if size.is_static else None for size in value.get_partial_shape())
        return Port(value.get_any_name(), str(value.get_element_type().to_dtype()), tuple(sizes))

    return Signature(tuple(map(port, model.inputs)), tuple(map(port, model.outputs)))
