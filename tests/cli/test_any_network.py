"""Networks that are no classifiers, and ONNX files, from a file to a folder and back on the command line."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from gdws.core.inputs import floats_in
from gdws.deploy.onnx.reading import read_signature
from gdws.models import resolve

UPSCALER = """
import torch
from torch import nn

class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 12), (12, 12), (12, 12)))
        self.last, self.shuffle = nn.Conv2d(12, 12, 3, padding=1), nn.PixelShuffle(2)

    def forward(self, x):
        return self.shuffle(self.last(torch.relu(self.third(torch.relu(self.second(torch.relu(self.first(x))))))))

make = Upscaler


class Blend(Upscaler):
    def forward(self, left, right):
        return super().forward(left + right)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    (folder / "up.py").write_text(UPSCALER)
    random = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 4)):
        (folder / "pictures" / split).mkdir(parents=True)
        for index in range(count):
            pixels = random.integers(0, 256, (40, 48 + index, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / split / f"{index}.png")
    return folder


@pytest.fixture
def done(run):
    """What a command prints that succeeds."""

    def call(*arguments):
        status, shown = run(*arguments)
        assert status == 0, shown
        return shown

    return call


def test_an_upscaler_goes_in_and_comes_out(place, tmp_path, done):
    source, pictures = f"{place}/up.py:make", f"images:{place}/pictures"
    arguments = ["compress", source, "--data", pictures, "--check", pictures, "--macs", 0.6, "--out", "fast", "--images", 8]
    arguments += ["--structures", "vertical", "--repair", 5, "--no-cache", "--json", "made.json"]
    shown = done(*arguments)
    assert "What was kept: values" in shown
    assert "relative error, on" in shown
    record = json.loads((tmp_path / "made.json").read_text())
    assert record["plan"]["objective"] == record["report"]["fidelity"]["objective"] == "values"
    assert record["report"]["fidelity"]["source"] == "held-out"
    shown = done("evaluate", source, "fast", "--data", pictures, "--n", 4, "--json", "judged.json")
    assert "fast: " in shown
    assert 0 < json.loads((tmp_path / "judged.json").read_text())["rows"][0]["distance"] < 1
    done("export", "fast", "--data", pictures, "--n", 2, "--out", "fast.onnx")
    (port,) = read_signature("fast.onnx").inputs
    assert port.shape[1] == 3
    assert not isinstance(port.shape[2], int)
    assert "fast" in done("bench", source, "fast", "--engine", "onnxruntime", "--repeats", 2, "--warmup", 1, "--size", 16)
    assert "vertical" in done("inspect", "fast")


def test_an_onnx_file_goes_in_and_comes_out(place, done):
    done("export", f"{place}/up.py:make", "--data", f"images:{place}/pictures", "--n", 2, "--out", "up.onnx")
    arguments = ["compress", "up.onnx", "--data", f"images:{place}/pictures", "--macs", 0.6, "--out", "fast", "--images", 8]
    done(*arguments, "--structures", "vertical", "--no-cache")
    before, after = read_signature("up.onnx"), read_signature("fast/model.onnx")
    assert [(port.name, port.dtype) for port in before.inputs] == [(port.name, port.dtype) for port in after.inputs]
    assert [(port.name, port.dtype) for port in before.outputs] == [(port.name, port.dtype) for port in after.outputs]
    x = torch.rand(2, 3, 24, 20)
    original, folder = resolve("up.onnx"), resolve("fast", layers=True)
    with torch.no_grad():
        (wanted,), (found,), (alone,) = (floats_in(model(x)) for model in (original, folder, resolve("fast")))
    assert float((found - wanted).square().mean()) < 0.2 * float(wanted.var())
    torch.testing.assert_close(alone, found, atol=1e-4, rtol=1e-4)


def test_networks_of_several_arguments_are_evaluated_too(place, done):
    random = np.random.default_rng(0)
    pairs = {f"{split}_{name}": random.random((8, 3, 16, 16)) for split in ("train", "test") for name in ("left", "right")}
    np.savez("pairs.npz", **pairs)
    source = f"{place}/up.py:Blend"
    done("compress", source, "--data", "npz:pairs.npz", "--macs", 0.6, "--out", "fast", "--no-cache")
    assert "on 8 held-out samples" in done("evaluate", source, "fast", "--data", "npz:pairs.npz")


def test_one_network_that_is_no_classifier_needs_another_beside_it(place, run):
    status, shown = run("evaluate", f"{place}/up.py:make", "--data", f"images:{place}/pictures")
    assert status == 2
    assert "is not a classifier: expected other networks after it" in shown
