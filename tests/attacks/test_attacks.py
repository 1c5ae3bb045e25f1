"""Attacks against brute force, the old PGD, foolbox, and the definitions of ball, box and worst case."""

import copy
import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional as F

from gdws import data, models
from gdws.attacks import BIM, FGSM, MSD, PGD, AutoAttack, DeepFool, preset
from gdws.attacks.base import weights_without_gradients
from gdws.attacks.norm_balls import L1, SPARSITY, ball
from gdws.attacks.presets import PRESETS
from gdws.core.errors import GdwsError

NORMS = ("linf", "l2", "l1")
RADIUS = {"linf": 0.015, "l2": 0.15, "l1": 1.0}  # breaks a part of the small network's images
LENGTH = {"linf": 0.004, "l2": 0.04, "l1": 0.25}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def size(change, norm):
    return torch.linalg.vector_norm(change.double().flatten(1), {"linf": torch.inf, "l2": 2, "l1": 1}[norm], dim=1)


def assert_inside(x, images, norm, eps):
    """In the box, and in the ball up to the rounding of every value to float32."""
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    rounding = float(size(torch.full_like(images[:1], 1e-7), norm))
    assert float(size(x.double() - images.double(), norm).max()) <= eps * (1 + 1e-5) + rounding


def broken(model, x, labels):
    with torch.no_grad():
        return model(x).argmax(1) != labels


@pytest.fixture(scope="module")
def small():
    """A network of 10 classes, 120 images, and its own decisions as labels; the last 20 labels are wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)
    )
    images = torch.rand(120, 3, 12, 12)
    with torch.no_grad():
        model[-1].bias -= model(images).mean(0)  # or it would decide for one class always
        labels = model(images).argmax(1)
    labels[100:] = (labels[100:] + 1) % 10
    return model.eval(), images, labels


@pytest.fixture(scope="module")
def real():
    """The embedded model and 16 images that it decides rightly."""
    model, test = models.embedded(), data.load("demo", "test").take(24)
    images, labels = test.images.float() / 255, test.labels
    right = ~broken(model, images, labels)
    return model, images[right][:16], labels[right][:16]


def pgd(norm, **changes):
    return PGD(**{"eps": RADIUS[norm], "step": LENGTH[norm], "steps": 8, "norm": norm} | changes)


# The balls


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NORMS), st.floats(0, 3), st.floats(0.01, 2), st.integers(0, 2**31), st.sampled_from([2, 6, 32]))
def test_starts_and_projected_steps_are_in_the_ball_and_the_box(norm, eps, length, seed, side):
    generator = seeded(seed)
    images = (torch.rand(3, 3, side, side, generator=generator) * 1.5 - 0.25).clamp(0, 1)  # many values at 0 and 1
    region = ball(norm, eps)
    x = region.random(images, generator)
    assert_inside(x, images, norm, eps)
    for scale in (1e-30, 1.0, 1e6):
        x = region.project(region.step(x, scale * torch.randn(images.shape, generator=generator), length), images)
        assert_inside(x, images, norm, eps)
    assert_inside(region.project(10 * torch.randn(images.shape, generator=generator), images), images, norm, eps)


@pytest.mark.parametrize("norm", NORMS)
def test_starts_are_uniform_in_the_ball(norm):
    """|x| / eps has the distribution function r^n, and every coordinate is symmetric."""
    images = torch.full((20_000, 1, 1, 3), 0.5)
    change = ball(norm, 0.4).random(images, seeded()) - images
    radii = (size(change, norm) / 0.4).sort().values
    assert float((radii**3 - torch.linspace(0, 1, len(radii))).abs().max()) < 0.015
    assert float(change.mean(0).abs().max()) < 0.005
    assert float((change.square().mean(0) / change.square().mean() - 1).abs().max()) < 0.03


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-0.4, 0.4), min_size=2, max_size=6), st.floats(0.01, 1))
def test_the_l1_projection_is_the_nearest_point(change, eps):
    wanted = np.array(change)
    start = np.concatenate([wanted.clip(0), (-wanted).clip(0)]) * min(1, eps / max(np.abs(wanted).sum(), 1e-9))
    truth = minimize(
        lambda p: ((p[: len(wanted)] - p[len(wanted) :] - wanted) ** 2).sum(),
        start,
        jac=lambda p: np.concatenate([d := 2 * (p[: len(wanted)] - p[len(wanted) :] - wanted), -d]),
        bounds=[(0, None)] * len(start),
        constraints={"type": "ineq", "fun": lambda p: eps - p.sum(), "jac": lambda p: -np.ones_like(p)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    images = torch.full((1, 1, 1, len(wanted)), 0.5, dtype=torch.float64)
    found = ball("l1", eps).project(images + torch.tensor(change, dtype=torch.float64), images) - images
    assert np.allclose(found.flatten().numpy(), truth[: len(wanted)] - truth[len(wanted) :], atol=1e-5)


def test_the_l1_projection_of_whole_images_against_bisection():
    images = torch.full((4, 3, 32, 32), 0.5)
    change = torch.randn(4, 3, 32, 32, generator=seeded()) * torch.tensor([0.001, 0.01, 0.05, 0.1]).view(4, 1, 1, 1)
    found = ball("l1", 12.0).project(images + change, images) - images
    sizes = change.double().flatten(1).abs()
    low, high = torch.zeros(4, 1, dtype=torch.float64), sizes.amax(1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        outside = (sizes - middle).clamp_min(0).sum(1, keepdim=True) > 12
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    truth = change.double().sign() * (sizes - high).clamp_min(0).view(4, 3, 32, 32)
    assert float((found - truth).abs().max()) < 1e-6
    assert torch.allclose(found[0], change[0], atol=1e-7)  # 2.5 < 12: inside already


def test_the_l2_projection_shortens_and_keeps_the_direction():
    images = torch.full((2, 3, 4, 4), 0.5)
    change = torch.randn(2, 3, 4, 4, generator=seeded()) * torch.tensor([0.001, 0.1]).view(2, 1, 1, 1)
    found = ball("l2", 0.1).project(images + change, images) - images
    assert torch.allclose(found[0], change[0], atol=1e-7)
    assert torch.allclose(found[1], change[1] * 0.1 / change[1].norm(), atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_the_l1_step_gains_most_of_all_sparse_steps(seed, count):
    """All choices of `count` coordinates and signs, none pushing against the box, compared by what they add to the loss."""
    generator = seeded(seed)
    x = torch.randint(0, 3, (1, 1, 1, 6), generator=generator) / 2  # 0, 1/2 or 1
    gradient = torch.randn(1, 1, 1, 6, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gdws.attacks.norm_balls.SPARSITY", count)
        change = (L1(1.0).step(x, gradient, 0.3) - x).flatten()
    flat, slope = x.flatten(), gradient.flatten()
    gains = [0.0]
    for number in range(count + 1):
        for chosen in itertools.combinations(range(6), number):
            for signs in itertools.product((-1, 1), repeat=number):
                if all(0 <= flat[i] + s * 1e-3 <= 1 for i, s in zip(chosen, signs, strict=True)):
                    gains.append(0.3 / count * sum(float(slope[i]) * s for i, s in zip(chosen, signs, strict=True)))
    assert float(change @ slope) == pytest.approx(max(gains), abs=1e-5)
    assert float(change.abs().sum()) <= 0.3 + 1e-6
    assert 0 <= float((flat + 1e-3 * change.sign()).min()) <= float((flat + 1e-3 * change.sign()).max()) <= 1


def test_steps_have_their_length_whatever_the_gradient():
    x, gradient = torch.full((2, 3, 8, 8), 0.5), torch.randn(2, 3, 8, 8, generator=seeded())
    for norm, scale in itertools.product(NORMS, (1.0, 1e-30, 1e37)):
        step = ball(norm, 1.0).step(x, scale * gradient, 0.25) - x
        assert torch.allclose(size(step, norm), torch.tensor(0.25, dtype=torch.float64), atol=1e-5)
        assert torch.equal(ball(norm, 1.0).step(x, torch.zeros_like(x), 0.25), x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("length", [1e-30, 1e10, 1e30, 1e37])
def test_steps_of_any_length_end_in_the_ball(norm, length):
    """Bug: the product of a long step and a large gradient was infinite, and the attacked image NaN."""
    images = torch.rand(2, 3, 8, 8, generator=seeded())
    gradient = torch.randn(2, 3, 8, 8, generator=seeded(1))
    region = ball(norm, 0.3)
    for scale in (1e-30, 1.0, 1e10, 1e37):
        x = region.project(region.step(images, scale * gradient, length), images)
        assert_inside(x, images, norm, 0.3)
        if length > 1:  # not back at the image
            assert bool((size(x - images, norm) > 0.05).all())


def test_an_l1_step_moves_few_coordinates():
    x, gradient = torch.full((2, 3, 8, 8), 0.5), torch.randn(2, 3, 8, 8, generator=seeded())
    moved = ball("l1", 1.0).step(x, gradient, 0.25) != x
    assert moved.flatten(1).sum(1).tolist() == [SPARSITY, SPARSITY]


# PGD


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_plain_pgd_is_the_old_one_bit_for_bit(small, layout):
    model, images, labels = small
    images, attack = images.contiguous(memory_format=layout), PGD(steps=5)
    low, high = (images - attack.eps).clamp_min(0), (images + attack.eps).clamp_max(1)
    x = torch.clamp(images + (2 * torch.rand(images.shape, generator=seeded(3)) - 1) * attack.eps, low, high)
    for _ in range(5):
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), labels, reduction="sum"), x)
        x = torch.clamp(x.detach() + attack.step * gradient.sign(), low, high)
    assert torch.equal(attack(model, images, labels, seeded(3)), x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("more", [{}, {"restarts": 2}, {"early_exit": True}, {"restarts": 3, "early_exit": True}])
def test_a_seed_gives_the_result_and_leaves_no_trace(small, norm, more):
    model, images, labels = small
    attack, before = pgd(norm, **more), (images.clone(), labels.clone())
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = attack(model, images, labels, seeded(5))
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(attack(model, images, labels, seeded(5)), first)
    assert not torch.equal(attack(model, images, labels, seeded(6)), first)
    assert_inside(first, images, norm, attack.eps)
    assert torch.equal(before[0], images)
    assert torch.equal(before[1], labels)
    assert not first.requires_grad
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


class Recorder(nn.Module):
    """Keeps what it is asked."""

    def __init__(self, model):
        super().__init__()
        self.model, self.asked = model, []

    def forward(self, x):
        self.asked.append(x.detach().clone())
        return self.model(x)


@pytest.mark.parametrize("early_exit", [False, True])
def test_two_models_get_the_same_starts_and_leave_the_generator_alike(small, early_exit):
    model, images, labels = small
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[-1].weight += 0.02 * torch.randn(other[-1].weight.shape, generator=seeded())
    attack = pgd("linf", restarts=3, early_exit=early_exit)
    starts, states = [], []
    for network in (model, other):
        recorder, generator = Recorder(network), seeded(4)
        attack(recorder, images, labels, generator)
        active = torch.arange(len(images))
        if early_exit:
            active = (~broken(network, images, labels)).nonzero().squeeze(1)
        starts.append(dict(zip(active.tolist(), recorder.asked[1 if early_exit else 0], strict=True)))
        states.append(generator.get_state())
    common = starts[0].keys() & starts[1].keys()
    assert len(common) == len(images) if not early_exit else 20 < len(common) < min(map(len, starts))
    assert all(torch.equal(starts[0][i], starts[1][i]) for i in common)
    assert torch.equal(states[0], states[1])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("early_exit", [False, True])
def test_restarts_keep_the_worst_of_the_runs(small, norm, early_exit):
    """With the starts of three single runs: broken if one of them breaks it, else the largest of their losses."""
    model, images, labels = small
    together = pgd(norm, steps=1, restarts=3, early_exit=early_exit)(model, images, labels, seeded(7))
    generator = seeded(7)
    single = [pgd(norm, steps=1, early_exit=early_exit)(model, images, labels, generator) for _ in range(3)]
    breaks = torch.stack([broken(model, x, labels) for x in single])
    verdict = broken(model, together, labels)
    assert torch.equal(verdict, breaks.any(0))
    assert bool((breaks.sum(0) == 1).any())  # some images hang on one of the starts
    with torch.no_grad():
        losses = torch.stack([F.cross_entropy(model(x), labels, reduction="none") for x in (*single, together)])
    assert torch.allclose(losses[3][~verdict], losses[:3].amax(0)[~verdict], atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_early_exit_breaks_what_any_iterate_breaks(small, norm):
    model, images, labels = small
    attack = pgd(norm, steps=13, step=4 * LENGTH[norm])  # long steps: some iterates are better than the last
    region = ball(norm, attack.eps)
    x, truth = region.random(images, seeded(8)), broken(model, images, labels)
    for _ in range(attack.steps):
        truth |= broken(model, x, labels)
        x = x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), labels, reduction="sum"), x)
        x = region.project(region.step(x.detach(), gradient, attack.step), images)
    last = broken(model, x, labels)
    found = broken(model, replace(attack, early_exit=True)(model, images, labels, seeded(8)), labels)
    assert torch.equal(found, truth | last)
    assert torch.equal(broken(model, attack(model, images, labels, seeded(8)), labels), last)
    assert 0 < int(found[:100].sum()) < 100
    assert not bool((last & ~found).any())


def test_early_exit_leaves_wrong_images_alone_and_computes_only_those_that_stand(small):
    model, images, labels = small
    recorder = Recorder(model)
    attacked = pgd("l2", steps=40, early_exit=True)(recorder, images, labels, seeded())
    assert torch.equal(attacked[100:], images[100:])
    assert not torch.equal(attacked[:100], images[:100])
    sizes = [len(x) for x in recorder.asked]
    assert sizes[:2] == [120, 100]
    changes = {step for step in range(1, 40) if sizes[1 + step] != sizes[step]}
    assert changes
    assert changes <= {1, 2, 4, 8, 16, 32}
    every_one_wrong = (model(images).argmax(1) + 1) % 10
    assert torch.equal(pgd("l2", early_exit=True)(model, images, every_one_wrong, seeded()), images)


def test_no_steps_give_the_start_and_no_radius_the_image(small):
    model, images, labels = small
    for norm in NORMS:
        assert torch.equal(
            pgd(norm, steps=0)(model, images, labels, seeded()), ball(norm, RADIUS[norm]).random(images, seeded())
        )
        assert torch.allclose(pgd(norm, eps=0.0)(model, images, labels, seeded()), images, atol=1e-7)


# MSD


def test_msd_keeps_the_worst_of_the_three_steps(small):
    model, images, labels = small
    attack = MSD(eps=tuple(RADIUS.values()), step=tuple(LENGTH.values()), steps=4)
    x, choices = images, []
    for _ in range(4):
        leaf = x.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), labels, reduction="sum"), leaf)
        regions = [ball(norm, RADIUS[norm]) for norm in NORMS]
        tried = torch.stack(
            [r.project(r.step(x, gradient, length), images) for r, length in zip(regions, LENGTH.values(), strict=True)]
        )
        with torch.no_grad():
            losses = torch.stack([F.cross_entropy(model(candidate), labels, reduction="none") for candidate in tried])
        choices.append(losses.argmax(0))
        x = tried[choices[-1], torch.arange(len(images))]
    found = attack(model, images, labels, seeded())
    assert torch.allclose(found, x, atol=1e-6)
    assert len(torch.cat(choices).unique()) > 1
    inside = torch.stack([size(found - images, norm) <= RADIUS[norm] * (1 + 1e-5) for norm in NORMS])
    assert bool(inside.any(0).all())
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    early = replace(attack, early_exit=True)(model, images, labels, seeded())
    assert torch.equal(early[100:], images[100:])
    assert not bool((broken(model, found, labels) & ~broken(model, early, labels)).any())


# Against foolbox


def foolbox_attack(norm, attack, start=None):
    """foolbox's PGD with our settings and, if one is given, from our start."""
    import foolbox

    name = {
        "linf": "LinfProjectedGradientDescentAttack",
        "l2": "L2ProjectedGradientDescentAttack",
        "l1": "SparseL1DescentAttack",
    }
    theirs = getattr(foolbox.attacks, name[norm])(abs_stepsize=attack.step, steps=attack.steps, random_start=True)
    if start is not None:
        theirs.get_random_start = lambda x0, epsilon: type(x0)(start)

    def run(model, images, labels):
        if norm == "l1":
            theirs.quantile = (images[0].numel() - SPARSITY - 0.5) / (images[0].numel() - 1)
        with weights_without_gradients(model):
            return theirs(foolbox.PyTorchModel(model, bounds=(0, 1)), images, labels, epsilons=attack.eps)[1]

    return run


@pytest.mark.parametrize(("norm", "eps", "step"), [("linf", 8 / 255, 2 / 255), ("l2", 0.5, 0.1), ("l1", 12.0, 2.0)])
def test_from_the_same_start_foolbox_reaches_the_same_images(real, norm, eps, step):
    model, images, labels = real
    FGSM()(model, images[:1], labels[:1], seeded())  # imports foolbox, with its warnings caught
    attack = PGD(eps=eps, step=step, steps=5, norm=norm)
    ours = attack(model, images, labels, seeded(9))
    theirs = foolbox_attack(norm, attack, ball(norm, eps).random(images, seeded(9)))(model, images, labels)
    # A rounding error may turn the sign of a gradient near zero, or the order of two: few values may differ.
    assert float(((ours - theirs).abs() > 1e-4).float().mean()) < 0.01
    assert int((broken(model, ours, labels) != broken(model, theirs, labels)).sum()) <= 1


@pytest.mark.parametrize("norm", NORMS)
def test_from_its_own_starts_foolbox_breaks_as_many(small, norm):
    """1,000 images: within three standard errors of the difference."""
    model, _, _ = small
    images = torch.rand(1000, 3, 12, 12, generator=seeded())
    with torch.no_grad():
        labels = model(images).argmax(1)
    FGSM()(model, images[:1], labels[:1], seeded())
    attack = pgd(norm, steps=20)
    ours = float(broken(model, attack(model, images, labels, seeded()), labels).float().mean())
    torch.manual_seed(0)
    theirs = float(broken(model, foolbox_attack(norm, attack)(model, images, labels), labels).float().mean())
    assert 0.1 < ours < 0.9
    assert abs(ours - theirs) < 3 * (2 * ours * (1 - ours) / 1000) ** 0.5


@pytest.mark.parametrize("attack", [FGSM(eps=0.01), BIM(eps=0.01, step=0.003), DeepFool(eps=0.01)])
def test_foolboxes_attacks_stay_in_the_ball_and_leave_no_trace(small, attack):
    model, images, labels = small
    state = torch.get_rng_state()
    attacked = attack(model, images, labels, seeded())
    assert torch.equal(state, torch.get_rng_state())
    assert_inside(attacked, images, "linf", 0.01)
    assert torch.equal(attacked[100:], images[100:])
    assert 0 < int(broken(model, attacked, labels)[:100].sum()) < 100
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(attack(model, images[100:], labels[100:], seeded()), images[100:])


def test_fgsm_is_one_whole_step(small):
    model, images, labels = small
    leaf = images.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), labels, reduction="sum"), leaf)
    wanted = (images + 0.01 * gradient.sign()).clamp(0, 1)
    assert torch.allclose(FGSM(eps=0.01)(model, images, labels, seeded())[:100], wanted[:100], atol=1e-6)


# AutoAttack


@pytest.mark.parametrize("norm", NORMS)
def test_autoattack_is_seeded_quiet_and_at_least_as_strong_as_pgd(small, norm, capfd):
    model, images, labels = small
    images, labels = images[80:110], labels[80:110]
    attack = AutoAttack(eps=RADIUS[norm], norm=norm, version="custom", parts=("apgd-ce",))
    state, trace = torch.get_rng_state(), sys.gettrace()
    tracer = lambda *_: None  # noqa: E731
    sys.settrace(tracer)
    try:
        attacked = attack(model, images, labels, seeded())
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(trace)
    assert torch.equal(state, torch.get_rng_state())
    assert capfd.readouterr() == ("", "")
    assert_inside(attacked, images, norm, attack.eps)
    assert torch.equal(attacked[20:], images[20:])
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(attack(model, images, labels, seeded()), attacked)
    weaker = pgd(norm, eps=attack.eps, step=attack.eps / 4)(model, images, labels, seeded())
    found = broken(model, attacked, labels)
    assert int(found.sum()) >= int(broken(model, weaker, labels).sum())
    assert 0 < int(found[:20].sum()) < 20


def test_autoattack_versions_and_batches_of_one_image_or_only_wrong_ones(small):
    model, images, labels = small
    square = AutoAttack(eps=0.1, version="custom", parts=("square",))  # so far that all of them stop at once
    for attack in (AutoAttack(eps=0.1), AutoAttack(eps=0.1, version="rand"), square):
        for count in (1, 3):
            attacked = attack(model, images[:count], labels[:count], seeded())
            assert_inside(attacked, images[:count], "linf", 0.1)
            assert bool(broken(model, attacked, labels[:count]).all())
    assert torch.equal(square(model, images[100:], labels[100:], seeded()), images[100:])


def test_autoattack_with_few_classes():
    torch.manual_seed(0)
    images = torch.rand(3, 3, 8, 8)
    for classes in (2, 5):
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, classes)).eval()
        labels = model(images).argmax(1)
        if classes == 2:
            with pytest.raises(GdwsError, match="2 classes: expected at least 4"):
                AutoAttack(eps=0.001)(model, images, labels, seeded())
        else:
            parts = ("apgd-t", "fab-t")
            attacked = AutoAttack(eps=0.001, version="custom", parts=parts)(model, images, labels, seeded())
            assert_inside(attacked, images, "linf", 0.001)
            assert all(parameter.grad is None for parameter in model.parameters())


# Names, records, errors


def test_presets_are_the_papers_and_their_records_survive_json():
    (cifar,), (imagenet,) = preset("paper-cifar10"), preset("paper-imagenet")
    assert (cifar.norm, cifar.eps, cifar.steps) == ("linf", 8 / 255, 100)
    assert (imagenet.norm, imagenet.eps, imagenet.steps) == ("linf", 4 / 255, 50)
    *three, union = preset("paper-union")
    assert [(a.norm, a.eps, a.steps, a.restarts) for a in three] == [
        ("linf", 0.03, 100, 10),
        ("l2", 0.5, 500, 10),
        ("l1", 12.0, 100, 10),
    ]
    assert union.eps == (0.03, 0.5, 12.0)
    every = [attack for name in PRESETS for attack in preset(name)]
    assert [type(attack)(**json.loads(json.dumps(asdict(attack)))) for attack in every] == every
    assert len({str(attack) for attack in every}) == len(every)
    with pytest.raises(GdwsError, match=r"unknown attack 'pgd': expected one of pgd-20, paper-cifar10"):
        preset("pgd")


UNREAL, PARTS = (math.nan, math.inf, 1e300, -1.0), (1.5, math.nan, -1, True)


def test_labels_and_old_records():
    assert str(PGD()) == "PGD-20 (l-inf, eps 8/255, step 2/255)"
    assert str(preset("paper-union")[1]) == "10 x PGD-500 (l-2, eps 0.5, step 0.01)"
    assert str(AutoAttack()) == "AutoAttack (l-inf, eps 8/255)"
    old = {"eps": 8 / 255, "step": 2 / 255, "steps": 20}
    assert PGD(**old) == PGD()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PGD(eps=-1), "expected eps >= 0"),
        *(
            (lambda attack=attack, value=value: attack(eps=value), "eps")
            for attack in (PGD, FGSM, AutoAttack)
            for value in UNREAL
        ),
        *((lambda kind=kind, value=value: kind(step=value), "step") for kind in (PGD, BIM) for value in UNREAL),
        *((lambda kind=kind, value=value: kind(steps=value), "steps") for kind in (PGD, BIM, MSD, DeepFool) for value in PARTS),
        *((lambda value=value: MSD(eps=(value, 0.5, 12.0)), "expected three eps") for value in UNREAL),
        *((lambda value=value: PGD(restarts=value), "restarts >= 1") for value in PARTS),
        (lambda: PGD(norm="l3"), "expected a norm of linf, l2, l1"),
        (lambda: PGD(restarts=0), "restarts >= 1"),
        (lambda: MSD(eps=(1, 2)), "expected three eps"),
        (lambda: BIM(steps=0), "at least one step"),
        (lambda: AutoAttack(version="fast"), "a version of standard, rand, custom"),
        (lambda: AutoAttack(parts=("fab",)), "for custom, else none"),
        (lambda: AutoAttack(version="custom"), "expected some of apgd-ce"),
        (lambda: ball("l0", 1.0), "unknown norm 'l0'"),
    ],
)
def test_settings_that_make_no_sense(make, sentence):
    with pytest.raises(GdwsError, match=sentence):
        make()


@pytest.mark.parametrize(("attack", "package"), [(FGSM(), "foolbox"), (AutoAttack(), "pyautoattack")])
def test_a_missing_package_is_named(small, attack, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(GdwsError, match=rf"needs the package {package} .*: expected `pip install gdws\[attacks\]`"):
        attack(*small, seeded())


def test_foolbox_is_found_on_a_machine_without_git():
    program = "from gdws.attacks.base import optional; optional('foolbox', 'this')"
    environment = {name: value for name, value in os.environ.items() if name != "GIT_PYTHON_REFRESH"} | {"PATH": "/nowhere"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
