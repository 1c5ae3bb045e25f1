"""Int8 files and models in real engines, against the float32 model."""

import numpy as np
import onnx
import pytest
import torch
from helpers import images, operators

from gdws import data, models
from gdws.core.errors import GdwsError
from gdws.deploy.onnx.parity import verify
from gdws.deploy.quantize import quantize, quantize_openvino
from gdws.deploy.runtimes import OnnxRuntime, OpenVino


@pytest.fixture(scope="module")
def calibration():
    return data.load("demo", "train").images[:50].float() / 255


def test_onnx_runtime_int8_keeps_the_decisions(embedded_file, calibration, tmp_path):
    quantize(embedded_file, tmp_path / "int8.onnx", calibration)
    assert (tmp_path / "int8.onnx").stat().st_size < 0.3 * embedded_file.stat().st_size
    parity = verify(tmp_path / "int8.onnx", models.embedded(), images(200), tolerance=None)
    assert parity.changed <= 10
    with pytest.raises(GdwsError, match="differs from its model"):
        verify(tmp_path / "int8.onnx", models.embedded(), images(10))


def test_openvino_int8_keeps_the_decisions(embedded_file, calibration):
    model = quantize_openvino(embedded_file, calibration)
    assert any(constant.get_element_type().to_string() == "i8" for constant in model.get_ops())
    given, wanted = OpenVino(model, images(200), 1)(images(200)), OnnxRuntime(embedded_file, 1)(images(200))
    assert int((given.argmax(1) == wanted.argmax(1)).sum()) >= 190
    assert not torch.allclose(given, wanted, atol=1e-3)


def test_norms_that_no_convolution_takes_become_int8_convolutions(embedded_file, calibration, tmp_path):
    quantize(embedded_file, tmp_path / "int8.onnx", calibration[:10])
    found = operators(tmp_path / "int8.onnx")
    assert "BatchNormalization" not in found
    assert found["Conv"] == 17 + 8
    graph = onnx.load(tmp_path / "int8.onnx").graph
    weights = {constant.name: onnx.numpy_helper.to_array(constant) for constant in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    narrow = [n for n in graph.node if n.op_type == "Conv" and weights[producers[n.input[1]].input[0]].shape[1:] == (1, 1, 1)]
    assert len(narrow) == 8
    for node in narrow:
        # One number a channel, at the end of its range: its scale is the value, and nothing is rounded.
        assert len(np.unique(np.abs(weights[producers[node.input[1]].input[0]]))) == 1


def test_nodes_may_stay_float(factored_file, calibration, tmp_path):
    quantize(factored_file, tmp_path / "kept.onnx", calibration[:10], keep=["*.depthwise", "Gemm"])
    graph = onnx.load(tmp_path / "kept.onnx").graph
    producers = {output: node.op_type for node in graph.node for output in node.output}
    floats = {node.name for node in graph.node if node.op_type in ("Conv", "Gemm") and node.input[1] not in producers}
    assert floats == {"layer2.1.conv1.depthwise", "layer2.1.conv2.depthwise", "layer3.0.conv1.depthwise", "linear"}
    assert OnnxRuntime(tmp_path / "kept.onnx", 1)(images(5)).shape == (5, 10)

    everything = quantize_openvino(factored_file, calibration[:5])
    kept = quantize_openvino(factored_file, calibration[:5], keep=["*.depthwise"])
    grouped = [op for op in kept.get_ops() if op.get_type_name() == "GroupConvolution"]
    assert len(grouped) == 3

    def narrow(model):
        return sum(op.get_element_type().to_string() == "i8" for op in model.get_ops() if op.get_type_name() == "Constant")

    assert narrow(kept) == narrow(everything) - 3


def test_bad_input_is_refused(embedded_file, calibration, tmp_path):
    (tmp_path / "half.onnx").write_bytes(embedded_file.read_bytes()[:20000])
    with pytest.raises(GdwsError, match=r"half\.onnx is not an ONNX model"):
        quantize(tmp_path / "half.onnx", tmp_path / "out.onnx", calibration)
    with pytest.raises(GdwsError, match=r"half\.onnx is not an ONNX model"):
        quantize_openvino(tmp_path / "half.onnx", calibration)
    with pytest.raises(GdwsError, match=r"expected \[0, 1\]"):
        quantize(embedded_file, tmp_path / "out.onnx", 255 * calibration)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("change", [lambda x: x[:, :1], lambda x: x.permute(0, 2, 3, 1), lambda x: x[:, :, :16, :16]])
def test_images_of_another_shape_are_refused(embedded_file, calibration, tmp_path, change):
    """Bug: of the first two, whatever ONNX Runtime raises."""
    with pytest.raises(GdwsError, match=r"images have shape \(.*\): expected \('B', 3, 32, 32\)"):
        quantize(embedded_file, tmp_path / "out.onnx", change(calibration))
    with pytest.raises(GdwsError, match="images have shape"):
        quantize_openvino(embedded_file, change(calibration))
    assert not (tmp_path / "out.onnx").exists()
