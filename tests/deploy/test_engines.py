"""Real sessions of every engine, against eager PyTorch."""

import sys

import pytest
import torch
from helpers import Blocks, factored, images
from torch import nn

import gdws
from gdws import models
from gdws.core.errors import GdwsError
from gdws.deploy.engines import compile
from gdws.deploy.quantize import quantize

ENGINES = ("onnxruntime", "openvino", "torch")


@pytest.fixture(scope="module")
def model():
    return factored()


@pytest.fixture(scope="module")
def compiled(model, factored_file):
    sources = {"onnxruntime": factored_file, "openvino": factored_file, "torch": model}
    return {engine: compile(source, engine, example=images(1), threads=1) for engine, source in sources.items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_agree_with_eager_pytorch_at_any_batch(model, compiled, engine):
    run = compiled[engine]
    assert (run.engine, run.precision, run.threads, run.name) == (engine, "float32", 1, f"{engine} float32")
    kept = run(images(1))
    copy = kept.clone()
    for batch in (1, 5, 40, 5):
        part = images(batch, first=batch)
        with torch.no_grad():
            wanted = model(part)
        logits = run(part)
        assert logits.dtype == torch.float32
        assert not logits.requires_grad
        torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
        assert torch.equal(logits.argmax(1), wanted.argmax(1))
    assert torch.equal(kept, copy)  # later passes do not write into earlier results


@pytest.mark.parametrize("engine", ENGINES)
def test_any_layout_and_type_of_images_will_do(compiled, engine):
    part = images(3)
    wanted = compiled[engine](part)
    for same in (part.double(), part.to(memory_format=torch.channels_last), part.repeat_interleave(2, 0)[::2].requires_grad_()):
        torch.testing.assert_close(compiled[engine](same), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_images_of_another_size_are_refused(compiled, engine):
    with pytest.raises(GdwsError, match=r"images have shape \(2, 3, 16, 16\): expected"):
        compiled[engine](torch.rand(2, 3, 16, 16))


def test_packed_pytorch_folds_norms_only_where_that_is_exact():
    torch.manual_seed(0)
    blocks = Blocks().eval()
    with torch.no_grad():
        torch.testing.assert_close(compile(blocks, "torch", example=images(1))(images(5)), blocks(images(5)), atol=1e-5, rtol=0)


def test_threads_are_the_engines_own(model):
    run = compile(model, "torch", example=images(1), threads=2)
    run(images(2))
    assert run.threads == 2
    assert torch.get_num_threads() == 1


def test_auto_takes_one_of_the_engines(embedded_file):
    run = compile(models.embedded(), example=images(1))
    assert run.engine in ENGINES
    with torch.no_grad():
        torch.testing.assert_close(run(images(5)), models.embedded()(images(5)), atol=1e-4, rtol=0)
    assert compile(str(embedded_file), example=images(1)).engine in ("onnxruntime", "openvino")


def test_auto_leaves_out_engines_that_cannot_run_the_model(tmp_path):
    """Bug: a folder with its own ONNX file ran in no engine, since one of three could not trace a reshape in it."""
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)]
    upscaler = gdws.compress(nn.Sequential(*layers).eval(), [images(8)], gdws.Macs(0.5), gdws.Uniform(keep_first=False))
    gdws.save(upscaler, tmp_path / "fast")
    network = gdws.load(tmp_path / "fast")
    with pytest.raises(GdwsError, match=r"cannot be traced .*Reshape fails"):
        compile(network, "torch", example=images(1), threads=1)
    run = compile(network, example=images(1), threads=1)
    assert run.engine in ("onnxruntime", "openvino")
    with torch.no_grad():
        torch.testing.assert_close(run(images(2)), upscaler(images(2)), atol=1e-5, rtol=0)


def test_files_run_as_they_are(embedded_file, tmp_path):
    quantize(embedded_file, tmp_path / "int8.onnx", images(20))
    floats = compile(embedded_file, "onnxruntime", example=images(1))
    for engine in ("onnxruntime", "openvino"):
        run = compile(tmp_path / "int8.onnx", engine, example=images(1))
        assert run.precision == "int8"
        assert (run(images(40)).argmax(1) == floats(images(40)).argmax(1)).sum() >= 36


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engine": "tensorrt"}, "engine is 'tensorrt': expected auto, onnxruntime, openvino, torch"),
        ({"precision": "int4"}, "precision is 'int4': expected one of float32, int8, float16"),
        ({"precision": "int8"}, "without calibration images"),
        (
            {"precision": "int8", "engine": "torch", "calibration": torch.rand(2, 3, 32, 32)},
            "the engine torch got the precision int8: expected float32, or one of onnxruntime, openvino",
        ),
        ({"threads": 0}, "threads is 0"),
        ({"example": torch.rand(3, 32, 32)}, "expected floats"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(GdwsError, match=words):
        compile(models.embedded(), **{"example": images(1), **arguments})


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_missing_engine_names_the_extra(embedded_file, monkeypatch, engine):
    monkeypatch.setitem(sys.modules, engine, None)  # what an import of an absent package meets
    with pytest.raises(GdwsError, match=rf"{engine} is not installed: expected it here \(pip install 'gdws\[engines\]'\)"):
        compile(embedded_file, engine, example=images(1))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_truncated_file_is_refused(embedded_file, tmp_path, engine):
    (tmp_path / "half.onnx").write_bytes(embedded_file.read_bytes()[:20000])
    with pytest.raises(GdwsError, match=r"half\.onnx is not an ONNX model"):
        compile(tmp_path / "half.onnx", engine, example=images(1))
