"""Networks that are no classifiers as files, in real engines: several inputs and outputs, any size, any type."""

from dataclasses import dataclass

import onnx
import pytest
import torch
from helpers import images
from torch import nn

from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments, call_model, floats_in
from gdws.deploy.engines import compile
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.onnx.parity import verify
from gdws.deploy.onnx.reading import read_signature
from gdws.deploy.onnx.signature import Port, Signature, attach_signature
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.quantize import quantize, quantize_openvino
from gdws.deploy.runtimes import OnnxRuntime, OpenVino


def rand(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Denoiser(nn.Module):
    """An image and its noise level, a map of the same size."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, image, sigma):
        noise = torch.cat([image, sigma[:, None, None, None].expand(-1, 1, *image.shape[2:])], 1)
        return image - self.last(torch.relu(self.first(noise)))


class Heads(nn.Module):
    """Two heads in a dictionary, one of them with two maps and whole numbers."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = torch.relu(self.body(x))
        scores = self.head(x)
        return {"relu": scores, "levels": (x, scores.argmax(1)), "again": scores}


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x):
        wide = torch.relu(self.down(x))
        return self.out(torch.cat([wide, self.up(torch.relu(self.deep(wide)))], 1))


@dataclass
class Found:
    boxes: torch.Tensor
    count: int


class Words(nn.Module):
    """Whole numbers in, and a dataclass out that torch.export does not know."""

    def __init__(self):
        super().__init__()
        self.table, self.conv = nn.Embedding(10, 6), nn.Conv1d(6, 4, 3)

    def forward(self, words):
        found = self.conv(self.table(words).transpose(1, 2))
        return Found(found, found.shape[2])


def upscaler(scale=4):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale)
    )


def denoiser(channels=1):
    torch.manual_seed(0)
    model = Denoiser()
    model.first, model.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
    return model.eval()


NOISY = Arguments(rand(4, 3, 16, 12), sigma=rand(4))


def sessions(path, example):
    return [OnnxRuntime(path, 1), OpenVino(path, example, 1), StraightThrough(path)]


def same(found, wanted, tolerance=1e-5):
    found, wanted = floats_in(found), floats_in(wanted)
    assert len(found) == len(wanted)
    for given, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(given.float(), expected.float(), atol=tolerance, rtol=0)


@torch.no_grad()
def test_a_denoiser_takes_an_image_and_its_noise_at_any_size(tmp_path):
    model, path = denoiser(), tmp_path / "x.onnx"
    to_onnx(model, path, NOISY)
    taken, given = read_signature(path).inputs, read_signature(path).outputs
    assert taken == (Port("image", "float32", ("batch", 3, "height", "width")), Port("sigma", "float32", ("batch",)))
    assert given == (Port("output", "float32", ("batch", 3, "height", "width")),)
    assert verify(path, model, NOISY).difference < 1e-5
    for session in sessions(path, NOISY):
        for other in (NOISY, Arguments(rand(1, 3, 8, 10), rand(1)), Arguments(sigma=rand(3), image=rand(3, 3, 20, 6))):
            same(call_model(session, other) if isinstance(session, nn.Module) else session(other), call_model(model, other))


def test_several_tensors_may_come_as_a_dictionary_or_a_tuple(tmp_path):
    model = denoiser()
    to_onnx(model, tmp_path / "a.onnx", {"image": rand(1, 3, 8, 8), "sigma": rand(1)})
    to_onnx(model, tmp_path / "b.onnx", (rand(1, 3, 8, 8), rand(1)))
    assert read_signature(tmp_path / "a.onnx") == read_signature(tmp_path / "b.onnx")
    with pytest.raises(GdwsError, match="called with a str: expected a tensor"):
        to_onnx(model, tmp_path / "c.onnx", "images")


@torch.no_grad()
def test_a_dictionary_keeps_its_names(tmp_path):
    torch.manual_seed(0)
    model, path, x = Heads().eval(), tmp_path / "x.onnx", rand(3, 3, 12, 16)
    to_onnx(model, path, x)
    assert [(port.name, port.dtype) for port in read_signature(path).outputs] == [
        ("relu", "float32"), ("levels", "float32"), ("levels1", "int64"), ("again", "float32"),
    ]  # fmt: skip
    assert verify(path, model, x).difference < 1e-5
    wanted = model(x)
    for session in [
        OnnxRuntime(path),
        OpenVino(path, x),
        compile(model, "torch", example=x),
        compile(model, "eager", example=x),
    ]:
        found = session(x)
        assert list(found) == ["relu", "levels", "levels1", "again"]
        assert torch.equal(found["levels1"], wanted["levels"][1])
        same(found, wanted)


@torch.no_grad()
def test_a_unet_with_transposed_convolutions(tmp_path):
    torch.manual_seed(0)
    model, path, x = UNet().eval(), tmp_path / "x.onnx", rand(2, 3, 16, 16)
    to_onnx(model, path, x)
    assert {"down", "deep", "up", "out"} <= {node.name for node in onnx.load(path).graph.node}
    for session in sessions(path, x):
        for other in (x, rand(1, 3, 8, 12)):
            same(session(other), model(other))
    assert verify(path, model, x).difference < 1e-5
    with pytest.raises(
        GdwsError, match=r"differs from its model by .* of the largest magnitude of an output: expected at most"
    ):
        verify(path, UNet().eval(), x)


@torch.no_grad()
def test_an_upscaler_runs_at_three_sizes_from_one_file(tmp_path):
    torch.manual_seed(0)
    model, path = upscaler().eval(), tmp_path / "x.onnx"
    to_onnx(model, path, rand(1, 3, 16, 16))
    assert read_signature(path).outputs == (Port("output", "float32", ("batch", 3, "4*height", "4*width")),)
    for session in sessions(path, rand(1, 3, 16, 16)):
        for size in ((16, 16), (9, 14), (32, 8)):
            found = session(rand(2, 3, *size))
            assert found.shape == (2, 3, 4 * size[0], 4 * size[1])
            same(found, model(rand(2, 3, *size)))


class OneSize(nn.Module):
    """Its weights are as large as its images."""

    def __init__(self):
        super().__init__()
        self.conv, self.mask = nn.Conv2d(3, 3, 3, padding=1), nn.Parameter(rand(3, 8, 8))

    def forward(self, x):
        return self.conv(x) * self.mask


@torch.no_grad()
def test_what_is_for_one_size_is_for_any_batch_at_least(tmp_path):
    model = OneSize().eval()
    to_onnx(model, tmp_path / "x.onnx", rand(1, 3, 8, 8))
    assert read_signature(tmp_path / "x.onnx").inputs == (Port("images", "float32", ("batch", 3, 8, 8)),)
    same(OnnxRuntime(tmp_path / "x.onnx")(rand(5, 3, 8, 8)), model(rand(5, 3, 8, 8)))


@torch.no_grad()
def test_whole_numbers_in_and_a_dataclass_out(tmp_path):
    torch.manual_seed(0)
    model, path = Words().eval(), tmp_path / "x.onnx"
    words = torch.randint(10, (3, 7))
    to_onnx(model, path, words)
    assert read_signature(path).inputs == (Port("images", "int64", ("batch", 7)),)
    assert [port.name for port in read_signature(path).outputs] == ["boxes"]
    for session in [*sessions(path, words), compile(model, "eager", example=words), compile(model, "openvino", example=words)]:
        same(session(words), model(words))
    same(OnnxRuntime(path)(words.int()), model(words))
    with pytest.raises(GdwsError, match=r"images is of torch\.float32: expected values of int64"):
        OnnxRuntime(path)(words.float())


@torch.no_grad()
def test_a_model_in_half_precision_is_a_file_in_float32(tmp_path):
    model, path = denoiser().half(), tmp_path / "x.onnx"
    example = NOISY.map(torch.Tensor.half)
    to_onnx(model, path, example)
    assert {port.dtype for port in read_signature(path).inputs} == {"float32"}
    assert verify(path, model, example, tolerance=0.01).difference > 0
    same(OnnxRuntime(path)(example), denoiser()(*NOISY.positional, **NOISY.named), 0.01)


SIGNED = Signature(
    (Port("noise_level", "float64", ("N",)), Port("input.1", "float16", ("N", 3, "h", None))),
    (Port("1234", "float16", ("N", 3, "h", None)),),
)


class Turned(nn.Module):
    """The denoiser as a converter makes it of a file: the arguments in the file's order."""

    def __init__(self):
        super().__init__()
        self.inner = denoiser()

    def forward(self, noise_level, input_1):
        return self.inner(input_1, noise_level)


@torch.no_grad()
def test_a_network_that_came_from_a_file_becomes_one_of_the_same_signature(tmp_path):
    model, path = Turned().eval(), tmp_path / "x.onnx"
    attach_signature(model, SIGNED)
    image, sigma = NOISY.tensors
    to_onnx(model, path, Arguments(sigma.double(), image.half()))
    assert read_signature(path) == SIGNED
    assert "Cast" in {node.op_type for node in onnx.load(path).graph.node}
    other = Arguments(rand(2).double(), rand(2, 3, 10, 6).half())
    for session in sessions(path, other):
        found = session(*other.positional) if isinstance(session, nn.Module) else session(other)
        assert found.dtype == torch.float16
        same(found, model(rand(2), rand(2, 3, 10, 6)), 0.01)
    assert verify(path, model, other).difference < 1e-3
    attach_signature(model, Signature(SIGNED.inputs, SIGNED.outputs * 2))
    with pytest.raises(GdwsError, match="the model gives 1 tensors: expected 2, as in the file"):
        to_onnx(model, path, other)


def test_a_batch_that_a_file_fixes_stays(tmp_path):
    model, path = upscaler().eval(), tmp_path / "x.onnx"
    fixed = Signature((Port("in", "float32", (1, 3, 16, 16)),), (Port("out", "float32", (1, 3, 64, 64)),))
    attach_signature(model, fixed)
    to_onnx(model, path, 255 * rand(1, 3, 16, 16))
    assert read_signature(path) == fixed
    assert verify(path, model, 255 * rand(3, 3, 16, 16)).images == 3


@torch.no_grad()
def test_names_that_values_inside_have(tmp_path):
    """Bug of the exporter: an output got the name of a value inside."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return {"conv2d": torch.relu(self.conv(x)), "x": x + 1, "same": x}

    model, path = Named().eval(), tmp_path / "x.onnx"
    to_onnx(model, path, rand(1, 3, 8, 8))
    assert [port.name for port in read_signature(path).outputs] == ["conv2d", "x1", "same"]
    assert verify(path, model, rand(2, 3, 8, 8)).difference < 1e-5


@torch.no_grad()
def test_int8_of_two_inputs(tmp_path):
    model, path = denoiser(), tmp_path / "x.onnx"
    calibration = Arguments(rand(30, 3, 16, 12), sigma=rand(30))
    to_onnx(model, path, NOISY)
    quantize(path, tmp_path / "int8.onnx", calibration)
    assert 1e-5 < verify(tmp_path / "int8.onnx", model, NOISY, tolerance=None).difference < 0.1
    same(StraightThrough(tmp_path / "int8.onnx")(*NOISY.tensors), OnnxRuntime(tmp_path / "int8.onnx")(NOISY), 0.02)
    same(OpenVino(quantize_openvino(path, calibration), NOISY)(NOISY), call_model(model, NOISY), 0.1)


@torch.no_grad()
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "torch", "eager", "auto"])
def test_every_engine_of_a_cpu_takes_two_inputs(engine):
    model = denoiser()
    run = compile(model, engine, example=NOISY, threads=1)
    same(run(NOISY), call_model(model, NOISY))
    same(run(NOISY[:2]), call_model(model, NOISY[:2]))


def test_a_tensor_of_pictures_stays_images(tmp_path):
    """The one convention of a classifier: images in [0, 1] to logits, any batch and one size."""
    torch.manual_seed(0)
    to_onnx(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), tmp_path / "x.onnx", images(1))
    signature = read_signature(tmp_path / "x.onnx")
    assert signature.inputs == (Port("images", "float32", ("batch", 3, 32, 32)),)
    assert signature.outputs == (Port("logits", "float32", ("batch", 4)),)
