"""The three steps and the one verb: the same networks, and statistics that must belong to the plan."""

import pytest
import torch
from helpers import Net
from torch import nn

import gdws
from gdws.attacks import PGD
from gdws.calibration.method import METHODS
from gdws.core.errors import GdwsError

METHOD = gdws.Calibrated(attack=PGD(steps=1))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def batches():
    images = torch.rand(30, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(30) % 6
    return [(images[:20], labels[:20]), (images[20:], labels[20:])]


@pytest.fixture(scope="module")
def statistics(network, batches):
    return gdws.calibrate(network, batches, METHOD, seed=3)


def same(one, other):
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", [gdws.Macs(0.4), gdws.Drop(60.0)])
def test_the_one_verb_is_a_plan_and_its_application(network, batches, statistics, budget, name):
    method = METHODS[name](attack=METHOD.attack)
    compressed = gdws.compress(network, batches, budget, method, seed=3)
    made = gdws.plan(network, batches, budget, method, seed=3)
    assert gdws.plan_of(compressed) == made
    assert any(layer.structure != "dense" for layer in made.layers)
    assert same(compressed, gdws.apply(network, made, batches))
    if name != "calibrated":
        assert same(compressed, gdws.apply(network, made))
    elif not budget.is_searched:
        assert same(compressed, gdws.apply(network, gdws.plan(network, statistics, budget, seed=3), statistics))
        other = gdws.compress(network, batches, budget, method, seed=4)
        assert not same(compressed, other)


def test_only_compressed_networks_have_a_plan(network, batches):
    assert gdws.plan_of(network) is None
    compressed = gdws.compress(network, batches, gdws.Macs(0.5), "uniform")
    assert gdws.plan_of(compressed).method == "uniform"
    assert gdws.plan_of(network) is None


def test_statistics_bring_the_method_that_they_were_collected_with(network, batches):
    method = gdws.Calibrated(structures="gdws", attack=None, exclude=["wide"])
    made = gdws.plan(network, gdws.calibrate(network, batches, method), gdws.Macs(0.4))
    assert {layer.structure for layer in made.layers} == {"dense", "gdws"}
    assert made.attack is None
    assert {layer.name: layer.reason for layer in made.layers}["wide"] == "excluded by 'wide'"


def test_a_calibrated_plan_is_not_applied_without_statistics(network, statistics):
    made = gdws.plan(network, statistics, gdws.Macs(0.4))
    for plan in (made, gdws.Plan.from_json(made.to_json())):
        with pytest.raises(GdwsError, match=r"expected what gdws\.calibrate gave for it, or its calibration images"):
            gdws.apply(network, plan)
    whole = gdws.plan(network, statistics, gdws.Macs(1.0))
    assert all(layer.structure == "dense" for layer in whole.layers)
    assert same(gdws.apply(network, whole), network)


def test_statistics_of_other_layers_are_refused(network, batches, statistics):
    images = [batches[0][0]]
    few = gdws.calibrate(network, images, gdws.Calibrated(attack=None, exclude=["wide"]))
    other = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    foreign = gdws.calibrate(other, images, gdws.Calibrated(attack=None))
    with pytest.raises(GdwsError, match=r"lack 1 of 4 convolutions, 'wide' first: expected those that gdws\.calibrate"):
        gdws.plan(network, few, gdws.Macs(0.4), "calibrated")
    with pytest.raises(GdwsError, match="lack 4 of 4 convolutions, 'wide' first"):
        gdws.plan(network, foreign, gdws.Macs(0.4))
    made = gdws.plan(network, statistics, gdws.Macs(0.2))
    assert made.layers[1].structure != "dense"
    for wrong in (few, foreign):
        with pytest.raises(GdwsError, match=r"have no \w+ curve of 'wide': expected those"):
            gdws.apply(network, made, wrong)
    narrow = gdws.calibrate(network, images, gdws.Calibrated(structures="gdws", attack=None))
    separable = gdws.plan(network, statistics, gdws.Macs(0.3), gdws.Calibrated(structures="separable"))
    with pytest.raises(GdwsError, match=r"have no (vertical|horizontal) curve of "):
        gdws.apply(network, separable, narrow)


def test_drop_by_the_papers_method_agrees_and_needs_no_statistics(network, batches, statistics):
    made = gdws.plan(network, batches, gdws.Drop(50.0), gdws.Paper(attack=None))
    assert (made.method, made.budget) == ("paper", gdws.Drop(50.0))
    assert made.macs < 1
    compressed = gdws.apply(network, gdws.Plan.from_json(made.to_json()))
    held, labels = batches[1][0][-6:], batches[1][1][-6:]  # a fifth
    right = [int((model(held).argmax(1) == labels).sum()) for model in (network, compressed)]
    assert made.fidelity.accuracy == pytest.approx([100 * right[0] / 6, 100 * right[1] / 6])
    with pytest.raises(GdwsError, match=r"Drop\(50\) got collected statistics: expected images"):
        gdws.plan(network, statistics, gdws.Drop(50.0), "paper")
    with pytest.raises(GdwsError, match="'paper' got a target: expected the method 'calibrated' with it"):
        gdws.plan(network, batches, gdws.Drop(50.0), "paper", target=gdws.Target("cuda", "float16"))


class Detached(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).detach()


@pytest.mark.parametrize("step", [gdws.calibrate, lambda m, x: gdws.plan(m, x, gdws.Macs(0.5), "paper")])
def test_a_model_without_gradients_gets_one_sentence(step):
    with pytest.raises(GdwsError, match="detaches its outputs from the images: expected gradients to pass"):
        step(Detached(Net()).eval(), [torch.rand(4, 3, 12, 12)])
