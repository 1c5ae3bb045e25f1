"""Nodes of every kind in files of their own, beside ONNX Runtime."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from onnx_graphs import floats, runtime, save, whole

from gdws.models import from_onnx

IMAGE = (2, 4, 9, 10)
KERNEL, SPREAD, GROUPED, EVEN = floats(6, 4, 3, 3), floats(4, 3, 3, 3), floats(6, 2, 3, 3), floats(6, 4, 2, 4)
CASES = {
    "a convolution": ("Conv", {"w": KERNEL, "b": floats(6)}, {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    "grouped": ("Conv", {"w": GROUPED}, {"group": 2, "pads": [1, 1, 1, 1]}),
    "dilated": ("Conv", {"w": KERNEL}, {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "padded on one side": ("Conv", {"w": KERNEL, "b": floats(6)}, {"pads": [0, 1, 2, 3]}),
    "as large as before": ("Conv", {"w": EVEN}, {"auto_pad": "SAME_UPPER"}),
    "as large as before, more first": ("Conv", {"w": EVEN}, {"auto_pad": "SAME_LOWER"}),
    "half as large": ("Conv", {"w": KERNEL}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "transposed": ("ConvTranspose", {"w": SPREAD, "b": floats(3)}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "transposed, more after": (
        "ConvTranspose",
        {"w": SPREAD},
        {"strides": [2, 3], "pads": [1, 1, 1, 1], "output_padding": [1, 2]},
    ),
    "transposed, cut on one side": ("ConvTranspose", {"w": SPREAD}, {"strides": [2, 2], "pads": [1, 1, 0, 0]}),
    "transposed and grouped": ("ConvTranspose", {"w": SPREAD}, {"group": 2, "dilations": [2, 1]}),
    "transposed to a multiple": ("ConvTranspose", {"w": SPREAD}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "a maximum": ("MaxPool", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    "a maximum of the spread": ("MaxPool", {}, {"kernel_shape": [3, 2], "dilations": [2, 3]}),
    "an average": ("AveragePool", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "an average padded on one side": ("AveragePool", {}, {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1]}),
    "an average with the padding": (
        "AveragePool",
        {},
        {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1], "count_include_pad": 1},
    ),
    "the largest": ("GlobalMaxPool", {}, {}),
    "neighboring channels": ("LRN", {}, {"size": 3, "alpha": 0.01}),
    "batch normalization": (
        "BatchNormalization",
        {"s": floats(4), "b": floats(4), "m": floats(4), "v": floats(4) ** 2 + 0.1},
        {"epsilon": 1e-3},
    ),
    "doubled": ("Resize", {"r": None, "s": np.array([1, 1, 2, 2], np.float32)}, {"mode": "nearest"}),
    "as files of Paddle": (
        "Resize",
        {"r": None, "s": np.array([1, 1, 3, 2], np.float32)},
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "asymmetric, rounded": (
        "Resize",
        {"r": None, "s": np.array([1, 1, 3, 2], np.float32)},
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
    ),
    "the nearest of sizes": ("Resize", {"r": None, "s": None, "z": whole(2, 4, 13, 7)}, {"mode": "nearest"}),
    "linear": ("Resize", {"r": None, "s": np.array([1, 1, 2, 3], np.float32)}, {"mode": "linear"}),
    "linear by a fraction": ("Resize", {"r": None, "s": np.array([1, 1, 1.7, 0.6], np.float32)}, {"mode": "linear"}),
    "linear to sizes": ("Resize", {"r": None, "s": None, "z": whole(2, 4, 13, 7)}, {"mode": "linear"}),
    "linear between corners": (
        "Resize",
        {"r": None, "s": None, "z": whole(2, 4, 13, 21)},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "linear, asymmetric": (
        "Resize",
        {"r": None, "s": np.array([1, 1, 2, 2], np.float32)},
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    ),
    "cubic": ("Resize", {"r": None, "s": np.array([1, 1, 2, 2], np.float32)}, {"mode": "cubic"}),
    "a mirrored border": ("Pad", {"p": whole(0, 0, 1, 2, 0, 0, 3, 4)}, {"mode": "reflect"}),
    "a mirrored border of channels": ("Pad", {"p": whole(0, 1, 0, 0, 0, 2, 0, 0)}, {"mode": "reflect"}),
    "a border of ones": ("Pad", {"p": whole(0, 1, 1, 0, 0, 0, 2, -1), "v": np.float32(1)}, {}),
    "from the end": ("Slice", {"s": whole(-1, 8), "e": whole(-20, 1), "a": whole(2, 3), "t": whole(-2, -3)}, {}),
    "one of the channels": ("Gather", {"i": np.array(2)}, {"axis": 1}),
    "channels in two axes": ("Gather", {"i": np.array([[0, -1], [2, 2]])}, {"axis": 1}),
    "space from channels": ("DepthToSpace", {}, {"blocksize": 2}),
    "space from channels, as PyTorch": ("DepthToSpace", {}, {"blocksize": 2, "mode": "CRD"}),
    "a mean over all": ("ReduceMean", {}, {"keepdims": 0}),
    "a length": ("ReduceL2", {"a": whole(1)}, {}),
    "nothing reduced": ("ReduceSum", {}, {"noop_with_empty_axes": 1}),
    "the best class": ("ArgMax", {}, {"axis": 1, "keepdims": 0}),
    "repeated": ("Tile", {"r": whole(1, 2, 1, 3)}, {}),
    "flat from the third axis": ("Flatten", {}, {"axis": 3}),
    "a matrix": ("MatMul", {"w": floats(10, 7)}, {}),
    "logarithms of shares": ("LogSoftmax", {}, {"axis": 1}),
    "a power": ("Pow", {"e": np.float32(2)}, {}),
    "cut off": ("Clip", {"l": None, "h": np.float32(0.5)}, {}),
    "transposed axes": ("Transpose", {}, {}),
    "whole numbers": ("Cast", {}, {"to": TensorProto.INT32}),
}
"""{words: (operator, its other inputs by name, its attributes)}, all of images of IMAGE."""


@pytest.mark.parametrize("words", CASES)
def test_a_node_gives_what_onnx_runtime_gives(words, tmp_path):
    operator, others, attributes = CASES[words]
    names = [name if array is not None else "" for name, array in others.items()]
    node = helper.make_node(operator, ["x", *names], ["y"], "node", **attributes)
    kind = {"ArgMax": TensorProto.INT64, "Cast": TensorProto.INT32}.get(operator, TensorProto.FLOAT)
    constants = {name: array for name, array in others.items() if array is not None}
    path = save(tmp_path / "x.onnx", [node], {"x": list(IMAGE)}, {"y": (kind, None)}, constants)
    x = torch.from_numpy(floats(*IMAGE))
    (wanted,) = runtime(path, x)
    torch.testing.assert_close(from_onnx(path)(x), wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("axes", [1, 3])
def test_convolutions_and_pools_of_other_ranks(axes, tmp_path):
    shape = [2, 4, *[8] * axes]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, *[0] * (2 * axes - 1)]),
        helper.make_node("BatchNormalization", ["a", "s", "s", "s", "s"], ["n"]),
        helper.make_node("MaxPool", ["n"], ["b"], kernel_shape=[2] * axes, strides=[2] * axes),
        helper.make_node("ConvTranspose", ["b", "t"], ["c"], strides=[2] * axes),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    constants = {"w": floats(6, 4, *[3] * axes), "t": floats(6, 2, *[2] * axes), "s": np.abs(floats(6)) + 0.5}
    path = save(tmp_path / "x.onnx", nodes, {"x": shape}, {"y": None}, constants)
    x = torch.from_numpy(floats(*shape))
    torch.testing.assert_close(from_onnx(path)(x), runtime(path, x)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("operator", "gates", "attributes"),
    [("LSTM", 4, {}), ("LSTM", 4, {"direction": "bidirectional"}), ("GRU", 3, {"linear_before_reset": 1})],
)
def test_recurrent_layers(operator, gates, attributes, tmp_path):
    directions = 2 if attributes.get("direction") else 1
    constants = {"w": floats(directions, gates * 5, 3), "r": floats(directions, gates * 5, 5)}
    constants["b"] = floats(directions, gates * 10)
    node = helper.make_node(operator, ["x", "w", "r", "b", "", "h"], ["y", "last"], hidden_size=5, **attributes)
    shapes = {"x": [6, 2, 3], "h": [directions, 2, 5]}
    path = save(tmp_path / "x.onnx", [node], shapes, {"y": None, "last": None}, constants)
    tensors = [torch.from_numpy(floats(*shape)) for shape in shapes.values()]
    found = from_onnx(path)(*tensors)
    for given, wanted in zip(found.values(), runtime(path, *tensors), strict=True):
        torch.testing.assert_close(given, wanted, atol=1e-5, rtol=1e-4)


def test_several_pieces_and_the_largest(tmp_path):
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1),
        helper.make_node("TopK", ["b", "k"], ["values", "places"], axis=3),
    ]
    outputs = {"a": None, "values": None, "places": (TensorProto.INT64, None)}
    path = save(tmp_path / "x.onnx", nodes, {"x": list(IMAGE)}, outputs, {"sizes": whole(1, 3), "k": whole(2)})
    x = torch.from_numpy(floats(*IMAGE))
    found = from_onnx(path)(x)
    assert list(found) == ["a", "values", "places"]
    for given, wanted in zip(found.values(), runtime(path, x), strict=True):
        torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_files_of_earlier_operator_sets(opset, tmp_path):
    """What were attributes are inputs now: limits, axes, pads, sizes of pieces."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["b"], axes=[2], keepdims=0),
        helper.make_node("Softmax", ["b"], ["c"], axis=1),
    ]
    if opset < 13:
        nodes += [helper.make_node("Unsqueeze", ["c"], ["d"], axes=[0]), helper.make_node("Squeeze", ["d"], ["e"], axes=[0])]
    else:
        nodes += [helper.make_node("Identity", ["c"], ["e"])]
    if opset < 11:
        nodes += [
            helper.make_node("Clip", ["e"], ["f"], min=0.01, max=0.2),
            helper.make_node("Upsample", ["a", "scales"], ["u"], mode="nearest"),
        ]
    else:
        nodes += [helper.make_node("Identity", ["e"], ["f"]), helper.make_node("Resize", ["a", "roi", "scales"], ["u"])]
    constants = {"w": KERNEL, "scales": np.array([1, 1, 2, 2], np.float32)} | ({"roi": floats(0)} if opset > 10 else {})
    path = save(tmp_path / "x.onnx", nodes, {"x": list(IMAGE)}, {"f": None, "u": None}, constants, opset)
    x = torch.from_numpy(floats(*IMAGE))
    for given, wanted in zip(from_onnx(path)(x).values(), runtime(path, x), strict=True):
        torch.testing.assert_close(given, wanted, atol=1e-5, rtol=1e-4)


def test_a_mask_may_be_infinite(tmp_path):
    mask = np.triu(np.full((10, 10), -np.inf, np.float32), 1)
    nodes = [helper.make_node("Add", ["x", "mask"], ["y"]), helper.make_node("Softmax", ["y"], ["z"])]
    x = torch.rand(2, 10, 10)
    path = save(tmp_path / "x.onnx", nodes, {"x": [2, 10, 10]}, {"z": None}, {"mask": mask})
    torch.testing.assert_close(from_onnx(path)(x), runtime(path, x)[0])
