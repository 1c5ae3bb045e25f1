"""One look at whether a network has robustness to keep, and what the calibration makes of it."""

import dataclasses

import pytest
import torch
from torch import nn

import gdws
from gdws import data, models
from gdws.attacks import PGD
from gdws.calibration.method import ATTACK
from gdws.calibration.robustness import settle_attack, survives
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
    assert survives(models.embedded(), pictures, ATTACK, 0.3)
    assert not survives(fragile, pictures, ATTACK, 0.1)
    robust = gdws.plan(models.embedded(), images, gdws.Macs(0.5), "paper")
    assert robust.attack == dataclasses.asdict(ATTACK)
    for method in ("paper", "calibrated"):
        assert gdws.plan(fragile, images, gdws.Macs(0.9), method).attack is None
    assert gdws.calibrate(fragile, images).attack is None


def test_a_look_counts_what_survives_and_ends_when_it_knows():
    """Beside the attack itself; the first batch of a robust network tells enough."""
    model, pictures = models.embedded(), data.load("demo", "train").take(50).images.float() / 255
    attack, passes = dataclasses.replace(ATTACK, steps=2, early_exit=True), []
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        before = model(pictures).argmax(1)
        starts = [torch.Generator().manual_seed(0) for _ in range(2)]
        after = torch.cat([attack(model, *part) for part in zip(pictures.split(25), before.split(25), starts, strict=True)])
        share = float((model(after).argmax(1) == before).float().mean())
    both = len(passes)
    assert 0.3 < share < 0.99
    assert survives(model, pictures, attack, share - 1e-6)
    assert not survives(model, pictures, attack, share + 1e-3)
    passes.clear()
    assert survives(model, pictures, attack, 0.1)
    assert len(passes) < both
    hook.remove()


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
    survives(fragile, torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)), ATTACK, 0.1)
    assert torch.equal(before, torch.get_rng_state())
    assert fragile.training
    assert all(parameter.grad is None for parameter in fragile.parameters())
    fragile.eval()
