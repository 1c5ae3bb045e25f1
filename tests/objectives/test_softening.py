"""The temperature of the metric: found exactly, one where there is doubt enough, and what makes plans independent of scale."""

import math

import pytest
import torch
from torch import nn

import gdws
from gdws import data, models
from gdws.objectives.classes import draw_class
from gdws.objectives.softening import ENTROPY, temperature_of


def entropy(logits):
    p = logits.double().softmax(1)
    return float(-(p * p.clamp_min(1e-300).log()).sum(1).mean())


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("scale", [5.0, 50.0, 3000.0])
def test_confident_logits_are_softened_to_a_third_of_the_largest_entropy(classes, scale):
    logits = scale * torch.randn(200, classes, generator=torch.Generator().manual_seed(0))
    temperature = temperature_of(logits)
    if temperature > 1:
        assert entropy(logits / temperature) == pytest.approx(ENTROPY * math.log(classes), rel=1e-6)
        assert temperature_of(logits / temperature) == pytest.approx(1, rel=1e-6)
    else:
        assert entropy(logits) >= ENTROPY * math.log(classes)
    assert temperature_of(10 * logits) == pytest.approx(10 * temperature, rel=1e-6) or temperature == 1


@pytest.mark.parametrize("logits", [torch.zeros(5, 10), torch.randn(50, 10), torch.randn(50, 1)])
def test_logits_in_doubt_stay_as_they_are(logits):
    assert temperature_of(logits) == 1


def test_the_cotangents_are_those_of_the_softened_decisions():
    """Their second moment is diag(q) - q q^T, the Fisher information of softmax(z / T) but for 1 / T^2."""
    generator, logits = torch.Generator().manual_seed(1), torch.tensor([[8.0, 2.0, -3.0, 0.0]]).repeat(200_000, 1)
    cotangents = draw_class(logits, 4.0, generator)
    q = (logits[0] / 4).softmax(0)
    torch.testing.assert_close(cotangents.T @ cotangents / len(logits), q.diag() - q.outer(q), atol=3e-3, rtol=0)


class Louder(nn.Module):
    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x):
        return self.factor * self.model(x)


def test_a_network_that_knows_its_images_by_heart_is_planned_as_if_it_doubted():
    """Decisions of probability one, ten times surer still: the same plan. Plain Fisher information would vanish."""
    images, plans = data.load("demo", "train").take(16), []
    for factor in (100.0, 1000.0):
        model = Louder(models.embedded(), factor).eval()
        statistics = gdws.calibrate(model, images, gdws.Calibrated(attack=None))
        assert statistics.objective.temperature > 10
        plans.append(gdws.plan(model, statistics, gdws.Macs(0.4)))
    first, second = ([layer.structure for layer in plan.layers] for plan in plans)
    assert first == second
    for one, other in zip(*(plan.layers for plan in plans), strict=True):
        assert one.macs == pytest.approx(other.macs, rel=0.1)
