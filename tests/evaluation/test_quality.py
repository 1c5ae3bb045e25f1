"""Quality of networks that are no classifiers, against plain formulas; and their fidelity to an original."""

import math

import pytest
import torch
from torch import nn

import gdws
from gdws.core.errors import GdwsError


class Blur(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.conv, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.share = share

    def forward(self, x):
        return x + self.share * self.second(torch.relu(self.conv(x)))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Blur(0.1).eval()


def test_one_number_for_each_sample_is_measured_as_pictures_are():
    network, truth = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten(0)), torch.tensor([0.0, 1.0, 0.5])
    nn.init.ones_(network[0].weight)
    found = gdws.quality(network, [(truth.view(3, 1, 1, 1) + 0.1, truth)])
    assert (found.value, found.samples) == (pytest.approx(20), 3)


def test_psnr_is_the_mean_over_the_samples(model):
    x, noise = torch.rand(10, 3, 9, 9), 0.1 * torch.randn(10, 3, 9, 9)
    with torch.no_grad():
        truth = (model(x) + noise).clamp(0, 1)
        errors = (model(x) - truth).double().square().mean((1, 2, 3))
    found = gdws.quality(model, [(x[:6], truth[:6]), (x[6:], truth[6:])])
    assert (found.name, found.unit, found.samples) == ("PSNR", "dB", 10)
    assert found.value == pytest.approx(sum(10 * math.log10(1 / error) for error in errors.tolist()) / 10, rel=1e-6)


def test_pixels_are_counted_where_targets_are_their_classes(model):
    x = torch.rand(5, 3, 9, 9)
    with torch.no_grad():
        decided = model(x).argmax(1)
    wrong = decided.clone()
    wrong[:, :3] = (wrong[:, :3] + 1) % 3
    assert str(gdws.quality(model, [(x, wrong)])) == "pixels right 66.67 % on 5 samples"


def test_a_function_is_asked(model):
    def share(network):
        return network.share

    assert str(gdws.quality(model, share)) == "share 0.1"


def test_fidelity_is_the_distance_to_the_original(model):
    x = torch.rand(8, 3, 9, 9)
    other = Blur(0.2).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        before, after = model(x).double(), other(x).double()
    variance = before.transpose(0, 1).flatten(1).var(1, correction=0).view(1, 3, 1, 1)
    expected = ((after - before).square() / variance).mean().sqrt()
    found = gdws.fidelity(model, other, [x[:5], x[5:]])
    assert found.distance == pytest.approx(float(expected), rel=1e-5)
    assert found.low < found.distance < found.high
    peak = 1.0 if before.min() >= -0.1 and before.max() <= 1.1 else float(before.max() - before.min())
    assert found.noise == pytest.approx(10 * math.log10(peak**2 / float((after - before).square().mean())), rel=1e-5)


def test_a_classifier_is_compared_by_decisions():
    model = gdws.models.embedded()
    found = gdws.fidelity(model, model, gdws.data.load("demo", "test").take(20))
    assert (found.agreement, found.accuracy[0]) == (100, found.accuracy[1])


def test_calibration_samples_are_refused(model):
    x = torch.rand(12, 3, 9, 9)
    fast = gdws.compress(model, [x], gdws.Macs(0.7), gdws.Calibrated(structures=["gdws"], keep_first=False))
    with pytest.raises(GdwsError, match="was calibrated on 2 of these images"):
        gdws.fidelity(model, fast, [x[:2]])
    with pytest.raises(GdwsError, match="was calibrated on 2 of these images"):
        gdws.quality(fast, [(x[:2], x[:2])])


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([torch.rand(2, 3, 9, 9)], r"a batch has no targets: expected \(inputs, targets\)"),
        ([(torch.rand(2, 3, 9, 9), torch.rand(2, 3, 8, 9))], r"targets are torch.float32 .2, 3, 8, 9.: expected floats"),
        ([], "the evaluation data is empty"),
        (lambda network: "good", "the measure <lambda> gives a str: expected a number"),
        (lambda network: math.nan, "gives nan: expected a finite number"),
    ],
)  # fmt: skip
def test_wrong_truths_get_one_sentence(model, batches, words):
    with pytest.raises(GdwsError, match=words):
        gdws.quality(model, batches)
