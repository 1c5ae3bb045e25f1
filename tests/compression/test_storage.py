"""Folders that stand for themselves, and folders of earlier versions."""

import json
import os
import shutil
import sys

import pytest
import torch
from helpers import network
from safetensors.torch import load_file, save_file
from torch import nn

import gdws
from gdws.core.errors import GdwsError
from gdws.core.unwrap import unwrap
from gdws.planning.plan import attach_plan


@pytest.fixture(scope="module")
def images():
    return torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def fast(images):
    return gdws.compress(network(), [images], gdws.Macs(0.4), "paper")


@pytest.fixture(scope="module")
def folder(fast, tmp_path_factory):
    path = tmp_path_factory.mktemp("storage") / "fast"
    gdws.save(fast, path)
    return path


def test_a_folder_needs_no_model(fast, folder, images, tmp_path):
    alone = gdws.load(folder)
    assert gdws.plan_of(alone) == gdws.plan_of(fast)
    torch.testing.assert_close(alone(images), fast(images), atol=1e-5, rtol=0)
    x = images.clone().requires_grad_()
    gradients = [torch.autograd.grad(model(x).logsumexp(1).sum(), x)[0] for model in (alone, fast)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-3)
    assert gdws.network_cost(alone, images).macs == gdws.network_cost(fast, images).macs
    for engine in ("onnxruntime", "openvino", "torch", "eager"):
        run = gdws.compile(alone, engine, example=images, threads=1)
        torch.testing.assert_close(run(images), fast(images), atol=1e-5, rtol=0)
    gdws.to_onnx(alone, tmp_path / "again.onnx", images)
    assert (tmp_path / "again.onnx").read_bytes() == (folder / "model.onnx").read_bytes()
    with pytest.raises(GdwsError, match=r"calibrated on 12 of these images"):
        gdws.agreement(network(), alone, images)


def test_half_precision_stays_in_the_weights(fast, images, tmp_path):
    half = unwrap(gdws.apply(network(), gdws.plan_of(fast))).half()
    gdws.save(half, tmp_path / "half")
    assert gdws.load(tmp_path / "half", network())(images.half()).dtype == torch.float16
    torch.testing.assert_close(gdws.load(tmp_path / "half")(images), half(images.half()).float(), atol=0.01, rtol=0.01)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else 2 * x


def branching(model):
    model[6] = nn.Sequential(Branching(), model[6])
    return model


class Summing(nn.Module):
    """With an operator that has no attackable form."""

    def forward(self, x):
        return x.cumsum(1) / 16


def test_a_file_of_other_operators_is_checked_by_onnx_runtime(fast, images, tmp_path):
    model = gdws.apply(network(), gdws.plan_of(fast))
    model[6] = nn.Sequential(Summing(), model[6])
    gdws.save(model, tmp_path / "out")
    assert gdws.verify(tmp_path / "out" / "model.onnx", model, images).difference < 1e-4
    with pytest.raises(GdwsError, match="has the operators CumSum"):
        gdws.load(tmp_path / "out")
    original = network()
    original[6] = nn.Sequential(Summing(), original[6])
    assert torch.equal(gdws.load(tmp_path / "out", original)(images), model(images))


class Upscaler(nn.Module):
    """Maps of twice the size by name, and a mean: no classifier."""

    def __init__(self):
        super().__init__()
        self.body, self.up = network()[:3], nn.ConvTranspose2d(16, 3, 2, 2)

    def forward(self, x):
        x = self.body(x)
        return {"image": nn.functional.interpolate(self.up(x), scale_factor=1.5, mode="bilinear"), "mean": x.mean((2, 3))}


def test_a_network_that_is_no_classifier_is_exported(fast, images, tmp_path):
    model = Upscaler().eval()
    attach_plan(model, gdws.plan_of(fast))
    gdws.save(model, tmp_path / "out")
    alone, larger = gdws.load(tmp_path / "out"), torch.rand(2, 3, 10, 14)
    for x in (images, larger):
        for name, wanted in model(x).items():
            torch.testing.assert_close(alone(x)[name], wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({"export": False}, lambda model: model, "it was saved with export=False"),
        ({}, lambda model: network(), "no plan says the size of its images"),
        ({}, branching, "cannot be traced"),
    ],
)
def test_what_is_not_exported_says_why(fast, tmp_path, options, change, words):
    model = change(gdws.apply(network(), gdws.plan_of(fast)))
    gdws.save(model, tmp_path / "out", **options)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["gdws.json", "model.safetensors"]
    record = json.loads((tmp_path / "out" / "gdws.json").read_text())
    assert not record["exported"]
    with pytest.raises(GdwsError, match=rf"has no exported network .*{words}"):
        gdws.load(tmp_path / "out")


@pytest.mark.parametrize("wrapper", ["network", "module"])
def test_a_folder_of_the_first_format_is_read(fast, folder, images, tmp_path, wrapper):
    """It had the names of a hidden wrapper."""
    old = tmp_path / "old"
    old.mkdir()
    tensors = load_file(folder / "model.safetensors")
    save_file({f"{wrapper}.{name}": value for name, value in tensors.items()}, old / "model.safetensors")
    record = json.loads((folder / "gdws.json").read_text())
    del record["exported"], record["not exported because"], record["plan"]["inputs"]
    record |= {"format": "gdws model 1", "layers": {f"{wrapper}.{name}": kind for name, kind in record["layers"].items()}}
    for layer in record["plan"]["layers"]:
        layer["name"] = f"{wrapper}.{layer['name']}"
    (old / "gdws.json").write_text(json.dumps(record))
    loaded = gdws.load(old, nn.DataParallel(network()))
    assert torch.equal(loaded(images), fast(images))
    assert gdws.plan_of(loaded).layers == gdws.plan_of(fast).layers
    with pytest.raises(GdwsError, match=r"old has no exported network \(an earlier version saved it\)"):
        gdws.load(old)

    class Outer(nn.Module):
        """A network of somebody's own that has the same name in front."""

        def __init__(self):
            super().__init__()
            setattr(self, wrapper, network())

        def forward(self, x):
            return getattr(self, wrapper)(x)

    own = gdws.load(old, Outer())
    assert torch.equal(own(images), fast(images))
    assert gdws.plan_of(own).layers[0].name == f"{wrapper}.0"


class Timm:
    """timm as far as it is asked: a network that wants images normalized its way."""

    @staticmethod
    def create_model(name, num_classes=4):
        model = network(seed=int(name[-1]))
        if num_classes != 4:
            model[8] = nn.Linear(64, num_classes)
        model.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
        return model


@pytest.mark.parametrize("classes", [None, 7])
def test_a_network_of_timm_keeps_the_names_of_its_layers(images, tmp_path, monkeypatch, classes):
    monkeypatch.setitem(sys.modules, "timm", Timm)
    model = gdws.models.resolve("timm:net0", classes=classes)
    fast = gdws.compress(model, [images], gdws.Macs(0.4), gdws.Uniform(exclude=["0"]))
    assert [layer.name for layer in gdws.plan_of(fast).layers] == ["0", "3"]
    gdws.save(fast, tmp_path / "fast", base="timm:net1")
    assert all(name[0].isdigit() for name in load_file(tmp_path / "fast" / "model.safetensors"))
    assert torch.equal(gdws.models.resolve(str(tmp_path / "fast"))(images), fast(images))
    torch.testing.assert_close(gdws.load(tmp_path / "fast")(images), fast(images), atol=1e-5, rtol=0)
    plain = gdws.load(tmp_path / "fast", model.network)
    assert torch.equal(plain((images - model.mean) / model.std), fast(images))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.update(format="gdws model 4"), "has format 'gdws model 4': expected 'gdws model 3'"),
        (lambda record: record.pop("format"), "has format None: expected 'gdws model 3'"),
        (lambda record: record.update(format="gdws model 1", layers=[]), r"is not whole: layers is \[\]: expected an object"),
        (lambda record: record["layers"].update({"0": 3}), r"is not whole: layers\['0'\] is 3: expected text"),
        (lambda record: record["layers"].update({"0": "magic"}), "has a magic layer '0'"),
        (lambda record: record["layers"].update({"nowhere": "gdws"}), "has a gdws layer 'nowhere'"),
        (lambda record: record["layers"].update({"0": "gdws"}), "a gdws layer has no tensor channels"),
        (lambda record: record.update(base=["demo"]), r"is not whole: base is \['demo'\]: expected text"),
        (lambda record: record.update(exported="yes"), "is not whole: exported is 'yes': expected true or false"),
        (lambda record: record.update(plan="no"), "is not whole: plan is 'no': expected an object"),
        (lambda record: record.pop("plan"), "is not whole: plan is missing"),
        (lambda record: record["plan"].update(layers=3), "this is not a plan: layers is 3"),
        (lambda record: record.update(more=1), "is not whole: it has 'more'"),
    ],
)
def test_a_manifest_of_another_form_is_refused(folder, tmp_path, change, words):
    """Bug: one of the first format was told to have format 'gdws model 1', where 'gdws model 1' was expected."""
    made = shutil.copytree(folder, tmp_path / "made")
    record = json.loads((made / "gdws.json").read_text())
    change(record)
    (made / "gdws.json").write_text(json.dumps(record))
    with pytest.raises(GdwsError, match=words):
        gdws.load(made, network())


@pytest.mark.parametrize(
    ("text", "words"),
    [("[" * 10**5, "nested too deeply"), ("", "expected JSON"), ("[]", "not whole"), ("null", "not whole")],
)
def test_a_manifest_of_other_text_is_refused(folder, tmp_path, text, words):
    made = shutil.copytree(folder, tmp_path / "made")
    (made / "gdws.json").write_text(text)
    for model in (network(), None):
        with pytest.raises(GdwsError, match=words):
            gdws.load(made, model)
    (made / "gdws.json").unlink()
    os.mkfifo(made / "gdws.json")
    with pytest.raises(GdwsError, match=r"gdws.json is no ordinary file"):
        gdws.load(made, network())


def test_layers_larger_than_their_convolution_are_not_made(folder, tmp_path):
    """Tensors without elements can claim any shape."""
    made = shutil.copytree(folder, tmp_path / "made")
    record = json.loads((made / "gdws.json").read_text())
    tensors = load_file(made / "model.safetensors")
    (made / "gdws.json").write_text(json.dumps(record | {"layers": {"3": "vertical"}}))
    for shape in ((0, 10**9, 1, 3), (0, 0, 10**9, 10**9)):
        save_file(tensors | {"3.second": torch.zeros(0).reshape(shape)}, made / "model.safetensors")
        with pytest.raises(GdwsError, match="a vertical layer has 0 outputs: expected 16"):
            gdws.load(made, network())
    (made / "gdws.json").write_text(json.dumps(record | {"layers": {"3": "gdws"}}))
    save_file(tensors | {"3.channels": torch.zeros(200, dtype=torch.int64)}, made / "model.safetensors")
    with pytest.raises(GdwsError, match="a gdws layer has 200 kernels: expected at most 144"):
        gdws.load(made, network())
