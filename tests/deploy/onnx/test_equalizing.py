"""Channels between two convolutions: the same function, and in int8 no other one for how its factors are written."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import gdws
from gdws.deploy.onnx.equalizing import equalize
from gdws.structures.layers import GDWSConv2d, TwoStageConv2d


def two_stages(groups):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 12, 3, groups=groups), nn.Conv2d(12, 8, 3, padding=1, groups=groups, bias=False), nn.ReLU()
    )


@pytest.mark.parametrize("groups", [1, 4])
def test_the_same_function_with_ranges_of_both_sides_alike(groups, tmp_path):
    network, images = two_stages(groups).eval(), torch.randn(6, 8, 10, 10)
    network[0].weight.data *= torch.logspace(-2, 2, 12).view(-1, 1, 1, 1)
    gdws.to_onnx(network, tmp_path / "model.onnx", images[:1])
    proto = onnx.load(tmp_path / "model.onnx")
    name = proto.graph.input[0].name
    equalize(proto, [{name: part.numpy()} for part in images.split(3)])
    with torch.no_grad():
        expected, between = network(images), network[0](images)
    (found,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {name: images.numpy()})
    assert np.abs(found - expected.numpy()).max() < 1e-5 * float(expected.abs().max())
    weights = {constant.name: torch.tensor(numpy_helper.to_array(constant)) for constant in proto.graph.initializer}
    for channel in range(12):
        factor = float((weights["0.weight"][channel] / network[0].weight.detach()[channel]).mean())
        group, place = divmod(channel, 12 // groups)
        taken = weights["1.weight"].view(groups, 8 // groups, 12 // groups, 3, 3)[group, :, place].abs().max()
        assert float(factor * between[:, channel].abs().max()) == pytest.approx(float(taken), rel=1e-4)


@pytest.mark.parametrize("kind", ["vertical", "gdws"])
def test_int8_is_the_same_however_the_factors_are_scaled(kind, tmp_path):
    torch.manual_seed(1)
    layer = TwoStageConv2d(8, 8, (3, 3), rank=6, axes=(0,), padding=(1, 1)) if kind == "vertical" else None
    if layer is None:
        factors = gdws.mego(torch.randn(8, 8, 3, 3), None, 16)
        layer = GDWSConv2d.from_factors(factors, nn.Conv2d(8, 8, 3, padding=1))
    for value in layer.parameters():
        nn.init.normal_(value)
    network, images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), layer).eval(), torch.rand(20, 3, 12, 12)
    with torch.no_grad():
        wanted = network(images)
    errors = []
    for spread in (0, 2):
        layer.rescale(10 ** (spread * torch.rand(len(layer.filters)) - spread / 2))
        gdws.to_onnx(network, tmp_path / "float.onnx", images[:1])
        gdws.quantize(tmp_path / "float.onnx", tmp_path / "int8.onnx", images)
        found = gdws.compile(tmp_path / "int8.onnx", "onnxruntime", example=images)(images)
        errors.append(float((found - wanted).square().mean().sqrt() / wanted.std()))
    assert errors[1] == pytest.approx(errors[0], rel=0.02)
    assert errors[0] < 0.03


def test_what_others_take_too_is_left_alone(tmp_path):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            between = self.first(x)
            return self.second(between) + between

    gdws.to_onnx(Shared().eval(), tmp_path / "model.onnx", torch.rand(1, 3, 8, 8))
    proto = onnx.load(tmp_path / "model.onnx")
    before = proto.SerializeToString()
    equalize(proto, [])
    assert proto.SerializeToString() == before
