"""The same numbers on a CUDA device as on the CPU: `make test-gpu`."""

import copy

import pytest
import torch

import gdws
from gdws import data, models
from gdws.attacks import PGD
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
