"""Equation (8) against a plain loop over samples and classes with autograd's own weight gradients."""

import copy

import pytest
import torch
from torch import nn

import gdws
from gdws.attacks import PGD
from gdws.calibration.hooks import TIE
from gdws.core.errors import GdwsError


class Small(nn.Module):
    """Everything awkward at once: in-place ReLU, a convolution used twice, groups, stride, dilation, padding modes, dropout."""

    def __init__(self, classes=5):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.twice = nn.Conv2d(8, 8, 3, padding="same", bias=False, padding_mode="circular")
        self.grouped = nn.Conv2d(8, 12, (3, 2), stride=2, padding=1, groups=4)
        self.wide = nn.Conv2d(12, 40, 3, dilation=2, padding=2, padding_mode="reflect")
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(40, classes)
        self.act = nn.ReLU(inplace=True)
        self.unused = nn.Conv2d(3, 3, 3)

    def forward(self, x):
        x = self.act(self.norm(self.first(x - 0.5)))
        x = self.act(self.twice(x))
        x = self.act(self.twice(x))
        x = self.act(self.wide(self.act(self.grouped(x))))
        return self.head(self.drop(x.mean((2, 3)))) * 20


def plain_loop(model, images):
    model = copy.deepcopy(model).eval()
    convolutions = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and n != "unused"}
    totals = dict.fromkeys(convolutions, 0.0)
    for image in images:
        z = model(image[None])[0]
        n = int(z.argmax())
        floor = TIE * float((z.max() - z.min()).detach())
        for j in range(len(z)):
            if j == n:
                continue
            grads = torch.autograd.grad(z[j] - z[n], [m.weight for m in convolutions.values()], retain_graph=True)
            delta = max(abs(float((z[j] - z[n]).detach())), floor)
            for (name, conv), grad in zip(convolutions.items(), grads, strict=True):
                per = grad.square().sum((2, 3)).view(conv.groups, -1, grad.shape[1]).sum(1).flatten()
                totals[name] = totals[name] + per / (2 * delta**2)
    return {
        n: t / len(images) / (convolutions[n].out_channels / convolutions[n].groups)
        / convolutions[n].weight[0, 0].numel()
        for n, t in totals.items()
    }  # fmt: skip


@pytest.fixture
def setup():
    torch.manual_seed(0)
    return Small(), torch.rand(6, 3, 10, 10)


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def test_exact_mode_equals_the_plain_loop(setup):
    model, images = setup
    truth = plain_loop(model, images)
    alphas = gdws.sensitivity(model, [images[:4], (images[4:], torch.zeros(2, dtype=torch.long))], exact=True)
    assert set(alphas) == set(truth)
    for name in truth:
        assert relative(alphas[name], truth[name]) < 1e-4


def test_the_estimators_mean_converges(setup):
    model, images = setup
    truth = plain_loop(model, images)
    batches = [images] * 300
    alphas = gdws.sensitivity(model, batches, seed=3)
    few = gdws.sensitivity(model, batches[:10], seed=3)
    for name in truth:
        assert relative(alphas[name], truth[name]) < 0.12
    mean = lambda found: sum(relative(found[n], truth[n]) for n in truth)  # noqa: E731
    assert mean(alphas) < mean(few)


def test_it_leaves_no_trace(setup):
    model, images = setup
    model.train()
    model.norm.eval()
    model.first.weight.requires_grad_(False)
    model.wide.weight.grad = torch.ones_like(model.wide.weight)
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    gdws.sensitivity(model, [images], attack=PGD(steps=2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.training
    assert not model.norm.training
    assert not model.first.weight.requires_grad
    assert model.head.weight.requires_grad
    assert bool((model.wide.weight.grad == 1).all())
    assert all(p.grad is None for n, p in model.named_parameters() if n != "wide.weight")
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_attacked_images_give_other_weights_and_a_seed_repeats_them(setup):
    model, images = setup
    clean = gdws.sensitivity(model, [images], exact=True)
    attack = PGD(eps=0.1, step=0.05, steps=3)
    first = gdws.sensitivity(model, [images], attack=attack, exact=True, seed=1)
    again = gdws.sensitivity(model, [images], attack=attack, exact=True, seed=1)
    assert torch.equal(first["wide"], again["wide"])
    assert not torch.equal(first["wide"], clean["wide"])


def test_a_tie_of_logits_stays_finite():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 3))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    assert bool(gdws.sensitivity(model, [torch.rand(2, 3, 3, 3)])["0"].isfinite().all())


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([], "at least one batch"),
        ([torch.rand(2, 3, 10, 10) * 255], r"expected \[0, 1\]"),
        ([torch.full((1, 3, 10, 10), float("nan"))], "nan"),
        ([torch.zeros(2, 3, 10, dtype=torch.uint8)], r"expected floats \(B, C, H, W\)"),
        ([(torch.rand(2, 3, 10, 10), torch.zeros(3, dtype=torch.long))], "expected 2 integers"),
        ([{"images": 1}], "expected a tensor of images"),
    ],
)
def test_bad_batches_are_named(setup, batches, words):
    with pytest.raises(GdwsError, match=words):
        gdws.sensitivity(setup[0], batches)
