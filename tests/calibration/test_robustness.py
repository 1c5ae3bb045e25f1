"""One look at whether a network has robustness to keep, and what the calibration makes of it."""

import dataclasses

import pytest
import torch
from torch import nn

import gdws
from gdws import data, models
from gdws.attacks import PGD
from gdws.calibration.method import ATTACK
from gdws.calibration.robustness import settle_attack, surviving
from gdws.objectives import Classes


class Fragile(nn.Module):
    """Convolutions whose decisions hang on differences of neighboring pixels that no eye sees."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv(torch.sin(60 * self.stem(x)))).mean((2, 3)) * 50)


@pytest.fixture(scope="module")
def fragile():
    torch.manual_seed(0)
    return Fragile().eval()


def test_a_robust_network_is_calibrated_under_attack_and_a_fragile_one_clean(fragile):
    images = data.load("demo", "train").take(40)
    pictures = images.images.float() / 255
    assert surviving(models.embedded(), pictures, ATTACK) > 0.3
    assert surviving(fragile, pictures, ATTACK) < 0.1
    robust = gdws.plan(models.embedded(), images, gdws.Macs(0.5), "paper")
    assert robust.attack == dataclasses.asdict(ATTACK)
    for method in ("paper", "calibrated"):
        assert gdws.plan(fragile, images, gdws.Macs(0.9), method).attack is None
    assert gdws.calibrate(fragile, images).attack is None


def test_what_is_asked_for_is_done_whatever_the_network(fragile):
    images = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    attack = PGD(steps=1)
    assert settle_attack(fragile, images, gdws.Paper(attack=attack, objective=Classes())).attack == attack
    assert settle_attack(models.embedded(), images, gdws.Calibrated(attack=None, objective=Classes())).attack is None
    settled = settle_attack(fragile, images, gdws.Calibrated(exclude=["head"], structures="gdws", objective=Classes()))
    assert settled == gdws.Calibrated(exclude=["head"], structures="gdws", attack=None, objective=Classes())


def test_the_look_leaves_the_model_and_the_random_numbers_alone(fragile):
    fragile.train()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    surviving(fragile, torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)), ATTACK)
    assert torch.equal(before, torch.get_rng_state())
    assert fragile.training
    assert all(parameter.grad is None for parameter in fragile.parameters())
    fragile.eval()
