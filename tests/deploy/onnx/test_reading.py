"""ONNX files of strangers: a sentence from all that reads them, before an engine has them."""

from contextlib import suppress

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from gdws.deploy.onnx.reading import read_onnx
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.quantize import quantize, quantize_openvino
from gdws.deploy.runtimes import OnnxRuntime, OpenVino
from gdws.errors import GdwsError

IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
READERS = {
    "onnxruntime": OnnxRuntime,
    "openvino": lambda path: OpenVino(path, IMAGES),
    "straight through": StraightThrough,
}
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, *numbers):
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


WEIGHT = numpy_helper.from_array(np.random.default_rng(0).normal(size=(5, 192)).astype(np.float32), "weight")
WEIGHT_OF_A_PIXEL = numpy_helper.from_array(np.ones((5, 64), np.float32), "weight")
BODY = [helper.make_node("Flatten", ["images"], ["flat"]), helper.make_node("Gemm", ["flat", "weight"], ["logits"], transB=1)]


def save(path, nodes=BODY, constants=(WEIGHT,), inputs=None, outputs=None, opset=20, **more):
    """A file with one linear layer, or with anything else."""
    graph = helper.make_graph(
        nodes, "graph", inputs or [value("images", ["B", 3, 8, 8])], outputs or [value("logits", ["B", 5])], constants
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **more)
    path.write_bytes(made.SerializeToString())
    return path


def before(*nodes):
    """Nodes that make `x` of the images, which then take their place."""
    return [*nodes, helper.make_node("Flatten", ["x"], ["flat"]), BODY[1]]


GROWN = [
    helper.make_node("Expand", ["one", "shape"], ["grown"]),
    helper.make_node("ReduceMax", ["grown"], ["max"], keepdims=0),
    helper.make_node("Add", ["images", "max"], ["x"]),
]
ONE = numpy_helper.from_array(np.ones(1, np.float32), "one")


def declared(*dims):
    """A weight of a shape for which there are no bytes."""
    tensor = numpy_helper.from_array(np.zeros(1, np.float32), "weight")
    tensor.dims[:] = dims
    return tensor


def outside(location, *, offset=0, dims=(5, 192)):
    tensor = onnx.TensorProto(name="weight", data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="offset", value=str(offset))
    return tensor


LOOP = helper.make_node(
    "Loop",
    ["count", "", "images"],
    ["x"],
    body=helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Identity", ["old"], ["new"])],
        "body",
        [value("i", [], INT64), value("on", [], TensorProto.BOOL), value("old", None)],
        [value("still", [], TensorProto.BOOL), value("new", None)],
    ),
)
WRONG = {
    "a loop": ({"nodes": before(LOOP), "constants": [WEIGHT, constant("count", 10**18)]}, "has the operators Loop"),
    "a circle": (
        {"nodes": [helper.make_node("Add", ["images", "y"], ["x"]), helper.make_node("Relu", ["x"], ["y"]), *before()]},
        "is not an ONNX model",
    ),
    "no weight": ({"constants": []}, "is not an ONNX model"),
    "an unknown operator": ({"nodes": before(helper.make_node("Magic", ["images"], ["x"]))}, "Magic"),
    "two inputs": (
        {"inputs": [value("images", ["B", 3, 8, 8]), value("mask", ["B"])]},
        "takes 'images' of float32, 'mask' of",
    ),
    "no input": ({"inputs": [value("weight", [5, 192])]}, "takes nothing: expected one tensor of images"),
    "bytes": ({"inputs": [value("images", ["B", 3, 8, 8], TensorProto.UINT8)]}, "takes 'images' of uint8: expected one tensor"),
    "half": ({"inputs": [value("images", ["B", 3, 8, 8], TensorProto.FLOAT16)]}, "takes 'images' of float16: expected"),
    "no axes": (
        {"inputs": [value("images", ["B", 192])]},
        "takes 'images' of float32 with 2 axes: expected one",
    ),
    "two outputs": (
        {"outputs": [value("logits", ["B", 5]), value("flat", ["B", 192])]},
        "gives 'logits' of float32, 'flat'",
    ),
    "a map": (
        {"outputs": [value("images", ["B", 3, 8, 8])]},
        "gives 'images' of float32 with 4 axes: expected one",
    ),
    "a square": (
        {
            "nodes": before(helper.make_node("Transpose", ["images"], ["x"], perm=[1, 0, 2, 3])),
            "constants": [WEIGHT_OF_A_PIXEL],
        },
        r"gives \(3, 5\) for 1 images: expected logits",
    ),
    "labels": (
        {"nodes": [*BODY, helper.make_node("ArgMax", ["logits"], ["top"])], "outputs": [value("top", ["B", 1], INT64)]},
        "gives 'top' of int64|has the operators ArgMax",
    ),
    "a shape": ({"constants": [declared(10**5, 10**5)]}, "is not an ONNX model"),
    "a negative shape": ({"constants": [declared(-1, 192)]}, "is not an ONNX model"),
    "growth": (
        {"nodes": before(*GROWN), "constants": [WEIGHT, ONE, constant("shape", 10**5, 10**5)]},
        "values between the layers of .* would take 40,000,0",
    ),
    "padding": (
        {
            "nodes": before(helper.make_node("Pad", ["images", "pads"], ["x"])),
            "constants": [WEIGHT, constant("pads", 0, 0, 0, 0, 0, 0, 10**5, 10**5)],
        },
        "would take|is not an ONNX model",
    ),
    "another file": (
        {"constants": [outside("../weight.bin")]},
        r"in .*weight.bin: expected a file in its own folder",
    ),
    "a device": ({"constants": [outside("/dev/zero")]}, "keeps 'weight' in /dev/zero: expected a file in its own folder"),
    "a link": ({"constants": [outside("link.bin")]}, r"keeps 'weight' in .*secret: expected a file in its own folder"),
    "a short file": (
        {"constants": [outside("weight.bin", offset=8)]},
        r"in .*weight.bin: expected 3,840 bytes of it",
    ),
    "functions": (
        {"functions": [helper.make_function("own", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [])]},
        "has functions",
    ),
    "a later version": ({"opset": 10**6}, "is of operator set 1000000: expected 1 to"),
}


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    for path in (tmp_path / "weight.bin", place / "weight.bin", tmp_path / "secret"):
        path.write_bytes(WEIGHT.raw_data)
    (place / "link.bin").symlink_to(tmp_path / "secret")
    return place


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_network_is_told_by_every_reader(folder, kind):
    changes, words = WRONG[kind]
    path = save(folder / "x.onnx", **changes)
    for name, reader in READERS.items():
        with pytest.raises(GdwsError, match=words if name != "straight through" else f"{words}|has the operators") as told:
            reader(path)
        assert "\n" not in str(told.value)
    for tool in (lambda: quantize(path, folder / "int8.onnx", IMAGES), lambda: quantize_openvino(path, IMAGES)):
        with pytest.raises(GdwsError, match=words):
            tool()


@pytest.mark.parametrize("inside", [True, False])
def test_a_plain_file_is_read(folder, inside):
    """With its weights inside, or in a file beside it."""
    path = save(folder / "x.onnx", constants=[WEIGHT if inside else outside("weight.bin")])
    wanted = IMAGES.flatten(1) @ torch.from_numpy(numpy_helper.to_array(WEIGHT).copy()).T
    for reader in READERS.values():
        torch.testing.assert_close(reader(path)(IMAGES), wanted, atol=1e-5, rtol=1e-5)


def test_sizes_that_a_file_leaves_open_are_those_of_usual_images(folder, monkeypatch):
    nodes = before(helper.make_node("Relu", ["images"], ["y"]), helper.make_node("GlobalAveragePool", ["y"], ["x"]))
    weight = numpy_helper.from_array(np.zeros((5, 3), np.float32), "weight")
    path = save(folder / "x.onnx", nodes=nodes, constants=[weight], inputs=[value("images", ["B", "C", "H", "W"])])
    read_onnx(path, "anybody")
    monkeypatch.setenv("GDWS_MAX_BYTES", "1000")
    with pytest.raises(GdwsError, match=r"values between the layers of .*x.onnx would take 602,1\d\d bytes"):
        read_onnx(path, "anybody")


CONV = numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "kernel")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (helper.make_node("Conv", ["images", "kernel"], ["x"], auto_pad="SAME_UPPER"), "has Conv with auto_pad b'SAME_UPPER'"),
        (
            helper.make_node("MaxPool", ["images"], ["x"], kernel_shape=[1, 1], dilations=[2, 2]),
            r"with dilations \[2, 2\]",
        ),
        (
            helper.make_node("BatchNormalization", ["images", *["three"] * 4], ["x", "", ""], training_mode=1),
            "training_mode 1",
        ),
        (helper.make_node("ReduceMean", ["images", "none"], ["x"], noop_with_empty_axes=1), "with noop_with_empty_axes 1"),
    ],
)
def test_what_the_attackable_form_would_pass_over_is_refused(folder, node, words):
    """Bug: it gave other logits than the file, without a word."""
    three = numpy_helper.from_array(np.ones(3, np.float32), "three")
    path = save(folder / "x.onnx", nodes=before(node), constants=[WEIGHT, CONV, three, constant("none")])
    with pytest.raises(GdwsError, match=words):
        StraightThrough(path)


def test_files_of_earlier_operator_sets_run_but_are_not_attacked(folder):
    path = save(folder / "x.onnx", opset=13)
    assert OnnxRuntime(path)(IMAGES).shape == (2, 5)
    with pytest.raises(GdwsError, match="is of operator set 13: expected 18 or later"):
        StraightThrough(path)


def test_operators_that_fail_are_told(folder):
    scale = numpy_helper.from_array(np.ones((5, 7), np.float32), "weight")
    nodes = [*BODY[:1], helper.make_node("Identity", ["flat"], ["x"]), helper.make_node("MatMul", ["x", "weight"], ["logits"])]
    path = save(folder / "x.onnx", nodes=nodes, constants=[scale], inputs=[value("images", ["B", "C", "H", "W"])])
    for reader in READERS.values():
        with pytest.raises(GdwsError):
            reader(path)(IMAGES)


def test_damaged_files_are_told_in_a_sentence(folder):
    random = np.random.default_rng(0)
    whole = save(folder / "x.onnx", constants=[numpy_helper.from_array(np.ones((5, 192), np.int8), "w8"), WEIGHT]).read_bytes()
    for _ in range(150):
        mutant = bytearray(whole)
        for place in random.integers(0, 400, random.integers(1, 4)):
            mutant[place] = random.integers(256)
        (folder / "x.onnx").write_bytes(mutant)
        for reader in READERS.values():
            with suppress(GdwsError):
                assert len(reader(folder / "x.onnx")(IMAGES)) == 2
