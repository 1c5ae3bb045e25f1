"""Pruned networks made smaller: against the masked network in float64, shapes written by hand, and counts of channels."""

import copy
import json
import shutil
import sys
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import gdws
from gdws.compression.compaction.counting import MB, paper_size
from gdws.compression.compaction.layers import SelectChannels, SpreadChannels
from gdws.core.errors import GdwsError
from gdws.models.zoo import preact

X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def random_norms(model, share=0.0, seed=0):
    """The model with BatchNorms as training leaves them, and a share of each one's channels pruned."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for value, low, high in ((norm.running_mean, -0.3, 0.3), (norm.running_var, 0.5, 1.5)):
                value.uniform_(low, high, generator=generator)
            if norm.affine:
                norm.weight.data.uniform_(0.5, 1.5, generator=generator)
                norm.bias.data.uniform_(-0.5, 0.5, generator=generator)
                gone = torch.randperm(norm.num_features, generator=generator)[: int(share * norm.num_features)]
                norm.weight.data[gone] = norm.bias.data[gone] = 0
    return model.eval()


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def assert_same(model, small, x=X, tolerance=1e-10):
    wanted, found = (copy.deepcopy(network).double()(x.double()) for network in (model, small))
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("share", "vgg", "resnet"), [(0.25, 31.6, 32.1), (0.5, 14.0, 21.7), (0.75, 3.5, 11.2)])
def test_sizes_are_those_of_the_paper(share, vgg, resnet):
    """Its table of ADMM, as it counts; what is written and run is smaller where that changes nothing."""
    chain = random_norms(gdws.zoo.build("vgg16"), share)
    assert abs(paper_size(chain, X) - vgg) < 0.1
    network = random_norms(gdws.zoo.build("preactresnet18"), share)
    assert abs(paper_size(network, X) - resnet) < 0.1
    small = gdws.compact(network, X)
    assert_same(network, small, X[:1])
    # Both sides inside a block, and the input of the shortcuts: counted by hand, before anything goes from the stream.
    keep, three, one = 1 - share, 0, 0
    widths = (64, 64, 128, 256, 512)
    for before, width in pairwise(widths):
        three += 9 * width * (keep**2 * before + keep * width + keep**2 * width + keep * width)
        one += keep * before * width if before != width else 0
    assert parameters(small) / MB < (three + one) / MB + 0.1


@pytest.mark.parametrize(
    ("name", "share"),
    [("resnet18", 0.4), ("resnet20", 0.6), ("mobilenetv2", 0.5), ("wrn28_4", 0.5), ("preactresnet18_dws", 0.5), ("tiny", 0.3)],
)
def test_networks_of_the_zoo_compute_the_same(name, share):
    model = random_norms(gdws.zoo.build(name), share)
    before = copy.deepcopy(model.state_dict())
    small = gdws.compact(model, X)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    # Of depthwise layers BatchNorm makes constants, which are merged in float32.
    assert_same(model, small, X[:1], 1e-6 if name in ("mobilenetv2", "preactresnet18_dws") else 1e-10)
    assert parameters(small) < (1 - 0.8 * share) * parameters(model)
    assert gdws.compact(small, X).state_dict().keys() == small.state_dict().keys()


class Joined(nn.Module):
    """Two branches side by side, one of them read twice, in front of a BatchNorm that reads both, and a sum."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 4, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(4), nn.BatchNorm2d(12)])
        self.next, self.last = nn.Conv2d(12, 8, 3, padding=1), nn.Linear(8 * 4, 5)

    def forward(self, x):
        left = torch.relu(self.norms[0](self.left(x)))
        both = torch.cat([left, torch.relu(self.norms[1](self.right(x)))], 1)
        x = self.next(torch.relu(self.norms[2](both))) + left
        return self.last(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)) * 2


def test_a_concatenation_shrinks_by_hand():
    model = random_norms(Joined())
    for index, gone in ((0, [1, 2]), (1, [3]), (2, [0, 1, 5])):
        model.norms[index].weight.data[gone] = model.norms[index].bias.data[gone] = 0
    model.next.weight.data[[2, 6]] = model.next.bias.data[[2, 6]] = 0
    # Channel 2 of `left` and of the sum is zero everywhere, once the third norm, where it is the constant bias, lets go of it.
    model.norms[2].bias.data[[2, 11]] = -1.0
    model.norms[2].running_mean[[2, 11]] = 0
    small = gdws.compact(model, X)
    assert_same(model, small)
    assert small.left.weight.shape == (8 - 2, 3, 3, 3)
    assert small.norms[0].spread.sources.tolist() == [0, 6, 1, 2, 3, 4, 5]  # channel 1 is zero here, and not in the sum
    assert small.last.weight.shape == (5, 4 * 7)
    assert small.right.weight.shape == (3, 3, 1, 1)
    assert small.next.weight.shape == (7, 12 - 5, 3, 3)
    assert small.norms[2].select.channels.tolist() == [2, 3, 5, 6, 7, 8, 9]


def chain(*layers):
    """Three channels to four, a BatchNorm without effect, and to two."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        network = nn.Sequential(first, norm, *layers, nn.Conv2d(4, 2, 3, padding=1))
    first.weight.data[1] = first.bias.data[1] = 0
    return network.eval()


@pytest.mark.parametrize(
    ("layers", "bias", "left"),
    [
        ((nn.ReLU(),), 0.0, 3),  # zero
        ((nn.ReLU(),), -0.5, 3),  # a constant below zero, of which ReLU makes zero
        ((nn.ReLU(),), 0.5, 4),  # a constant that zero padding makes another at the borders
        ((nn.Sigmoid(),), 0.0, 4),  # zero, of which another function makes 0.5
        ((nn.MaxPool2d(2),), 0.0, 3),
    ],
)
def test_constant_channels_go_where_they_are_zero(layers, bias, left):
    model = chain(*layers)
    model[1].bias.data[1] = bias
    small = gdws.compact(model, X)
    assert_same(model, small)
    assert small[0].out_channels == small[1].num_features == small[-1].in_channels == left


def test_one_constant_stands_for_several():
    """The filters of unstructured pruning that are zero leave what BatchNorm makes of nothing."""
    model = random_norms(chain(nn.ReLU(), nn.MaxPool2d(2)))
    model[0].weight.data[[0, 1, 3]] = 0
    model[1].bias.data[:] = torch.tensor([2.0, 0.5, 0.0, 1.0])
    small = gdws.compact(model, X)
    torch.testing.assert_close(small(X), model(X), atol=1e-6, rtol=1e-6)
    assert small[0].out_channels == small[-1].in_channels == 2
    assert small[1].bias.tolist() == [2.0, 0.0]


def test_channels_that_nothing_reads_go():
    model = chain(nn.ReLU())
    model[-1].weight.data[:, [0, 3]] = 0
    small = gdws.compact(model, X)
    assert_same(model, small)
    assert small[0].out_channels == 1


def test_a_channel_that_is_zero_on_the_example_alone_stays():
    model = chain(nn.ReLU())
    model[1].bias.data[0] = -1000.0  # far below what any image reaches, but not by a zero
    assert gdws.compact(model, X)[0].out_channels == 3


def test_something_is_always_left():
    model = chain(nn.ReLU())
    model[0].weight.data.zero_(), model[0].bias.data.zero_()
    small = gdws.compact(model, X)
    assert_same(model, small)
    assert small[0].out_channels == 1


def test_groups_and_outputs_are_left_whole():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=4), nn.ReLU(), nn.Conv2d(8, 5, 1)).eval()
    for conv in (model[0], model[1], model[3]):
        conv.weight.data[2] = conv.bias.data[2] = 0
    small = gdws.compact(model, X)
    assert [tuple(conv.weight.shape) for conv in (small[0], small[1], small[3])] == [(8, 3, 3, 3), (8, 2, 3, 3), (5, 8, 1, 1)]


class Shuffled(nn.Module):
    """Channels in another order, which looks like a change of shape."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x):
        x = self.first(x)
        return self.second(x.view(len(x), 2, 2, *x.shape[2:]).transpose(1, 2).flatten(1, 2))


class Reordered(Shuffled):
    def forward(self, x):
        return self.second(self.first(x)[:, [3, 2, 1, 0]])


@pytest.mark.parametrize("kind", [Shuffled, Reordered])
def test_what_cannot_be_followed_is_left_whole(kind):
    model = kind().eval()
    model.first.weight.data[0] = model.first.bias.data[0] = 0
    assert gdws.compact(model, X).first.out_channels == 4


def test_networks_that_cannot_be_compacted_get_a_sentence(monkeypatch):
    model = gdws.models.embedded()
    factored = gdws.apply(model, gdws.plan(model, [X], gdws.Macs(0.5), "uniform"))
    with pytest.raises(GdwsError, match=r"layer1.0.conv1 is factorized: expected a network to compact first"):
        gdws.compact(factored, X)
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(GdwsError, match=r"torch_pruning is not installed: expected it here \(pip install 'gdws\[pruning\]'\)"):
        gdws.compact(model, X)


def test_weights_of_no_consequence_stay_as_they_were_trained():
    model = random_norms(gdws.zoo.build("tiny"), 0.5)
    model.conv1.requires_grad_(False)
    small = gdws.compact(model.half(), X)
    assert {parameter.dtype for parameter in small.parameters()} == {torch.float16}
    assert not small.conv1.weight.requires_grad
    assert all(parameter.requires_grad for name, parameter in small.named_parameters() if name != "conv1.weight")


@pytest.fixture(scope="module")
def pruned():
    """With a selected and a spread BatchNorm, and other classes than the architecture has by itself."""
    return random_norms(gdws.zoo.build("resnet18", 7), 0.5)


@pytest.fixture(scope="module")
def small(pruned):
    return gdws.compact(pruned, X)


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("compact") / "small"
    gdws.save(small, path, base="zoo:resnet18")
    return path


def test_a_folder_needs_no_torch_pruning(small, folder, pruned, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    assert any(isinstance(layer, SpreadChannels) for layer in small.modules())
    for loaded in (gdws.models.resolve(str(folder)), gdws.load(folder, pruned)):
        assert torch.equal(loaded(X), small(X))
        assert {key: value.shape for key, value in loaded.state_dict().items()} == {
            key: value.shape for key, value in small.state_dict().items()
        }
    record = json.loads((folder / "gdws.json").read_text())
    assert record["format"] == "gdws model 3"
    conv = small.get_submodule("layer1.0.conv1")
    assert record["smaller"]["layer1.0.conv1"] == [conv.in_channels, conv.out_channels]


def test_a_smaller_network_is_compressed_saved_and_exported(tmp_path):
    def architecture():
        return preact.PreActResNet((8, 16), (1, 1), 4)

    x = X[:, :, :8, :8]
    small = gdws.compact(random_norms(architecture(), 0.4), x)
    assert any(isinstance(layer, SelectChannels) for layer in small.modules())
    fast = gdws.compress(small, [x], gdws.Macs(0.6), gdws.Paper(attack=None))
    gdws.save(fast, tmp_path / "fast")
    loaded = gdws.load(tmp_path / "fast", architecture())
    assert torch.equal(loaded(x), fast(x))
    torch.testing.assert_close(gdws.load(tmp_path / "fast")(x), fast(x), atol=1e-5, rtol=0)
    assert gdws.plan_of(loaded) == gdws.plan_of(fast)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record["smaller"].update({"nowhere": [1, 1]}), "has a smaller layer 'nowhere'"),
        (lambda record: record["smaller"].update({"layer1": [1, 1]}), "has a smaller layer 'layer1'"),
        (
            lambda record: record["smaller"].update({"conv1": [3, 65]}),
            r"sizes \(3, 65\) of conv1: expected from 1 to .*\(3, 64\)",
        ),
        (lambda record: record["smaller"].update({"conv1": [0, 4]}), r"smaller\['conv1'\]\[0\] is 0"),
        (lambda record: record["smaller"].update({"conv1": [3]}), r"smaller\['conv1'\] is \[3\]: expected a list of 2"),
        (lambda record: record["smaller"].pop("layer1.0.conv1"), "does not fit the model: layer1.0.conv1.weight has shape"),
        (lambda record: record["smaller"].update({"layer1.0.bn1": [60, 64]}), "does not fit the model: it lacks"),
        (lambda record: record.update(smaller=3), "smaller is 3: expected an object"),
    ],
)
def test_a_damaged_manifest_gets_one_sentence(folder, pruned, tmp_path, change, words):
    made = shutil.copytree(folder, tmp_path / "made")
    record = json.loads((made / "gdws.json").read_text())
    change(record)
    (made / "gdws.json").write_text(json.dumps(record))
    with pytest.raises(GdwsError, match=words):
        gdws.load(made, pruned)


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        (".spread.sources", lambda sources: sources.flip(0), "spreads the channels"),
        (".spread.sources", lambda sources: sources + 100, "spreads the channels"),
    ],
)
def test_indices_of_a_stranger_are_checked(folder, pruned, tmp_path, part, change, words):
    made = shutil.copytree(folder, tmp_path / "made")
    tensors = load_file(made / "model.safetensors")
    name = next(name for name in tensors if name.endswith(part))
    tensors[name] = change(tensors[name])
    save_file(tensors, made / "model.safetensors")
    with pytest.raises(GdwsError, match=words):
        gdws.load(made, pruned)
