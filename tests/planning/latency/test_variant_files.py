"""Graphs that are put together against those that PyTorch exports."""

import math

import onnx
import pytest
import torch
from torch import nn

from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.runtimes import OnnxRuntime
from gdws.planning.latency.variant_files import VariantFiles, with_factored_layers
from gdws.planning.latency.variants import with_noise_weights
from gdws.planning.methods import Choice
from gdws.structures import STRUCTURES


class Several(nn.Module):
    """Strides, groups, dilation, a BatchNorm to fold, a convolution without bias and one that is called twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.strided, self.norm = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(24)
        self.twice = nn.Conv2d(24, 24, 3, padding=1)
        self.grouped = nn.Conv2d(24, 32, (3, 5), groups=2, padding="same", dilation=2)
        self.head = nn.Linear(32, 6)

    def forward(self, x):
        x = torch.relu(self.norm(self.strided(torch.relu(self.stem(x)))))
        x = torch.relu(self.twice(torch.relu(self.twice(x))))
        return self.head(torch.relu(self.grouped(x)).mean((2, 3)))


LAYERS = {"strided": 16, "twice": 24, "grouped": 24}


def choices(structure, size):
    """All layers in one structure; for gdws `size` kernels of each input channel."""
    return {
        name: Choice(STRUCTURES[structure], 0, (size,) * inputs if structure == "gdws" else (size,), math.nan)
        for name, inputs in LAYERS.items()
    }


def nodes(graph):
    """Kind, name, shape of the weight and what else tells the work of each node."""
    shapes = {value.name: tuple(value.dims) for value in graph.initializer}
    plain = [node for node in graph.node if node.op_type in ("Conv", "Gather", "Relu", "BatchNormalization", "Gemm")]
    return [
        (
            node.op_type,
            node.name if node.op_type in ("Conv", "Gather") else "",
            [shapes[name] for name in node.input if name in shapes],
            sorted(
                (a.name, str(onnx.helper.get_attribute_value(a)))
                for a in node.attribute
                if a.name in ("group", "pads", "strides", "dilations", "kernel_shape")
            ),
        )
        for node in plain
    ]


@pytest.mark.parametrize(("structure", "size"), [("gdws", 1), ("gdws", 2), ("vertical", 5), ("horizontal", 7), ("project", 3)])
def test_a_variant_is_what_an_export_of_it_would_be(structure, size, tmp_path):
    torch.manual_seed(0)
    model, example = Several().eval(), torch.rand(1, 3, 20, 20)
    network = with_noise_weights(model, choices(structure, size))
    to_onnx(network, tmp_path / "exported.onnx", example)
    made = VariantFiles(model, example).write(network, tmp_path / "made.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert nodes(made.graph) == nodes(onnx.load(tmp_path / "exported.onnx").graph)
    runs = [OnnxRuntime(tmp_path / name, 1) for name in ("made.onnx", "exported.onnx")]
    assert torch.allclose(*(run(example.repeat(2, 1, 1, 1)) for run in runs), atol=1e-3)


def test_what_is_no_plain_convolution_is_exported_after_all(tmp_path):
    torch.manual_seed(0)
    model, example = Several().eval(), torch.rand(1, 3, 20, 20)
    files = VariantFiles(model, example)
    empty = with_noise_weights(model, choices("gdws", 0))
    assert with_factored_layers(files._dense, empty) is None
    files.write(empty, tmp_path / "made.onnx")
    assert torch.allclose(OnnxRuntime(tmp_path / "made.onnx", 1)(example), empty(example), atol=1e-4)
