"""The same numbers on a CUDA device as on the CPU: `make test-gpu`."""

import copy

import pytest
import torch

import gdws
from gdws import data, models
from gdws.attacks import PGD
from gdws.contract import full_precision
from gdws.evaluate import evaluate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_decomposition():
    weight, alpha = torch.randn(64, 32, 3, 3), torch.rand(32)
    here, there = gdws.mego(weight, alpha, 100), gdws.mego(weight.cuda(), alpha.cuda(), 100)
    assert there.pointwise.is_cuda
    assert torch.equal(here.g, there.g.cpu())
    assert torch.allclose(here.dense(), there.dense().cpu(), atol=1e-5)


@pytest.mark.parametrize("method", ["paper", "calibrated"])
def test_plan_and_apply(method):
    model, train = models.embedded(), data.load("demo", "train").take(50)
    images = data.load("demo", "test").take(100).images.float() / 255
    there = copy.deepcopy(model).cuda()
    compressed = gdws.apply(there, gdws.plan(there, train, gdws.Macs(0.5), method, attack=PGD(steps=2)))
    here = gdws.apply(model, gdws.plan(model, train, gdws.Macs(0.5), method, attack=PGD(steps=2)))
    assert gdws.agreement(here, copy.deepcopy(compressed).cpu(), images) >= 95


def test_evaluation():
    model, test = models.embedded(), data.load("demo", "test").take(200)
    here, there = evaluate(model, test, PGD(steps=5)), evaluate(copy.deepcopy(model).cuda(), test, PGD(steps=5))
    assert int((here.natural != there.natural).sum()) <= 1
    assert int((here.attacked != there.attacked).sum()) <= 4


@pytest.mark.parametrize(("norm", "eps", "step"), [("linf", 8 / 255, 2 / 255), ("l2", 0.5, 0.1), ("l1", 12.0, 2.0)])
def test_attacks(norm, eps, step):
    """From the same starts almost the same images break; and the loop never waits for the device."""
    model, test = models.embedded(), data.load("demo", "test").take(100)
    images, labels = test.images.float() / 255, test.labels
    there = copy.deepcopy(model).cuda()
    attack = PGD(eps=eps, step=step, steps=5, norm=norm)
    with full_precision(), torch.no_grad():
        found = attack(there, images.cuda(), labels.cuda(), torch.Generator().manual_seed(0)).cpu()
        expected = attack(model, images, labels, torch.Generator().manual_seed(0))
        verdicts = [model(x).argmax(1) == labels for x in (found, expected)]
    assert int((verdicts[0] != verdicts[1]).sum()) <= 2
    images, labels, generator = images.cuda(), labels.cuda(), torch.Generator("cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        attack(there, images, labels, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
