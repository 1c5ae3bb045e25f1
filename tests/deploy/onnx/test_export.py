"""Exported files in a real ONNX Runtime, beside the models they come from."""

import onnx
import pytest
import torch
from helpers import Blocks, factored, images, operators
from torch import nn

from gdws import data, models
from gdws.attacks import PGD
from gdws.core.errors import GdwsError
from gdws.deploy.fx.pack_weights import PackedModel
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.onnx.parity import verify
from gdws.deploy.runtimes import OnnxRuntime, OpenVino
from gdws.deploy.tracing import trace_model
from gdws.models import zoo
from gdws.structures.layers import GDWSConv2d, TwoStageConv2d

PLAIN = {"Sub", "Div", "Conv", "BatchNormalization", "Relu", "Add", "ReduceMean", "Gemm"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture
def embedded(embedded_file):
    return models.embedded(), embedded_file


def test_the_embedded_model_decides_the_same_on_clean_and_attacked_images(embedded):
    model, path = embedded
    clean, labels = images(60), data.load("demo", "test").labels[:60]
    attacked = PGD(eps=8 / 255, step=4 / 255, steps=3)(model, clean, labels, torch.Generator().manual_seed(0))
    for part in (clean, attacked):
        parity = verify(path, model, part)
        assert (parity.images, parity.changed) == (60, 0)
        assert 0 < parity.difference < 1e-4


def test_the_graph_has_nothing_to_spare(embedded):
    _, path = embedded
    found = operators(path)
    assert set(found) == PLAIN
    # A BatchNorm at the start of each of the seven blocks and at the end; the one inside each block is folded.
    assert found["BatchNormalization"] == 8
    assert found["Conv"] == 17
    names = [node.name for node in onnx.load(path).graph.node]
    assert "layer2.1.conv1" in names
    assert len(set(names)) == len(names)


def test_the_file_is_self_contained_and_says_nothing_of_this_machine(embedded):
    _, path = embedded
    content = path.read_bytes()
    assert [other for other in path.parent.iterdir() if other.name.startswith((path.name, f".{path.name}"))] == [path]
    assert len(content) > 4 * sum(p.numel() for p in models.embedded().parameters() if p.ndim > 1)
    assert b"stack_trace" not in content
    assert b".py" not in content


@pytest.mark.parametrize("batch", [1, 5])
def test_gdws_layers_are_one_gather_and_two_convolutions(factored_file, batch):
    found = operators(factored_file)
    assert set(found) == PLAIN | {"Gather"}
    assert found["Gather"] == 2  # none where every channel is used once
    assert found["BatchNormalization"] == 8
    assert found["Conv"] == 17 + 3
    part = images(batch)
    with torch.no_grad():
        torch.testing.assert_close(OnnxRuntime(factored_file, 1)(part), factored()(part), atol=1e-4, rtol=0)


def test_preactresnet18(folder):
    torch.manual_seed(0)
    model = zoo.build("preactresnet18")
    to_onnx(model, folder / "resnet.onnx", images(1))
    assert operators(folder / "resnet.onnx")["BatchNormalization"] == 9
    assert verify(folder / "resnet.onnx", model, images(6)).changed == 0


def test_norms_are_folded_only_where_that_is_exact(folder):
    torch.manual_seed(0)
    model = Blocks()  # in training mode: it is exported in eval mode and left as it was
    to_onnx(model, folder / "blocks.onnx", images(1))
    assert model.training
    found = operators(folder / "blocks.onnx")
    assert found["Conv"] == 5
    assert found["BatchNormalization"] == 3
    assert verify(folder / "blocks.onnx", model, images(10)).difference < 1e-4
    assert model.training


def test_a_file_of_another_model_is_refused(embedded):
    torch.manual_seed(0)
    with pytest.raises(GdwsError, match=r"of 10 predictions: expected at most 0.001 and 0"):
        verify(embedded[1], zoo.build("tiny"), images(10))
    with pytest.raises(GdwsError, match=r"gives logits \(2, 10\): expected \(2, 7\)"):
        verify(embedded[1], zoo.build("tiny", num_classes=7), images(2))
    assert verify(embedded[1], zoo.build("tiny"), images(10), tolerance=None).changed > 0


class Constant(nn.Module):
    def __init__(self, *logits):
        super().__init__()
        self.linear = nn.Linear(3, len(logits))
        self.linear.weight.data.zero_()
        self.linear.bias.data = torch.tensor(logits)

    def forward(self, x):
        return self.linear(x.mean((2, 3)))


def test_ties_are_not_changed_decisions(folder):
    to_onnx(Constant(0.0, 5e-5, -1.0), folder / "tie.onnx", images(1))
    assert verify(folder / "tie.onnx", Constant(5e-5, 0.0, -1.0), images(4)).changed == 0
    assert verify(folder / "tie.onnx", Constant(5e-4, 0.0, -1.0), images(4), tolerance=None).changed == 4
    with pytest.raises(GdwsError, match="4 of 4 predictions"):
        verify(folder / "tie.onnx", Constant(5e-4, 0.0, -1.0), images(4))


@pytest.mark.parametrize("kept", [0, 50, 0.5])
def test_a_truncated_file_is_refused(embedded, tmp_path, kept):
    content = embedded[1].read_bytes()
    (tmp_path / "half.onnx").write_bytes(content[: int(kept * len(content)) if kept < 1 else kept])
    with pytest.raises(GdwsError, match=r"half.onnx is not an ONNX model that ONNX Runtime reads"):
        verify(tmp_path / "half.onnx", embedded[0], images(2))


class Fixed(nn.Module):
    """For two images at a time, in the way in which code that was written for one batch is."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3, 2), nn.Linear(900, 10)

    def forward(self, x):
        return self.linear(self.conv(x).reshape(2, 900))


def test_a_model_for_one_batch_size_becomes_a_file_for_that(tmp_path):
    torch.manual_seed(0)
    model = Fixed().eval()
    with pytest.warns(UserWarning, match=r"takes batches of 2 only: the model cannot be traced for a batch of any size \("):
        to_onnx(model, tmp_path / "fixed.onnx", images(2))
    assert verify(tmp_path / "fixed.onnx", model, images(5)).changed == 0
    sessions = [OnnxRuntime(tmp_path / "fixed.onnx"), OpenVino(tmp_path / "fixed.onnx", images(2))]
    with pytest.warns(UserWarning, match="batches of 2 only"):
        sessions.append(PackedModel(trace_model(model, images(2))))
    for session in sessions:
        torch.testing.assert_close(session(images(2)), model(images(2)), atol=1e-5, rtol=0)
        with pytest.raises(GdwsError, match=r"images have shape \(3, 3, 32, 32\): expected \(2, 3, 32, 32\)"):
            session(images(3))
    with pytest.raises(GdwsError, match=r"images have shape \(3, 3, 32, 32\): expected"):
        OpenVino(tmp_path / "fixed.onnx", images(3))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        x = self.conv(x).mean((2, 3))
        return x if x.sum() > 0 else 2 * x


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(tmp_path, capfd):
    """Bug: the exporter printed a page of its graph before the sentence."""
    with pytest.raises(GdwsError, match=r"cannot be traced for a batch of 2 \("):
        to_onnx(Branching(), tmp_path / "branching.onnx", images(2))
    assert capfd.readouterr() == ("", "")
    with pytest.raises(GdwsError, match=r"expected \[0, 1\]"):
        to_onnx(models.embedded(), tmp_path / "range.onnx", 255 * images(1))
    with pytest.raises(GdwsError, match="there is no file"):
        verify(tmp_path / "none.onnx", models.embedded(), images(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("made", [lambda model: torch.jit.trace(model, images(1)), torch.jit.script])
def test_what_was_scripted_or_traced_is_refused(tmp_path, made):
    """Bug: a traceback, as it has neither a signature nor hooks."""
    scripted = made(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 30 * 30, 4)).eval())
    with pytest.raises(GdwsError, match=r"the model is a \w*Module: expected the nn.Module that it was made from"):
        to_onnx(scripted, tmp_path / "model.onnx", images(2))
    assert not list(tmp_path.iterdir())


def test_every_structure_and_a_layer_without_kernels(tmp_path):
    model = models.embedded()
    for name, axes in (("layer2.1.conv1", (0,)), ("layer2.1.conv2", (1,)), ("layer3.0.conv1", ())):
        layer = TwoStageConv2d.like(model.get_submodule(name), 12, axes)
        for weight in (layer.first, layer.second):
            weight.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
        model.set_submodule(name, layer)
    none = GDWSConv2d.like(model.get_submodule("layer3.1.conv1"), torch.zeros(0, dtype=torch.int64))
    model.set_submodule("layer3.1.conv1", none)
    to_onnx(model, tmp_path / "all.onnx", images(1))
    assert verify(tmp_path / "all.onnx", model, images(20)).changed == 0
    assert set(operators(tmp_path / "all.onnx")) <= PLAIN | {"Mul", "Slice", "Expand", "Shape", "Concat", "ConstantOfShape"}
