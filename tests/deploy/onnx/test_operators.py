"""Each operator by itself: the values of ONNX Runtime, and a gradient where it has one."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.runtimes import OnnxRuntime

X = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(0))


def save(path, nodes, constants, opset=20, axes=None):
    """A file from `x` (2, 4, 6, 8) to `y`, which has so many axes; None: find out, but not where that takes much memory."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", ["B", 4, 6, 8]), ("y", None))
    )
    tensors = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    made = helper.make_model(
        helper.make_graph(nodes, "graph", [x], [y], tensors), opset_imports=[helper.make_opsetid("", opset)], ir_version=10
    )
    if axes is None:
        axes = len(onnx.shape_inference.infer_shapes(made, data_prop=True).graph.output[0].type.tensor_type.shape.dim)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * axes))
    onnx.save(made, path)
    return path


def node(kind, *inputs, output="y", **attributes):
    return helper.make_node(kind, list(inputs), [output], **attributes)


def f32(*values):
    return np.array(values, np.float32)


def weight(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


KERNEL = {"w": weight(4, 3, 3, 2), "b": weight(6)}
HALF = {"strides": [2, 2], "kernel_shape": [3, 2], "group": 2}
SCALES, SIZES = f32(1, 1, 2, 1.5), np.array([2, 4, 9, 5])
ODD, EVEN = ("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil")


def resize(mode, places, by, **more):
    names = ["x", "", "by"] if by.dtype == np.float32 else ["x", "", "", "by"]
    return [node("Resize", *names, mode=mode, coordinate_transformation_mode=places, **more)], {"by": by}


def unary(kind, **attributes):
    return [node("Abs", "x", output="a"), node("Add", "a", "one", output="p"), node(kind, "p", **attributes)], {"one": f32(1)}


def compared(kind):
    return [node(kind, "x", "zero", output="c"), node("Cast", "c", to=TensorProto.FLOAT)], {"zero": f32(0)}


def logical(kind):
    nodes = [node("Greater", "x", "zero", output="p"), node("Less", "x", "one", output="q"), node(kind, "p", "q", output="c")]
    return [*nodes, node("Cast", "c", to=TensorProto.FLOAT)], {"zero": f32(0), "one": f32(1)}


CASES = {
    "ConvTranspose": ([node("ConvTranspose", "x", "w", "b", pads=[1, 0, 0, 1], output_padding=[1, 0], **HALF)], KERNEL),
    "ConvTranspose dilated": ([node("ConvTranspose", "x", "w", dilations=[2, 1], pads=[2, 1, 2, 1], group=1)], KERNEL),
    "Conv 1d": (
        [node("Reshape", "x", "s", output="l"), node("Conv", "l", "w", pads=[2, 1], strides=[2])],
        {"s": np.array([-1, 4, 48]), "w": weight(3, 4, 3)},
    ),
    "Conv 3d": (
        [node("Unsqueeze", "x", "a", output="l"), node("Conv", "l", "w", pads=[0, 1, 1, 0, 1, 2])],
        {"a": np.array([2]), "w": weight(3, 4, 1, 3, 3)},
    ),
    "MaxPool 1d": (
        [node("Reshape", "x", "s", output="l"), node("MaxPool", "l", kernel_shape=[3], pads=[1, 0], strides=[2])],
        {"s": np.array([-1, 4, 48])},
    ),
    "nearest by scales": resize("nearest", ODD[0], SCALES, nearest_mode=ODD[1]),
    "nearest to sizes": resize("nearest", ODD[0], SIZES, nearest_mode=ODD[1]),
    "nearest exact": resize("nearest", EVEN[0], f32(1, 1, 2, 2), nearest_mode=EVEN[1]),
    "linear by scales": resize("linear", "half_pixel", SCALES),
    "linear to sizes": resize("linear", "pytorch_half_pixel", SIZES),
    "linear, corners": resize("linear", "align_corners", SIZES),
    "cubic": resize("cubic", "half_pixel", f32(1, 1, 2, 2), cubic_coeff_a=-0.75),
    "cubic, corners": resize("cubic", "align_corners", SIZES, cubic_coeff_a=-0.75),
    "DepthToSpace DCR": ([node("DepthToSpace", "x", blocksize=2)], {}),
    "DepthToSpace CRD": ([node("DepthToSpace", "x", blocksize=2, mode="CRD")], {}),
    "SpaceToDepth": ([node("SpaceToDepth", "x", blocksize=2)], {}),
    "LogSoftmax": ([node("LogSoftmax", "x", axis=1)], {}),
    "Softmax": ([node("Softmax", "x", axis=1)], {}),
    "ReduceMin": ([node("ReduceMin", "x", "a", keepdims=0)], {"a": np.array([1, 3])}),
    "ReduceL1": ([node("ReduceL1", "x", "a")], {"a": np.array([2])}),
    "ReduceSumSquare": ([node("ReduceSumSquare", "x")], {}),
    "ArgMax": ([node("ArgMax", "x", axis=1, keepdims=0, output="i"), node("Cast", "i", to=TensorProto.FLOAT)], {}),
    "GroupNormalization": (
        [node("GroupNormalization", "x", "s", "b", num_groups=2, epsilon=1e-3)],
        {"s": weight(4), "b": weight(4)},
    ),
    "InstanceNormalization": ([node("InstanceNormalization", "x", "s", "b")], {"s": weight(4), "b": weight(4)}),
    "GlobalMaxPool": ([node("GlobalMaxPool", "x")], {}),
    "Constant": ([helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0] * 4), node("Mul", "x", "c")], {}),
    "Constant tensor": (
        [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(weight(8))), node("Add", "x", "c")],
        {},
    ),
    "ConstantOfShape": (
        [node("Shape", "x", output="s"), node("ConstantOfShape", "s", output="c", value=numpy_helper.from_array(f32(3))),
         node("Mul", "x", "c")],
        {},
    ),
    "Range": (
        [node("Shape", "x", start=3, output="s"), node("Squeeze", "s", output="n"),
         node("Range", "zero", "n", "one", output="r"), node("Cast", "r", output="f", to=TensorProto.FLOAT),
         node("Mul", "x", "f")],
        {"zero": np.array(0), "one": np.array(1)},
    ),
    "sizes": (
        [node("Shape", "x", output="s"), node("Gather", "s", "last", output="n"), node("Div", "n", "three", output="d"),
         node("Mul", "d", "three", output="m"), node("Cast", "m", output="f", to=TensorProto.FLOAT), node("Div", "x", "f")],
        {"last": np.array(-1), "three": np.array(3)},
    ),
    "Gather": ([node("Gather", "x", "i", axis=2)], {"i": np.array([[0, 5], [2, 2]])}),
    "ScatterND": ([node("ScatterND", "x", "i", "v")], {"i": np.array([[0, 1], [1, 3]]), "v": weight(2, 6, 8)}),
    "Tile": ([node("Tile", "x", "n")], {"n": np.array([1, 2, 1, 3])}),
    "Einsum": ([node("Einsum", "x", "x", equation="bchw,bdhw->bcd")], {}),
    "Sum": ([node("Sum", "x", "x", "c")], {"c": weight(8)}),
    "Where": ([node("Not", "p", output="q"), node("Where", "q", "x", "zero")], {"p": weight(8) > 0, "zero": f32(0)}),
    **{kind: unary(kind) for kind in ("Log", "Reciprocal", "Neg", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Sqrt")},
    **{kind: unary(kind) for kind in ("Selu", "Celu", "Softsign")},
    **{kind: compared(kind) for kind in ("Equal", "Less", "LessOrEqual", "GreaterOrEqual")},
    **{kind: logical(kind) for kind in ("And", "Or")},
}  # fmt: skip
FLAT = {
    "ArgMax",
    "ConstantOfShape",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    *("Equal", "Less", "LessOrEqual", "GreaterOrEqual", "And", "Or"),
}
"""Those whose gradient is zero or none."""


@pytest.mark.parametrize("name", CASES)
def test_an_operator_has_the_values_of_onnx_runtime(tmp_path, name):
    nodes, constants = CASES[name]
    path = save(tmp_path / "x.onnx", nodes, constants, opset=21 if name == "GroupNormalization" else 20)
    x = X.clone().requires_grad_()
    given = StraightThrough(path)(x)
    wanted = OnnxRuntime(path, 1)(X)
    assert given.shape == wanted.shape
    torch.testing.assert_close(given.detach(), wanted, atol=1e-4, rtol=1e-4)
    if name not in FLAT:
        (gradient,) = torch.autograd.grad(given.square().sum(), x)
        assert gradient.abs().sum() > 0


class Enlarged(nn.Module):
    """What restoration and segmentation networks have between their convolutions."""

    def __init__(self):
        super().__init__()
        self.first, self.up, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 3, 2, 1, 1), nn.Conv2d(8, 3, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)])

    def forward(self, x):
        y = self.norms[0](self.first(x))
        wide = self.norms[1](self.up(F.max_pool2d(F.silu(y), 2)))
        y = y + F.interpolate(wide, x.shape[2:], mode="bilinear") + F.interpolate(wide, scale_factor=1.0, mode="nearest")
        y = F.interpolate(F.interpolate(y, scale_factor=2), size=x.shape[2:], mode="bilinear", align_corners=True)
        y = F.interpolate(F.pixel_unshuffle(y, 2), scale_factor=2, mode="bicubic")
        return {
            "map": self.last(F.pixel_shuffle(y.repeat(1, 1, 1, 1), 2)[..., ::2, ::2]),
            "classes": F.log_softmax(y, 1).argmax(1),
        }


@torch.no_grad()
def test_networks_that_enlarge_maps_run_at_any_size(tmp_path):
    torch.manual_seed(0)
    model, path = Enlarged().eval(), tmp_path / "x.onnx"
    to_onnx(model, path, torch.rand(1, 3, 16, 16))
    straight, runtime = StraightThrough(path), OnnxRuntime(path, 1)
    for size in ((16, 16), (12, 20)):
        x = torch.rand(2, 3, *size)
        wanted = runtime(x)
        for found in (straight(x), model(x)):
            torch.testing.assert_close(found["map"], wanted["map"], atol=1e-4, rtol=0)
            assert (found["classes"] == wanted["classes"]).float().mean() > 0.999


@pytest.mark.parametrize(
    ("nodes", "constants", "words"),
    [
        (*resize("nearest", "tf_crop_and_resize", SIZES), "a Resize is nearest, tf_crop_and_resize|not an ONNX model"),
        (
            *resize("nearest", "half_pixel", SCALES, nearest_mode="ceil"),
            "a Resize is nearest, half_pixel ceil: expected one that",
        ),
        (*resize("cubic", "half_pixel", SCALES, cubic_coeff_a=-0.5), "a Resize is cubic"),
        (*resize("linear", "half_pixel", f32(1, 2, 1, 1)), "changes batch or channels"),
        (*resize("linear", "half_pixel", SCALES, antialias=1), "has Resize with antialias 1"),
        ([node("ConvTranspose", "x", "w", output_shape=[9, 9])], {"w": weight(4, 3, 3, 3)}, "ConvTranspose with output_shape"),
        ([node("ScatterND", "x", "i", "v", reduction="add")], CASES["ScatterND"][1], "ScatterND with reduction b'add'"),
    ],
)
def test_what_an_operator_does_not_do_is_told(tmp_path, nodes, constants, words):
    path = save(tmp_path / "x.onnx", nodes, constants)
    with pytest.raises(GdwsError, match=words):
        StraightThrough(path)(X)


@pytest.mark.parametrize("kind", ["ConstantOfShape", "Range", "Tile", "Resize", "Concat", "Expand"])
def test_what_makes_large_tensors_is_refused_before_it_does(tmp_path, kind):
    """Bug: onnx wrote down every one of many whole numbers, since they could be a shape, and the process was ended."""
    many = [node("Cast", "c32", output="f", to=1), node("ReduceMax", "f", output="m"), node("Add", "x", "m")]
    doubled = [node("Concat", f"c{n}", f"c{n}", output=f"c{n + 1}", axis=0) for n in range(32)]
    large = {
        "Concat": ([node("Shape", "x", output="c0"), *doubled, *many], {}),
        "Expand": ([node("Expand", "one", "n", output="c32"), *many], {"one": np.array([1]), "n": np.array([10**10])}),
        "ConstantOfShape": (
            [node("ConstantOfShape", "n", output="c"), node("ReduceMax", "c", output="m"), node("Add", "x", "m")],
            {"n": np.array([1, 1, 10**5, 10**5])},
        ),
        "Range": (
            [node("Range", "zero", "n", "one", output="c"), node("Cast", "c", output="f", to=1),
             node("ReduceMax", "f", output="m"), node("Add", "x", "m")],
            {"zero": np.array(0), "n": np.array(10**9), "one": np.array(1)},
        ),
        "Tile": ([node("Tile", "x", "n")], {"n": np.array([1, 10**4, 10**4, 1])}),
        "Resize": resize("nearest", "asymmetric", f32(1, 1, 1e4, 1e4), nearest_mode="floor"),
    }  # fmt: skip
    nodes, constants = large[kind]
    path = save(tmp_path / "x.onnx", nodes, constants, axes=4)
    for reader in (StraightThrough, OnnxRuntime):
        with pytest.raises(GdwsError, match="would take"):
            reader(path)
