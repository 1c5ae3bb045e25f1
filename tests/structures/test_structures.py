"""Every structure on networks with strides, groups, padding modes and reuse: costs by flop_counter, plans, files."""

import copy
import dataclasses

import pytest
import torch
from helpers import Net, flops
from torch import nn

import gdws
from gdws.attacks import PGD
from gdws.core.errors import GdwsError
from gdws.structures import FAMILIES, STRUCTURES, select_structures

ATTACK = PGD(steps=1)


class Odd(nn.Module):
    """Convolutions that cannot have every structure, or pad in their own ways."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.tall = nn.Conv2d(12, 12, (3, 1), padding=(1, 0))
        self.reflected = nn.Conv2d(12, 16, 3, stride=2, padding=1, padding_mode="reflect")
        self.same = nn.Conv2d(16, 16, (2, 3), padding="same", dilation=(1, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.tall(torch.relu(self.stem(x))))
        x = torch.relu(self.same(torch.relu(self.reflected(x))))
        return self.head(x.mean((2, 3))) * 5


@pytest.fixture(scope="module", params=[Net, Odd])
def setting(request):
    torch.manual_seed(0)
    model = request.param().eval()
    images = torch.rand(24, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    return model, images, gdws.calibrate(model, [images], gdws.Calibrated(attack=ATTACK))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", [*STRUCTURES, *FAMILIES])
def test_costs_plans_and_files(setting, name, tmp_path):
    model, images, statistics = setting
    made = gdws.plan(model, statistics, gdws.Macs(0.5), gdws.Calibrated(structures=name))
    members = [structure.name for structure in select_structures(name)]
    replaced = [layer for layer in made.layers if layer.structure != "dense"]
    assert made.macs <= 0.5
    assert replaced
    assert {layer.structure for layer in replaced} <= set(members)
    fast = gdws.apply(model, made, statistics)
    saved = sum(layer.dense_macs - layer.macs for layer in replaced)
    assert flops(model, images) - flops(fast, images) == saved
    weights = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in fast.parameters())
    assert weights == sum(layer.dense_parameters - layer.parameters for layer in replaced)
    gdws.save(fast, tmp_path / "out", export=False)
    assert torch.equal(gdws.load(tmp_path / "out", model)(images), fast(images))
    again = gdws.apply(model, gdws.Plan.from_json(made.to_json()), [images])
    assert torch.allclose(again(images), fast(images), atol=1e-4)


def test_a_choice_among_structures_is_predicted_to_lose_no_more_than_one_of_them(setting):
    model, _, statistics = setting

    def weighted(name):
        made = gdws.plan(model, statistics, gdws.Macs(0.5), gdws.Calibrated(structures=name))
        return sum(layer.loss * STRUCTURES[layer.structure].brittleness for layer in made.layers if layer.structure != "dense")

    losses = {name: weighted(name) for name in (*STRUCTURES, "auto")}
    assert losses.pop("auto") <= min(losses.values()) * (1 + 1e-9)


def test_a_layer_loses_on_white_noise_what_its_curve_says():
    """Where the moment is the identity, the loss is the squared error of the output."""
    torch.manual_seed(1)
    conv = nn.Conv2d(6, 4, 3)
    moment, gradient = torch.eye(54, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    x = torch.randn(20, 6, 40, 40)
    for structure in STRUCTURES.values():
        curve = structure.curve(conv.weight.detach().double(), (moment, gradient))
        size = (len(curve.losses) - 1) // 2
        layer = structure.build(conv, structure.ranks([curve], size), [curve], [(moment, gradient)])
        difference = (layer(x) - conv(x)).square().sum() / (conv(x) - conv.bias[:, None, None]).square().sum()
        expected = float(curve.losses[size] / curve.losses[0])
        assert float(difference.detach()) == pytest.approx(expected, rel=0.1)


def test_unknown_structures_and_missing_curves_are_named(setting):
    model, images, statistics = setting
    with pytest.raises(GdwsError, match="structures are tucker"):
        gdws.plan(model, statistics, gdws.Macs(0.5), gdws.Calibrated(structures="tucker"))
    with pytest.raises(GdwsError, match="structures are none"):
        gdws.plan(model, statistics, gdws.Macs(0.5), gdws.Calibrated(structures=()))
    few = gdws.calibrate(model, [images], gdws.Calibrated(structures="gdws", attack=None))
    with pytest.raises(GdwsError, match="these statistics have no curves for"):
        gdws.plan(model, few, gdws.Macs(0.5), "calibrated")


def test_a_damaged_file_is_refused(setting, tmp_path):
    from safetensors.torch import load_file, save_file

    model, _, statistics = setting
    made = gdws.plan(model, statistics, gdws.Macs(0.4), gdws.Calibrated(structures="separable"))
    fast = gdws.apply(model, made, statistics)
    gdws.save(fast, tmp_path / "out", export=False)
    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    gone = next(name for name in tensors if name.endswith(".second"))
    save_file({name: value for name, value in tensors.items() if name != gone}, file)
    with pytest.raises(GdwsError, match="has no tensor second"):
        gdws.load(tmp_path / "out", model)


def test_an_edited_rank_is_applied(setting):
    model, images, statistics = setting
    made = gdws.plan(model, statistics, gdws.Macs(0.4), gdws.Calibrated(structures="separable"))
    layer = next(layer for layer in made.layers if layer.structure != "dense")
    edited = dataclasses.replace(layer, ranks=(1,))
    layers = tuple(edited if other is layer else other for other in made.layers)
    fast = gdws.apply(copy.deepcopy(model), dataclasses.replace(made, layers=layers), statistics)
    assert fast.get_submodule(layer.name).rank == 1
    assert bool(fast(images).isfinite().all())


def test_a_convolution_of_one_channel_has_no_channels_to_project():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4)).eval()
    images = torch.rand(12, 1, 8, 8)
    statistics = gdws.calibrate(model, [images], gdws.Calibrated(attack=None, keep_first=False))
    made = gdws.plan(model, statistics, gdws.Macs(0.5))
    assert made.macs <= 0.5
    assert "project" not in statistics.curves["0"]
    assert "project" in statistics.curves["2"]
    assert bool(gdws.apply(model, made, statistics)(images).isfinite().all())
