"""ONNX files of strangers: a sentence from all that reads them, before an engine has them."""

from contextlib import suppress

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments
from gdws.deploy.onnx.reading import images_together, read_onnx, read_signature
from gdws.deploy.onnx.signature import Port
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.quantize import quantize, quantize_openvino
from gdws.deploy.runtimes import OnnxRuntime, OpenVino

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
MEASURED = [
    helper.make_node("Constant", [], ["first"], value_ints=[0]),
    helper.make_node("ReduceSum", ["images"], ["sum"], keepdims=0),
    helper.make_node("Cast", ["sum"], ["whole"], to=TensorProto.INT64),
    helper.make_node("Unsqueeze", ["whole", "first"], ["shape"]),
]
"""How large something is, by what is in the images."""
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
    "no input": ({"inputs": [value("weight", [5, 192])]}, "takes nothing: expected tensors of float32"),
    "words": (
        {"inputs": [value("images", ["B", 3, 8, 8]), value("words", ["B"], TensorProto.STRING)]},
        "takes 'images' of float32, 'words' of string: expected",
    ),
    "a sequence": (
        {"inputs": [helper.make_tensor_sequence_value_info("images", FLOAT, ["B", 3, 8, 8])]},
        "takes 'images' of sequence: expected tensors of",
    ),
    "complex numbers": (
        {"outputs": [value("logits", ["B", 5]), value("flat", ["B", 192], TensorProto.COMPLEX64)]},
        "gives 'logits' of float32, 'flat' of complex64: expected",
    ),
    "one name for two": (
        {"inputs": [value("images", ["B", 3, 8, 8]), value("images", ["B", 3, 8, 8])]},
        "has inputs and outputs of the names 'images, images, logits'|is not an ONNX model",
    ),
    "a shape": ({"constants": [declared(10**5, 10**5)]}, "is not an ONNX model"),
    "a negative shape": ({"constants": [declared(-1, 192)]}, "is not an ONNX model"),
    "growth": (
        {"nodes": before(*GROWN), "constants": [WEIGHT, ONE, constant("shape", 10**5, 10**5)]},
        "values between the layers of .* would take 40,000,0",
    ),
    "growth by the image": (
        {"nodes": before(*MEASURED, *GROWN), "constants": [WEIGHT, ONE]},
        "has Expand, whose size is not known before it is run",
    ),
    "a part by the image": (
        {
            "nodes": before(*MEASURED, helper.make_node("Slice", ["images", "one", "shape"], ["x"])),
            "constants": [WEIGHT, constant("one", 0)],
        },
        "has Slice, whose size is not known before it is run",
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
    "a later version": ({"opset": 10**6}, "has opset 1000000: expected 1 to"),
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


TWO = [helper.make_node("Mul", ["image", "sigma"], ["scaled"]), helper.make_node("ArgMax", ["scaled"], ["top"], axis=1)]


def two(kind=FLOAT):
    """Two tensors in, whose open sizes have the same names, and two out."""
    inputs = [value("sigma", ["B", 1, "H", "W"], kind), value("image", ["B", 3, "H", "W"], kind)]
    return {
        "inputs": inputs,
        "outputs": [value("scaled", ["B", 3, "H", "W"], kind), value("top", ["B", 1, "H", "W"], INT64)],
        "nodes": TWO,
        "constants": [],
    }


def test_a_file_of_several_tensors_of_any_type_is_read(folder):
    path = save(folder / "x.onnx", **two(TensorProto.FLOAT16))
    signature = read_signature(path)
    assert signature.inputs[1] == Port("image", "float16", ("B", 3, "H", "W"))
    assert signature.outputs[1] == Port("top", "int64", ("B", 1, "H", "W"))
    image, sigma = torch.rand(2, 3, 5, 7), torch.rand(2, 1, 5, 7)
    wanted = image.half() * sigma.half()
    for given in (Arguments(sigma, image), Arguments(image=image, sigma=sigma), Arguments(sigma, image=image)):
        for found in (OnnxRuntime(path)(given), OpenVino(path, given)(given)):
            torch.testing.assert_close(found["scaled"], wanted, atol=1e-3, rtol=0)
            assert torch.equal(found["top"], found["scaled"].argmax(1, keepdim=True))


def test_what_does_not_fit_the_inputs_of_a_file_is_told(folder):
    session = OnnxRuntime(save(folder / "x.onnx", **two()))
    image, sigma = torch.rand(2, 3, 5, 7), torch.rand(2, 1, 5, 7)
    with pytest.raises(GdwsError, match=r"takes 2 tensors \(sigma, image\) and was given 1: expected as many"):
        session(image)
    with pytest.raises(GdwsError, match=r"image has shape \(2, 4, 5, 7\): expected \('B', 3, 'H', 'W'\)"):
        session(Arguments(sigma, torch.rand(2, 4, 5, 7)))
    with pytest.raises(GdwsError, match=r"sigma is of torch\.int64: expected values of float32"):
        session(Arguments(sigma.long(), image))


def test_memory_is_counted_over_all_inputs_and_outputs(folder, monkeypatch):
    """Both are images of one size: what is between them is three channels of a usual image."""
    path = save(folder / "x.onnx", **two())
    monkeypatch.setenv("GDWS_MAX_BYTES", "1000")
    with pytest.raises(GdwsError, match=r"values between the layers of .*x.onnx would take 1,003,520 bytes"):
        read_onnx(path, "anybody")


def test_networks_that_halve_sizes_often_are_read(folder):
    """A usual image can be halved five times; this network needs seven."""
    pools = [helper.make_node("MaxPool", [f"p{n}"], [f"p{n + 1}"], kernel_shape=[2, 2], strides=[2, 2]) for n in range(7)]
    ups = [helper.make_node("Resize", [f"u{n}", "", "scales"], [f"u{n + 1}"]) for n in range(7)]
    ends = helper.make_node("Identity", ["images"], ["p0"]), helper.make_node("Identity", ["p7"], ["u0"])
    nodes = [ends[0], *pools, ends[1], *ups, helper.make_node("Concat", ["u7", "images"], ["both"], axis=1)]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    sizes = {"inputs": [value("images", ["B", 3, "H", "W"])], "outputs": [value("both", ["B", 6, "H", "W"])]}
    path = save(folder / "x.onnx", nodes=nodes, constants=[scales], **sizes)
    assert OnnxRuntime(path)(torch.rand(1, 3, 128, 128)).shape == (1, 6, 128, 128)


def test_sizes_that_are_computed_in_floats_are_known(folder, monkeypatch):
    """As PyTorch's older exporter scales images; the second time by what the first gave."""
    constants, nodes, last = [constant("two", 2), constant("four", 4), constant("zero", 0)], [], "images"
    constants.append(numpy_helper.from_array(np.array([2.5, 2.5], np.float32), "scale"))
    for name in ("a", "b"):
        steps = ("Shape", last), ("Slice", f"{name}0", "two", "four"), ("Cast", f"{name}1"), ("Mul", f"{name}2", "scale")
        steps += ("Floor", f"{name}3"), ("Cast", f"{name}4"), ("Slice", f"{name}0", "zero", "two")
        kinds = {2: {"to": TensorProto.FLOAT}, 5: {"to": TensorProto.INT64}}
        nodes += [helper.make_node(kind, [*of], [f"{name}{n}"], **kinds.get(n, {})) for n, (kind, *of) in enumerate(steps)]
        nodes.append(helper.make_node("Concat", [f"{name}6", f"{name}5"], [f"{name}7"], axis=0))
        nodes.append(helper.make_node("Resize", [last, "", "", f"{name}7"], [last := f"{name}8"], mode="nearest"))
    sizes = {"inputs": [value("images", ["B", 3, "H", "W"])], "outputs": [value("b8", ["B", 3, "H2", "W2"])]}
    path = save(folder / "x.onnx", nodes=nodes, constants=constants, **sizes)
    assert OnnxRuntime(path)(torch.rand(1, 3, 8, 8)).shape == (1, 3, 50, 50)
    monkeypatch.setenv("GDWS_MAX_BYTES", str(10**7))
    with pytest.raises(
        GdwsError, match=r"would take 27,283,200 bytes"
    ):  # two images of three channels, of 1,400 and 560 pixels
        read_onnx(path, "anybody")


def test_more_images_are_taken_together_as_they_take_memory(folder):
    """Bug: what one image takes was taken times their number, where every two of them have a value."""
    pairs = helper.make_node("MatMul", ["column", "row"], ["pairs"])
    nodes = [
        helper.make_node("Reshape", ["images", "tall"], ["column"]),
        helper.make_node("Reshape", ["images", "flat"], ["row"]),
    ]
    nodes += [
        pairs,
        helper.make_node("ReduceMax", ["pairs"], ["max"], keepdims=0),
        helper.make_node("Add", ["images", "max"], ["x"]),
    ]
    constants = [constant("tall", -1, 1), constant("flat", 1, -1)]
    sizes = {"inputs": [value("images", ["B", 3, 16, 16])], "outputs": [value("x", ["B", 3, 16, 16])]}
    together = images_together(save(folder / "x.onnx", nodes=nodes, constants=constants, **sizes))
    assert 2**28 < 4 * (together * 768) ** 2 <= 2**30


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
    with pytest.raises(GdwsError, match="has opset 13: expected 18 or later"):
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
