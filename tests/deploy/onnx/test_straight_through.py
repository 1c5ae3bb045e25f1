"""ONNX files as torch modules: the values of a real ONNX Runtime, and gradients that rounding does not stop."""

import onnx
import pytest
import torch
from helpers import images
from onnx import TensorProto, helper
from torch import nn

from gdws import data
from gdws.attacks import PGD
from gdws.core.errors import GdwsError
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.quantize import quantize
from gdws.deploy.runtimes import OnnxRuntime
from gdws.evaluation.accuracy import evaluate


@pytest.fixture(scope="module")
def int8_file(factored_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("straight") / "int8.onnx"
    quantize(factored_file, path, data.load("demo", "train").images[:50].float() / 255)
    return path


def test_a_float_file_gives_the_logits_of_onnx_runtime(factored_file):
    part = images(20)
    torch.testing.assert_close(StraightThrough(factored_file)(part), OnnxRuntime(factored_file)(part), atol=1e-4, rtol=0)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_every_mode_of_padding_is_that_of_the_file(tmp_path, mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, (3, 5), padding=(1, 2), padding_mode=mode), nn.Conv2d(4, 2, 1)).eval()
    x = torch.rand(2, 3, 8, 10)
    to_onnx(model, tmp_path / "padded.onnx", x)
    torch.testing.assert_close(StraightThrough(tmp_path / "padded.onnx")(x), model(x))


def test_an_int8_file_decides_as_onnx_runtime_does(int8_file):
    """One level of the last layer may differ where a sum rounds another way; decisions may not, where they are clear."""
    part = images(60)
    wanted = OnnxRuntime(int8_file)(part)
    given = StraightThrough(int8_file)(part)
    assert (given - wanted).abs().max() < 0.1
    best = wanted.topk(2).values
    clear = best[:, 0] - best[:, 1] > 0.2
    assert clear.sum() > 30
    assert torch.equal(given.argmax(1)[clear], wanted.argmax(1)[clear])


def test_rounding_stops_no_gradient(factored_file, int8_file):
    """The straight-through gradient points where the float network's does."""
    gradients = []
    for path in (factored_file, int8_file):
        x = images(8).requires_grad_()
        (gradient,) = torch.autograd.grad(StraightThrough(path)(x).logsumexp(1).sum(), x)
        gradients.append(gradient.flatten())
    assert torch.cosine_similarity(*gradients, dim=0) > 0.5


def test_an_attack_on_the_file_finds_what_its_rounding_would_hide(int8_file):
    """A module that runs the file but has its gradient, nearly zero everywhere, seems robust; the straight one is not."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = StraightThrough(int8_file)

        def forward(self, x):
            return self.inner((x * 1e4).round() / 1e4)

    test = data.load("demo", "test").take(24, 24)
    attack = PGD(steps=5, step=4 / 255)
    masked, straight = (evaluate(model, test, attack) for model in (Masked(), StraightThrough(int8_file)))
    assert torch.equal(masked.natural, straight.natural)
    assert straight.attacked.sum() < masked.attacked.sum()


class Pools(nn.Module):
    """Operators that residual networks lack: max pooling, flattening, clipping, one-sided padding, a sum of branches."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 4, padding="same")
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1, dilation=2, groups=2)
        self.head = nn.Linear(16 * 7 * 7, 5)

    def forward(self, x):
        x = nn.functional.max_pool2d(nn.functional.relu6(self.first(x)), 3, 2, 1)
        x = torch.cat([self.second(x), self.second(x).sigmoid() * 2], 1)
        return self.head(x.flatten(1))


class Apart(nn.Module):
    """Half of the channels and half of the pixels on ways of their own; a little of attention."""

    def forward(self, x):
        left, right = x.chunk(2, 1)
        x = torch.cat([right[:, :, 1::2, ::2], nn.functional.pad(left, (0, 0, 1, 1), mode="reflect")[:, :, :-2:2, 1::2]], 1)
        x = x * x.amax((2, 3), keepdim=True).sigmoid() + x * torch.softmax(x.mean((2, 3)), 1)[:, :, None, None]
        flat = x.flatten(2)
        x = (flat @ flat.transpose(1, 2)).softmax(-1) @ flat
        return nn.functional.normalize(x.unflatten(2, (16, 16)), dim=1)


def mixture():
    """Layers that other families of networks have, one after another."""
    layers = [nn.Hardswish(), nn.Hardsigmoid(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.LeakyReLU(), nn.PReLU(), nn.ELU()]
    layers += [nn.Tanh(), nn.Softplus(), nn.Mish(), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), Apart()]
    layers += [
        nn.LayerNorm([8, 16, 16]),
        nn.ChannelShuffle(2),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
    ]
    layers += [nn.PixelShuffle(2), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32, 5)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *layers)


@pytest.mark.parametrize(("build", "precision"), [(Pools, "float32"), (Pools, "int8"), (mixture, "float32")])
def test_operators_of_other_networks(tmp_path, build, precision):
    torch.manual_seed(0)
    path = tmp_path / "pools.onnx"
    to_onnx(build().eval(), path, images(1))
    if precision == "int8":
        quantize(path, path, images(25))
    given, wanted = StraightThrough(path)(images(6)), OnnxRuntime(path)(images(6))
    torch.testing.assert_close(given, wanted, atol=1e-4 if precision == "float32" else 0.05, rtol=0)


def test_images_of_another_size_are_refused(factored_file):
    with pytest.raises(GdwsError, match=r"images have shape \(1, 3, 16, 16\): expected \('B', 3, 32, 32\)"):
        StraightThrough(factored_file)(images(1)[..., ::2, ::2])


def test_what_it_cannot_read_it_names(tmp_path, factored_file):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Loop", ["x"], ["y"])], "graph", values[:1], values[1:])
    onnx.save(helper.make_model(graph), tmp_path / "loop.onnx")
    with pytest.raises(GdwsError, match=r"has the operators Loop: expected those of gdws\.deploy\."):
        StraightThrough(tmp_path / "loop.onnx")
    (tmp_path / "cut.onnx").write_bytes(factored_file.read_bytes()[:5000])
    with pytest.raises(GdwsError, match="truncated"):
        StraightThrough(tmp_path / "cut.onnx")
    with pytest.raises(GdwsError, match="there is no file"):
        StraightThrough(tmp_path / "none.onnx")
