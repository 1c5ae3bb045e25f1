"""Tuning without labels brings a compressed network nearer to its original."""

import copy
import dataclasses

import pytest
import torch
from helpers import network
from torch import nn

import gdws
from gdws.attacks import PGD
from gdws.compression import repair as repair_module
from gdws.core.errors import GdwsError
from gdws.structures.balance import balance, unbalance

METHOD = gdws.Calibrated(structures=["vertical"], attack=None)


class Enhancer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.body, self.last = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 16), (16, 16), (16, 3)))

    def forward(self, x, strength):
        return x + strength.view(-1, 1, 1, 1) * self.last(torch.relu(self.body(torch.relu(self.first(x)))))


@pytest.fixture(scope="module")
def enhanced():
    torch.manual_seed(0)
    model = Enhancer().eval()
    data = [gdws.Arguments(torch.rand(16, 3, 12, 12), torch.rand(16) + 0.5) for _ in range(4)]
    return model, data, gdws.compress(model, data, gdws.Macs(0.35), METHOD)


def error(model, other, data):
    with torch.no_grad():
        return float(torch.cat([part.call(model) - part.call(other) for part in data]).square().mean())


def test_outputs_on_unseen_samples_come_nearer_to_the_originals(enhanced):
    model, data, fast = enhanced
    unseen = [gdws.Arguments(torch.rand(50, 3, 12, 12), torch.rand(50) + 0.5)]
    before = copy.deepcopy(fast.state_dict())
    better = gdws.repair(model, fast, data, gdws.Repair(steps=300))
    assert error(model, better, unseen) < 0.6 * error(model, fast, unseen)
    assert gdws.plan_of(better) == gdws.plan_of(fast)
    assert [type(module) for module in better.modules()] == [type(module) for module in fast.modules()]
    assert all(torch.equal(value, before[name]) for name, value in fast.state_dict().items())


def test_the_seed_decides(enhanced):
    model, data, fast = enhanced
    torch.manual_seed(1)
    first = gdws.repair(model, fast, data, gdws.Repair(steps=3), seed=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = gdws.repair(model, fast, data, gdws.Repair(steps=3), seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_what_did_harm_is_not_kept(enhanced):
    model, data, fast = enhanced
    kept = gdws.repair(model, fast, data, gdws.Repair(steps=10, rate=0.9))
    assert error(model, kept, data) <= 1.01 * error(model, fast, data)


class Stream:
    """Other samples whenever it is gone through, and how many batches were taken."""

    def __init__(self, batches):
        self.batches, self.taken, self.generator = batches, 0, torch.Generator().manual_seed(3)

    def __iter__(self):
        for _ in range(self.batches):
            self.taken += 1
            pictures = torch.rand(8, 3, 12, 12, generator=self.generator)
            yield gdws.Arguments(pictures, torch.rand(8, generator=self.generator) + 0.5)


def test_a_stream_is_learned_from_batch_by_batch_and_others_are_judged(enhanced):
    model, data, fast = enhanced
    stream, unseen = Stream(batches=7), [gdws.Arguments(torch.rand(50, 3, 12, 12), torch.rand(50) + 0.5)]
    better = gdws.repair(model, fast, stream, gdws.Repair(steps=300), check=data[:1])
    assert stream.taken == 300
    assert error(model, better, unseen) < 0.6 * error(model, fast, unseen)
    opposite = [gdws.Arguments(*(-value for value in data[0].tensors))]  # others than those that it learns from
    harmed = gdws.repair(model, fast, opposite, gdws.Repair(steps=20, rate=0.5, activations=0), check=data)
    assert error(model, harmed, data) <= 1.01 * error(model, fast, data)


def test_a_repair_of_seconds_ends_with_them(enhanced, monkeypatch):
    """A step takes one second by this clock; the rates are those of steps."""
    model, data, fast = enhanced
    stream = Stream(batches=5)
    monkeypatch.setattr(repair_module.time, "perf_counter", lambda: float(stream.taken))
    rates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1])
    gdws.repair(model, fast, stream, gdws.Repair(steps=3, seconds=40), check=data[:1])
    assert stream.taken == 40
    timed = rates.copy()
    rates.clear()
    gdws.repair(model, fast, Stream(batches=5), gdws.Repair(steps=40), check=data[:1])
    assert timed[1:] == pytest.approx(rates[1:])
    assert rates[0] < rates[2] > rates[20] > rates[39]


@pytest.mark.parametrize("attack", [None, PGD(steps=2)])
def test_a_classifier_is_repaired_clean_or_attacked(attack):
    torch.manual_seed(0)
    model, images = network(), torch.rand(64, 3, 8, 8)
    fast = gdws.compress(model, [images], gdws.Macs(0.4), METHOD)
    better = gdws.repair(model, fast, [images], gdws.Repair(steps=40, attack=attack))

    def divergence(other):
        with torch.no_grad():
            p, q = model(images).log_softmax(1), other(images).log_softmax(1)
        return float((p.exp() * (p - q)).sum(1).mean())

    assert divergence(better) < divergence(fast)


class FirstChannel(gdws.objectives.Own):
    """Nothing else counts."""

    def __init__(self):
        super().__init__(self.drawn, lambda output, other: (output - other)[:, 0].square().flatten(1).mean(1))

    @staticmethod
    def drawn(output, generator):
        return torch.randn(output.shape, generator=generator) * torch.tensor([1.0, 0, 0]).view(-1, 1, 1)

    def loss(self, before, after):
        return (before[0] - after[0])[:, 0].square().mean()


def test_an_objective_of_ones_own_is_what_is_repaired(enhanced):
    model, data, _ = enhanced
    own, unseen = FirstChannel(), gdws.Arguments(torch.rand(50, 3, 12, 12), torch.ones(50))
    fast = gdws.compress(model, data, gdws.Macs(0.35), dataclasses.replace(METHOD, objective=own))
    settings = gdws.Repair(steps=150, activations=0)
    with pytest.raises(GdwsError, match="the objective is 'own': expected"):  # a plan has its name alone
        gdws.repair(model, fast, data, settings)
    given, otherwise = (gdws.repair(model, fast, data, settings, objective=each) for each in (own, "values"))

    def distance(network):
        with torch.no_grad():
            return float(own.distances(unseen.call(model), unseen.call(network)).mean())

    assert distance(given) < 0.8 * min(distance(otherwise), distance(fast))


def test_decisions_known_by_heart_are_softened():
    """At a temperature of one the divergence of certain decisions has hardly a slope: the error of the logits falls to 0.8."""
    torch.manual_seed(0)
    model, images = network(), torch.rand(64, 3, 8, 8)
    model[-1].weight.data *= 1000
    fast = gdws.compress(model, [images], gdws.Macs(0.4), "uniform")
    better = gdws.repair(model, fast, [images], gdws.Repair(steps=60, activations=0))
    with torch.no_grad():
        errors = [float((model(images) - other(images)).square().mean()) for other in (fast, better)]
    assert errors[1] < 0.6 * errors[0]


def test_balanced_factors_are_the_same_function(enhanced):
    _, data, fast = enhanced
    changed = copy.deepcopy(fast)
    scales = balance(changed)
    assert error(fast, changed, data) < 1e-10
    unbalance(changed, scales)
    for value, expected in zip(changed.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model, data, fast: gdws.repair(model, fast, [data[0][:1]]), "there is 1 sample: expected at least 2"),
        (lambda model, data, fast: gdws.repair(nn.Conv2d(3, 3, 3), fast, [torch.rand(4, 3, 9, 9)]), "has no layer 'body'"),
        (lambda *_: gdws.Repair(steps=0), "expected at least one step"),
        (lambda *_: gdws.Repair(rate=float("nan")), "expected a rate from 0 to 1"),
        (lambda *_: gdws.Repair(seconds=float("nan")), "expected a finite number of seconds above 0"),
        (
            lambda model, data, fast: gdws.repair(model, fast, iter(data[1:]), gdws.Repair(steps=4), check=data[:1]),
            "images to learn from have ended",
        ),
        (
            lambda model, data, fast: gdws.repair(model, fast, data, gdws.Repair(attack=PGD())),
            "the objective 'values' got an attack to repair under",
        ),
    ],
)
def test_wrong_things_get_one_sentence(enhanced, call, words):
    with pytest.raises(GdwsError, match=words):
        call(*enhanced)


def test_compress_repairs_where_it_is_asked_to():
    torch.manual_seed(0)
    model, data = Enhancer().eval(), [gdws.Arguments(torch.rand(16, 3, 12, 12), torch.rand(16) + 0.5) for _ in range(4)]
    plain = gdws.compress(model, data, gdws.Macs(0.35), METHOD)
    repaired = gdws.compress(model, data, gdws.Macs(0.35), dataclasses.replace(METHOD, repair=gdws.Repair(steps=100)))
    assert gdws.plan_of(repaired).fidelity.distance < gdws.plan_of(plain).fidelity.distance


def test_a_repair_is_no_text():
    """Bug: it was not looked at before compress came to it."""
    with pytest.raises(GdwsError, match="repair is 'x': expected a"):
        gdws.Calibrated(repair="x")
