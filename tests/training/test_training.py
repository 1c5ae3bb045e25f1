import copy
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import asdict
from unittest import mock

import numpy as np
import pytest
import torch
from helpers import ATTACK, SMOOTH, network, recipe, training_images
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

import gdws
from gdws import data, models
from gdws.attacks import MSD, PGD
from gdws.core.distributed import SINGLE_PROCESS, ProcessGroup
from gdws.core.errors import GdwsError
from gdws.core.reading.weights import read_weights
from gdws.data import Dataset
from gdws.structures import STRUCTURES
from gdws.structures.balance import balance
from gdws.structures.layers import FactoredConv2d
from gdws.training import runs
from gdws.training.augment import crop_and_flip
from gdws.training.batchnorm import share_batchnorm_statistics
from gdws.training.learner import Learner
from gdws.training.loop import Trained, best_epoch, chosen_epoch, train, was_harmed
from gdws.training.losses import Robust, Taught, Trades, divergence
from gdws.training.recipes import RECIPES
from gdws.training.runs import Run
from gdws.training.schedules import SCHEDULES, OneCycle, Steps
from gdws.training.tuning import trainable_copy, tune


class Two(nn.Module):
    """As torchvision's Inception: logits in eval mode, a pair in train mode."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        logits = self.network(x)
        return (logits, logits) if self.training else logits


class Wordless(nn.Module):
    """Fails in train mode, and does not say why."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        if self.training:
            raise ValueError
        return self.network(x)


def single():
    """A network whose last BatchNorm sees one value of each channel for an image."""
    return nn.Sequential(*network()[:6], nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(16), nn.Flatten()).eval()


def traced():
    """A network whose parameters are no leaves for autograd."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(network(), training_images().images[:1].float())


def without_times(history):
    return [{name: value for name, value in line.items() if "second" not in name} for line in history]


# ------------------------------------------------------------------------------------------------ the parts


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(4, 9), st.integers(4, 9), st.integers(0, 3), st.booleans(), st.integers(0, 999))
def test_every_augmented_image_is_a_crop_of_the_padded_one(count, height, width, padding, flip, seed):
    batch = torch.randint(1, 256, (count, 2, height, width), dtype=torch.uint8)
    found = crop_and_flip(batch, torch.Generator().manual_seed(seed), padding, flip)
    assert found.shape == batch.shape
    for image, result in zip(F.pad(batch, (padding,) * 4), found, strict=True):
        crops = [image[:, y : y + height, x : x + width] for y in range(2 * padding + 1) for x in range(2 * padding + 1)]
        mirrored = [crop.flip(2) for crop in crops] if flip else []
        assert any(torch.equal(crop, result) for crop in crops + mirrored)


def test_augmentation_takes_every_place_and_side():
    pixel = torch.zeros(2000, 1, 5, 5, dtype=torch.uint8)
    pixel[:, :, 2, 2] = 1
    found = crop_and_flip(pixel, torch.Generator().manual_seed(0), padding=2).flatten(1)
    assert bool((found.sum(1) == 1).all())
    places = torch.bincount(found.argmax(1), minlength=25)
    assert int(places.min()) > 40  # 80 are expected of each
    sides = torch.zeros(2000, 1, 1, 2, dtype=torch.uint8)
    sides[..., 0] = 1
    left = crop_and_flip(sides, torch.Generator().manual_seed(0), padding=0)[..., 0].float().mean()
    assert abs(float(left) - 0.5) < 0.05


def test_learning_rates_against_the_paper_and_by_hand():
    paper = Steps(0.1, 200)
    assert [round(paper.rate(epoch), 6) for epoch in (0, 99.9, 100, 149.9, 150, 199)] == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    cycle = OneCycle(0.2, 40)
    assert [round(cycle.rate(epoch), 6) for epoch in (0, 5, 10, 25, 40)] == [0.02, 0.11, 0.2, 0.1, 0.0]
    retrain = SCHEDULES["steps-early"](0.01, 200)
    assert [round(retrain.rate(epoch), 6) for epoch in (0, 79, 80, 149, 150)] == [0.01, 0.01, 0.001, 0.001, 0.0001]
    period = SCHEDULES["thirds"](0.01, 20)
    assert [round(period.rate(epoch), 6) for epoch in (0, 6, 7, 13, 14)] == [0.01, 0.01, 0.001, 0.001, 0.0001]
    union = SCHEDULES["pieces"](0.1, 50)
    assert [round(union.rate(epoch), 6) for epoch in (0, 10, 20, 30, 40, 45, 50)] == [0, 0.05, 0.1, 0.0525, 0.005, 0.0025, 0]
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for epoch in range(21):
        assert SCHEDULES["cosine"](0.1, 20).rate(epoch) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        theirs.step()


def test_the_divergence_is_the_definition():
    p, q = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    expected = (p.softmax(1) * (p.softmax(1).log() - q.softmax(1).log())).sum(1)
    assert torch.allclose(divergence(p, q), expected)


def test_trades_is_attacked_along_the_gradient_of_its_divergence():
    model, (x, y) = network().double(), next(iter(training_images(8)))
    x, near = x.double(), (x + 0.02).clamp(0, 1).double().requires_grad_(True)
    loss = Trades(6.0)
    from gdws.attacks.gradient_ascent import loss_gradient

    found = loss_gradient(model, near, loss.goal(model, x, y))[1]
    (expected,) = torch.autograd.grad(divergence(model(x).detach(), model(near)).sum(), near)
    assert torch.allclose(found, expected)
    losses, logits = loss.losses(model, near, x, y)
    by_hand = F.cross_entropy(model(x), y, reduction="none") + 6 * divergence(model(x), model(near))
    assert torch.allclose(losses.double(), by_hand, atol=1e-5)
    assert torch.allclose(logits.double(), model(near), atol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_records(name):
    assert json.loads(json.dumps(RECIPES[name].record()))["attack"]["kind"] == ("MSD" if name == "union" else "PGD")


def test_the_radius_grows_to_its_own():
    assert [recipe(epochs=5, warmup=3).attack_in(epoch).eps for epoch in range(5)] == pytest.approx(
        [eps / 255 for eps in (1, 2, 3, 4, 4)]
    )
    half = recipe(warmup=1, attack=MSD()).attack_in(0)
    assert (half.eps, half.step) == (pytest.approx((0.015, 0.25, 6)), pytest.approx((0.0015, 0.025, 0.5)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"rate": -1.0}, "rate=-1.0"),
        ({"loss": "hinge"}, "one of robust, trades"),
        ({"keep": "first"}, "one of best, last"),
        ({"keep": "last", "patience": 2}, "patience with keep='best' only"),
        ({"schedule": "flat"}, "one of one-cycle, steps"),
        ({"precision": "int4"}, "one of float32, bfloat16"),
        ({"average": 1.0}, "average=1.0"),
        ({"warmup": -1}, "warmup=-1"),
        ({"warmup": 3}, "warmup=3 of 3 epochs"),
        ({"attack": PGD(early_exit=True)}, "early exit"),
    ],
)
def test_bad_recipes(changes, words):
    with pytest.raises(GdwsError, match=words):
        recipe(**changes)


# ------------------------------------------------------------------------------------------------ a step


@pytest.mark.parametrize(("warmup", "nesterov"), [(0, True), (2, True), (0, False)])
def test_a_step_is_what_plain_pytorch_computes(warmup, nesterov):
    """Attack in eval mode, SGD in train mode, an average: against the same written out with autograd and SGD."""
    model, data, plan = network(), training_images(40), recipe(batch=40, warmup=warmup, nesterov=nesterov)
    learner = Learner(copy.deepcopy(model), data, plan, Robust(), SINGLE_PROCESS)
    optimizer = torch.optim.SGD(model.parameters(), 1, momentum=0.9, nesterov=nesterov, weight_decay=5e-4)
    averaged = copy.deepcopy(model)
    for epoch in range(3):
        x, start, labels = learner.drawn(epoch, 0)
        rate, found = learner.step(epoch, 0)
        attacked, share = start, min(1, (epoch + 1) / (warmup + 1))
        for _ in range(2):
            attacked = attacked.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(F.cross_entropy(model.eval()(attacked), labels), attacked)
            moved = (attacked + share * ATTACK.step * gradient.sign()).clamp(x - share * ATTACK.eps, x + share * ATTACK.eps)
            attacked = moved.clamp(0, 1).detach()
        model.train()
        logits = model(attacked)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert found[0] / 40 == pytest.approx(loss.item(), rel=1e-5)
        assert int(found[1]) == int((logits.argmax(1) == labels).sum())
        for mine, theirs in zip(averaged.state_dict().values(), model.state_dict().values(), strict=True):
            mine.copy_(mine + (theirs - mine) * 10 / (10 + epoch) if mine.is_floating_point() else theirs)
    for name, value in learner.model.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-6), name
        assert torch.allclose(learner.averaged.state_dict()[name], averaged.state_dict()[name], atol=1e-6), name


def test_a_loss_constrains_the_network_after_every_step():
    """And the average is of networks that meet the constraint."""

    class Positive(Robust):
        def constrain(self, model):
            model[0].weight.clamp_(min=0)

    learner = Learner(network(), training_images(40), recipe(average=0.9), Positive(), SINGLE_PROCESS)
    learner.step(0, 0)
    learner.step(0, 1)
    for model in (learner.model, learner.averaged):
        assert float(model[0].weight.detach().min()) == 0
        assert float(model[3].weight.detach().min()) < 0


@pytest.mark.parametrize("affine", [True, False])
def test_batchnorm_over_several_processes_is_batchnorm_of_all_their_images(monkeypatch, affine):
    """Two processes of which the other has the same images: the same statistics, gradients and outputs as of both together."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(2))
    x = torch.randn(6, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float().requires_grad_(True)
    expected = nn.BatchNorm2d(4, affine=affine)
    joint = nn.Sequential(copy.deepcopy(expected))
    share_batchnorm_statistics(joint)
    both = torch.cat([x, x])
    weights = torch.randn(6, 4, 5, 5, generator=torch.Generator().manual_seed(1))
    (there,) = torch.autograd.grad((expected(both) * torch.cat([weights, weights])).sum(), x)
    (here,) = torch.autograd.grad((joint(x) * weights).sum(), x)
    assert torch.allclose(joint[0].running_mean, expected.running_mean, atol=1e-6)
    assert torch.allclose(joint[0].running_var, expected.running_var, atol=1e-5)
    assert torch.allclose(2 * here, there, atol=1e-5)
    assert torch.allclose(joint.eval()(x), expected.eval()(x), atol=1e-5)


def test_no_random_number_comes_from_the_global_generator(tmp_path):
    before = torch.get_rng_state()
    train(network(), training_images(80), recipe(epochs=1), tmp_path)
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_is_part_of_the_seed_and_of_nothing_else(tmp_path):
    """Bug: its masks came from the global generator, so that no training could be repeated or continued."""

    def droppy():
        return nn.Sequential(*network()[:-1], nn.Dropout(0.5), network()[-1]).eval()

    torch.manual_seed(1)
    one = train(droppy(), training_images(80), recipe(epochs=2), tmp_path / "one")
    torch.manual_seed(2)
    two = train(droppy(), training_images(80), recipe(epochs=2), tmp_path / "two")
    assert without_times(one.history) == without_times(two.history)
    other = train(droppy(), training_images(80), recipe(epochs=2, seed=1), tmp_path / "other")
    assert other.history[0]["loss"] != one.history[0]["loss"]


def test_weights_that_two_modules_share_are_averaged_once():
    """Bug: they moved twice a step."""
    model = network()
    tied = Two()
    tied.network = tied.again = copy.deepcopy(model)
    tied.forward = lambda x: tied.network(x)
    learners = [Learner(net, training_images(40), recipe(average=0.5), Robust(), SINGLE_PROCESS) for net in (model, tied)]
    for learner in learners:
        for step in range(12):
            learner.step(step, 0)
    one, two = learners[0].averaged.state_dict(), learners[1].averaged.state_dict()
    assert all(torch.allclose(value, two[f"network.{name}"]) for name, value in one.items())


# ------------------------------------------------------------------------------------------------ a training


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "trades"},
        {"attack": MSD((4 / 255, 0.1, 1.0), (2 / 255, 0.05, 0.5), 2)},
        {"schedule": "steps", "average": 0.0},
        {"precision": "bfloat16"},
    ],
)
def test_training_learns(tmp_path, changes):
    trained = train(network(), training_images(), recipe(epochs=8, **changes), tmp_path)
    assert trained.best["natural"] >= 80
    assert trained.best["robust"] >= 60
    assert ("robust_rounded" in trained.best) == ("precision" in changes)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == trained.history
    assert [line["epoch"] for line in lines] == list(range(1, 9))
    assert not trained.model.training
    kept = read_weights(tmp_path / "model.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in trained.model.state_dict().items())


def test_tensorboard_gets_the_log_where_it_is_installed(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    trained = train(network(), training_images(80), recipe(epochs=2), tmp_path)
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [event.value for event in found.Scalars("robust")] == pytest.approx([line["robust"] for line in trained.history])


def test_tensorboard_is_closed_with_the_training(tmp_path, monkeypatch):
    boards = []
    monkeypatch.setattr(runs, "_board", lambda folder: boards.append(mock.Mock()) or boards[-1])
    train(network(), training_images(80), recipe(epochs=1), tmp_path)
    boards[0].close.assert_called_once_with()


def test_the_best_epoch_is_kept_and_patience_ends(tmp_path, monkeypatch):
    """Validation is told what to find; the weights kept must be those of the epoch that it liked best."""
    found = iter([50.0, 70.0, 60.0, 65.0, 10.0, 10.0])
    seen = []

    def judged(learner, held):
        seen.append(copy.deepcopy(learner.averaged.state_dict()))
        return {"natural": 90.0, "robust": next(found)}

    monkeypatch.setattr("gdws.training.loop.validate", judged)
    trained = train(network(), training_images(80), recipe(epochs=6, patience=2), tmp_path)
    assert len(trained.history) == 4
    assert trained.best["epoch"] == 2
    assert all(torch.equal(value, seen[1][name]) for name, value in trained.model.state_dict().items())


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ([(90, 50)], 1),
        ([(90, 50), (80, 60), (85, 40)], 2),
        ([(80, 53.1), (81, 52.8), (82, 53.0)], 3),  # all alike under attack: the most natural
        ([(80, 53.0), (81, 52.6), (82, 52.2), (83, 51.8)], 2),  # slow decay does not carry the best away
        ([(80, 52.6), (79, 53.0), (78, 53.2)], 3),  # the first is no longer near the highest
        ([(80, 50.0), (80, 50.2), (80, 50.1)], 3),  # all alike: the latest
        ([(86.9, 59.3), (86.4, 59.3), (86.6, 59.0)], 3),
        ([(80.0, 50.0), (79.6, 50.0), (79.2, 50.0), (78.8, 50.0)], 2),  # slow decay of the natural accuracy does not either
        ([(80.0, 50.0), (79.6, 50.8), (79.2, 50.8)], 3),  # who is no longer near takes its natural accuracy along
    ],
)
def test_the_best_epoch(accuracies, best):
    history = [{"epoch": number, "natural": n, "robust": r} for number, (n, r) in enumerate(accuracies, start=1)]
    assert best_epoch(history)["epoch"] == best
    assert chosen_epoch(history, "last") is history[-1]


@pytest.mark.parametrize(
    ("before", "last", "held", "expected"),
    [
        ((86.0, 59.4), (86.0, 58.1), 1000, False),  # a base that knows these images: on others this tuning gained a point
        ((86.0, 59.4), (86.0, 54.9), 1000, True),  # by more than 4.4 points
        ((86.0, 59.4), (82.6, 59.4), 1000, True),  # by more than 3.2
        ((86.0, 59.4), (82.6, 54.9), 100, False),
        ((100.0, 20.0), (99.8, 60.0), 1000, False),  # two images of a thousand
        ((100.0, 20.0), (99.0, 60.0), 1000, True),
    ],
)
def test_harm_is_more_than_chance(before, last, held, expected):
    history = [{"epoch": number, "natural": n, "robust": r} for number, (n, r) in enumerate((before, (10.0, 10.0), last))]
    assert was_harmed(history, held) == expected
    assert not was_harmed([{**history[0], "epoch": 1}, history[-1]], held)  # nothing is known of the time before


def test_held_images_are_not_trained_on(tmp_path, monkeypatch):
    """Bug: they changed with the seed, and a tuned network's were among those that its base had been trained on."""
    data = training_images(80)
    drawn = []
    plain = Learner.__init__
    monkeypatch.setattr(
        Learner,
        "__init__",
        lambda self, model, rest, *others: (drawn.append(rest), plain(self, model, rest, *others))[1],
    )
    train(network(), data, recipe(epochs=1, held=10), tmp_path)
    rest = {image.numpy().tobytes() for image in drawn[0].images}
    assert len(rest) == 70
    assert rest < {image.numpy().tobytes() for image in data.images}
    train(network(), data, recipe(epochs=1, held=10, seed=1), tmp_path / "again")
    assert torch.equal(drawn[0].images, drawn[1].images)


RUN = """
import sys
from pathlib import Path
from helpers import SMOOTH, network, recipe, training_images
from gdws.core.distributed import join_processes
from gdws.training.loop import train
import torch
torch.set_num_threads(1)
with join_processes() as processes:
    plan = recipe(epochs=int(sys.argv[2]), seed=3, attack=SMOOTH)
    model = network(seed=processes.rank)  # the first process's weights count
    train(model, training_images(), plan, Path(sys.argv[1]), resume=True, processes=processes, checkpoint_seconds=0)
"""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_killed_training_goes_on_as_if_nothing_had_been(tmp_path):
    whole = train(network(), training_images(), recipe(epochs=20, seed=3, attack=SMOOTH), tmp_path / "whole")
    cut = tmp_path / "cut"
    process = subprocess.Popen([sys.executable, "-c", RUN, str(cut), "20"], env=ENVIRONMENT)
    deadline = time.monotonic() + 120
    while not (cut / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len((cut / "log.jsonl").read_text().splitlines())
    assert 1 <= done < 20, "it was killed too late to prove anything"
    resumed = train(network(), training_images(), recipe(epochs=20, seed=3, attack=SMOOTH), cut, resume=True)
    assert without_times(resumed.history) == without_times(whole.history)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_the_best_epoch_of_a_cut_training_is_not_taken_for_that_of_its_continuation(tmp_path, monkeypatch):
    """Bug: epochs that are done again on a GPU differ a little; the file could hold weights that the log does not speak of."""
    found = iter([50.0, 70.0, 60.0])
    monkeypatch.setattr("gdws.training.loop.validate", lambda learner, held: {"natural": 90.0, "robust": next(found)})
    keep, kept = Run.keep, []

    def only_the_first(self, *state):
        kept.append(1)
        if len(kept) == 1:
            keep(self, *state)

    monkeypatch.setattr(Run, "keep", only_the_first)  # as if it died after its second epoch
    first = train(network(), training_images(80), recipe(epochs=3), tmp_path, checkpoint_seconds=0)
    assert first.best["epoch"] == 2
    found = iter([40.0, 45.0])
    again = train(network(), training_images(80), recipe(epochs=3), tmp_path, resume=True)
    assert again.best["epoch"] == 1
    weights = read_weights(tmp_path / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in again.model.state_dict().items())
    assert not torch.equal(first.model[0].weight, again.model[0].weight)


def test_two_processes_train_as_one(tmp_path):
    """BatchNorm included: its batch is that of both."""
    alone = train(network(), training_images(), recipe(seed=3, attack=SMOOTH), tmp_path / "one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = tmp_path / "script.py"
    script.write_text(RUN)
    done = subprocess.run(
        [*torchrun, script, tmp_path / "two", "3"], env=ENVIRONMENT, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "two" / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for one, two in zip(alone.history, lines, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["natural"] == pytest.approx(one["natural"], abs=2.6)  # one image of 40
    kept = read_weights(tmp_path / "two" / "model.safetensors")
    for name, value in alone.model.state_dict().items():
        assert torch.allclose(value, kept[name], rtol=1e-3, atol=1e-4), name


# ------------------------------------------------------------------------------------------------ bad input


def test_another_training_is_not_overwritten_and_not_continued_with_other_settings(tmp_path):
    train(network(), training_images(80), recipe(epochs=1), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(GdwsError, match="holds a training"):
        train(network(), training_images(80), recipe(epochs=1), tmp_path)
    with pytest.raises(GdwsError, match="epochs 1 and not 2"):
        train(network(), training_images(80), recipe(epochs=2), tmp_path, resume=True)
    with pytest.raises(GdwsError, match="another data"):
        train(network(), training_images(80, seed=1), recipe(epochs=1), tmp_path, resume=True)
    with pytest.raises(GdwsError, match="another network"):
        train(nn.Sequential(network(), nn.Linear(4, 4)), training_images(80), recipe(epochs=1), tmp_path, resume=True)
    with pytest.raises(GdwsError, match="another objective"):
        train(network(), training_images(80), recipe(epochs=1), tmp_path, objective=Taught(network()), resume=True)
    other = network()
    other[0].register_forward_hook(lambda module, inputs, output: output - 0.1)
    with pytest.raises(GdwsError, match="another code or constants"):
        train(other, training_images(80), recipe(epochs=1), tmp_path, resume=True)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert train(network(), training_images(80), recipe(epochs=1), tmp_path, resume=True).best["epoch"] == 1


@pytest.mark.parametrize("name", ["gdws.json", "model", "model.safetensors"])
def test_a_folder_of_something_else_is_not_trained_in(tmp_path, name):
    """Bug: the network to be tuned was overwritten where it was also the place for the result."""
    (tmp_path / name).write_text("mine")
    for resume in (False, True):
        with pytest.raises(GdwsError, match=f"holds {name}"):
            train(network(), training_images(80), recipe(epochs=1), tmp_path, resume=resume)
    assert (tmp_path / name).read_text() == "mine"


def test_two_trainings_into_one_folder(tmp_path):
    """Bug: both ended well, and one of them was lost."""
    failures = []

    def once():
        try:
            train(network(), training_images(80), recipe(epochs=2), tmp_path)
        except GdwsError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=once) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (failure,) = failures
    assert f"another process trains in {tmp_path}" in failure or "holds a training" in failure
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / ".lock").exists()


def test_a_training_into_a_link_is_refused(tmp_path):
    (tmp_path / "thesis").write_text("years")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "log.jsonl").symlink_to(tmp_path / "thesis")
    with pytest.raises(GdwsError, match="symbolic link"):
        train(network(), training_images(80), recipe(epochs=1), tmp_path / "out", resume=True)
    assert (tmp_path / "thesis").read_text() == "years"


def test_a_training_cut_before_its_first_checkpoint_begins_anew(tmp_path):
    """Bug: its log was continued."""
    (tmp_path / "log.jsonl").write_text("{}\n")
    with pytest.raises(GdwsError, match="holds a training"):
        train(network(), training_images(80), recipe(epochs=1), tmp_path)
    train(network(), training_images(80), recipe(epochs=1), tmp_path, resume=True)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_a_truncated_checkpoint_is_refused(tmp_path):
    train(network(), training_images(80), recipe(epochs=1), tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(GdwsError, match=r"checkpoint.safetensors cannot be read"):
        train(network(), training_images(80), recipe(epochs=1), tmp_path, resume=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """What a whole training wrote: tensors, and what stands beside them."""
    folder = tmp_path_factory.mktemp("whole")
    train(network(), training_images(80), recipe(epochs=1), folder)
    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["gdws"])  # noqa: SIM118


def first_line(record):
    return record["state"]["history"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda tensors, record: record.update(format="gdws training 3"),
            "format is 'gdws training 3': expected 'gdws",
        ),
        (lambda tensors, record: record.update(state=[]), r"state is \[\]: expected an object with history"),
        (lambda tensors, record: record["identity"].update(recipe=None), "identity.recipe is None: expected an object"),
        (
            lambda tensors, record: first_line(record).update(epoch="x"),
            r"history\[0\].epoch is 'x': expected a whole",
        ),
        (lambda tensors, record: first_line(record).pop("robust"), r"state.history\[0\].robust is missing: expected a number"),
        (
            lambda tensors, record: first_line(record).update(loss=[]),
            r"history\[0\]\['loss'\] is \[\]: expected a",
        ),
        (lambda tensors, record: tensors.pop("momentum.0.weight"), "has another momentum.0.weight than this training"),
        (lambda tensors, record: tensors.update({"best.0.bias": torch.zeros(3)}), "has another best.0.bias than"),
        (lambda tensors, record: tensors.update({"best.0.bias": torch.zeros(16, dtype=torch.complex64)}), "complex64"),
    ],
)
def test_a_checkpoint_of_another_form_is_refused(checkpoint, tmp_path, change, words):
    tensors, record = copy.deepcopy(checkpoint)
    change(tensors, record)
    save_file(tensors, tmp_path / "checkpoint.safetensors", {"gdws": json.dumps(record)})
    with pytest.raises(GdwsError, match=words):
        train(network(), training_images(80), recipe(epochs=1), tmp_path, resume=True)


def test_a_checkpoint_from_before_there_was_plain_momentum_is_continued(checkpoint, tmp_path):
    tensors, record = copy.deepcopy(checkpoint)
    del record["identity"]["recipe"]["nesterov"]
    save_file(tensors, tmp_path / "checkpoint.safetensors", {"gdws": json.dumps(record)})
    train(network(), training_images(80), recipe(epochs=1), tmp_path, resume=True)
    with pytest.raises(GdwsError, match="nesterov True and not False"):
        train(network(), training_images(80), recipe(epochs=1, nesterov=False), tmp_path, resume=True)


@pytest.mark.parametrize(("text", "words"), [("[" * 10**5, "nested"), ("", "expected JSON"), ("{}", "format is missing")])
def test_a_checkpoint_without_its_record_is_refused(checkpoint, tmp_path, text, words):
    save_file(checkpoint[0], tmp_path / "checkpoint.safetensors", {"gdws": text})
    with pytest.raises(GdwsError, match=f"is not a checkpoint of gdws train: .*{words}"):
        train(network(), training_images(80), recipe(epochs=1), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("model", "data", "changes", "words"),
    [
        (network, lambda: training_images(4), {}, "4 images: expected at least 5"),
        (lambda: network().half(), training_images, {}, "expected float32"),
        (network, lambda: Dataset("five", training_images(80).images, torch.arange(80) % 5), {}, "4 classes"),
        (lambda: nn.Sequential(network(), nn.Softmax(1)), training_images, {}, "probabilities"),
        (network, training_images, {"rate": 1e30}, "expected a rate below"),
        (Two, training_images, {}, "returns a tuple in train mode"),
        (single, training_images, {"batch": 1}, "fails in train mode on 1 images"),
        (Wordless, training_images, {}, "fails in train mode on 2 images: ValueError"),
        (traced, training_images, {}, "is computed from other tensors"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, model, data, changes, words):
    with pytest.raises(GdwsError, match=words):
        train(model(), data(), recipe(**changes), tmp_path / "run")


def test_batches_that_processes_cannot_share():
    with pytest.raises(GdwsError, match="20 images for 3 processes"):
        Learner(network(), training_images(), recipe(), Robust(), ProcessGroup(0, 3))


# ------------------------------------------------------------------------------------------------ tuning


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    base = train(network(), training_images(400), recipe(epochs=6), tmp_path_factory.mktemp("base")).model
    method = gdws.Calibrated(structures=("gdws",), attack=PGD(steps=1))
    return base, gdws.compress(base, training_images(80), gdws.Macs(0.2), method)


@pytest.mark.parametrize("taught", [False, True])
def test_tuning_moves_factors_and_norms_and_nothing_else(tmp_path, compressed, taught):
    base, small = compressed
    tuned = tune(small, training_images(400), recipe(epochs=3, rate=0.02), tmp_path, teacher=base if taught else None)
    assert isinstance(tuned, Trained)
    factored = {name for name, module in tuned.model.named_modules() if isinstance(module, FactoredConv2d)}
    assert factored == {name for name, module in small.named_modules() if isinstance(module, FactoredConv2d)}
    for name, value in small.named_parameters():
        owner = small.get_submodule(name.rpartition(".")[0])
        inside = any(name.startswith(f"{layer}.") for layer in factored)
        moved = not torch.equal(value, tuned.model.get_parameter(name))
        assert moved == (inside or isinstance(owner, nn.BatchNorm2d)), name
        assert tuned.model.get_parameter(name).requires_grad
    for name, value in small.named_buffers():
        moved = not torch.equal(value, tuned.model.get_buffer(name))
        assert moved == (name.rpartition(".")[2] != "channels"), name
    assert tuned.best["robust"] >= 60
    assert gdws.plan_of(tuned.model) == gdws.plan_of(small) is not None
    gdws.save(tuned.model, tmp_path / "model", export=False)
    x = next(iter(training_images(8)))[0]
    assert torch.equal(gdws.load(tmp_path / "model", base)(x), tuned.model(x))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["gdws", "vertical", "horizontal", "project"])
def test_balanced_factors_make_the_same_layer(kind, groups):
    """The filters of a compressed layer are long and their mixing short, or the reverse; one is not used at all."""
    generator = torch.Generator().manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, padding=1, groups=groups)
    kept = (1, 2, 1, 2) if kind == "gdws" else (2,)
    layer = STRUCTURES[kind].build_empty(conv, kept)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    layer.filters.data.mul_(torch.logspace(-2, 2, len(layer.filters)).view(-1, 1, 1, 1))
    layer.mixing.data[:, 0] = 0
    x, model = torch.rand(2, 4, 8, 8, generator=generator), nn.Sequential(layer)
    before, filters = layer(x), layer.filters.detach().clone()
    scales = balance(model)["0"]
    assert torch.allclose(layer(x), before, rtol=1e-4, atol=1e-4)
    rows = layer.mixing.detach().view(groups, 6 // groups, -1, layer.mixing[0, 0].numel())
    mixed = rows.square().sum((1, 3)).sqrt().flatten()
    lengths = layer.filters.detach().flatten(1).norm(dim=1)
    assert torch.allclose(lengths[mixed > 0], mixed[mixed > 0], rtol=1e-4)
    assert int((mixed == 0).sum()) == groups
    layer.rescale(1 / scales)
    assert torch.allclose(layer.filters, filters, rtol=1e-5)


def test_a_taught_network_comes_closer_to_its_teacher(tmp_path, compressed):
    """From factors that were spoilt."""
    base, small = compressed
    small, generator = copy.deepcopy(small), torch.Generator().manual_seed(0)
    for module in small.modules():
        if isinstance(module, FactoredConv2d):
            for parameter in module.parameters():
                parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    x = training_images(200, seed=5).images.float() / 255
    tuned = tune(small, training_images(400), recipe(epochs=4, rate=0.02), tmp_path, teacher=base).model
    with torch.no_grad():
        before, after = (float(divergence(base(x), model(x)).mean()) for model in (small, tuned))
    assert after < before


@pytest.mark.parametrize(
    ("keep", "robust", "epoch"),
    [
        ("best", (60, 50, 55), 0),
        ("best", (60, 59.8, 50), 1),
        ("best", (60, 50, 62), 2),
        ("last", (60, 59, 10), 2),
        ("last", (60, 30, 62), 2),
    ],
)
def test_the_epoch_that_a_tuning_keeps(tmp_path, compressed, monkeypatch, keep, robust, epoch):
    """Validation is told what to find, of the network as it was first; a tuning that is done says the same again."""
    small, x = compressed[1], next(iter(training_images(8)))[0]
    found = iter(robust)
    monkeypatch.setattr("gdws.training.loop.validate", lambda *_: {"natural": 90.0, "robust": next(found), "classes": 4})
    tuned = tune(small, training_images(80), recipe(epochs=2, keep=keep), tmp_path)
    assert [line["epoch"] for line in tuned.history] == [0, 1, 2]
    assert tuned.best["epoch"] == epoch
    assert tuned.harmed == (robust[-1] == 10)
    assert torch.allclose(tuned.model(x), small(x), atol=1e-5) == (epoch == 0)
    again = tune(small, training_images(80), recipe(epochs=2, keep=keep), tmp_path, resume=True)
    assert again.history == tuned.history


def test_a_network_with_an_empty_layer_is_tuned(tmp_path):
    """Bug: kernels that are not there have no gradient. Hard plans make such layers."""
    base = network()
    small = gdws.compress(base, training_images(40), gdws.Macs(0.001), "uniform")
    assert small[3].channels.numel() == 0
    tune(small, training_images(80), recipe(epochs=1), tmp_path)


def test_a_teacher_of_other_classes_is_refused(tmp_path, compressed):
    with pytest.raises(GdwsError, match="has 5 classes: expected the 4"):
        tune(compressed[1], training_images(80), recipe(), tmp_path, teacher=nn.Sequential(network(), nn.Linear(4, 5)))


def test_a_dense_network_is_not_tuned():
    with pytest.raises(GdwsError, match="no factored layer"):
        trainable_copy(network())


def test_the_teacher_is_not_trained():
    teacher = network(1)
    losses, _ = Taught(teacher).losses(network(), *[torch.rand(4, 3, 8, 8)] * 2, torch.zeros(4, dtype=torch.long))
    losses.sum().backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_taught_network_wants_what_its_teacher_says_and_a_quarter_of_the_label():
    teacher, model, x, y = network(1), network(2), torch.rand(4, 3, 8, 8), torch.arange(4)
    with torch.no_grad():
        losses, logits = Taught(teacher).losses(model, x, torch.zeros_like(x), y)
        goal = 0.75 * teacher(x).double().softmax(1) + 0.25 * torch.eye(4).double()
        expected = (goal * (goal / logits.double().softmax(1)).log()).sum(1)
        assert torch.allclose(losses.double(), expected, rtol=1e-4)
        assert torch.allclose(Taught(teacher, 0).losses(teacher, x, x, y)[0], torch.zeros(4), atol=1e-6)


# ------------------------------------------------------------------------------------------------ the command line


@pytest.fixture
def files(tmp_path):
    """A network as code, and its images as a file, in the folder where `run` works."""
    (tmp_path / "net.py").write_text("from helpers import network\n")
    data = training_images(100)
    np.savez(tmp_path / "data.npz", images=data.images.permute(0, 2, 3, 1).numpy(), labels=data.labels.numpy())
    return tmp_path


SHORT = ["--data", "npz:data.npz", "--epochs", 2, "--batch", 20, "--steps", 1, "--rate", 0.05]


def test_train_and_go_on_from_the_command_line(run, files):
    status, text = run("train", "net.py:network", *SHORT, "--eps", "4/255", "--out", "run", "--json", "t.json")
    assert status == 0, text
    assert "Written to run/model.safetensors" in text
    record = json.loads((files / "t.json").read_text())
    assert record["recipe"]["attack"] == {**asdict(PGD(eps=4 / 255, step=1 / 255, steps=1)), "kind": "PGD"}
    assert record["kept"] in record["epochs"]
    status, text = run("train", "net.py:network", *SHORT, "--eps", "4/255", "--out", "run")
    assert status == 2
    assert "run holds a training: expected another folder, or to continue that one (--resume)" in text
    assert run("train", "net.py:network", *SHORT, "--eps", "4/255", "--out", "run", "--resume")[0] == 0
    weights = ["--weights", "run/model.safetensors", "--attack", "none"]
    assert run("evaluate", "net.py:network", *weights, "--data", "npz:data.npz")[0] == 0


def test_a_training_that_collapsed_says_so(run, files):
    """As on SVHN: all images decided as the commonest class."""
    lines = ["from helpers import network", "def make():", "    model = network()", "    model[-1].bias.data[2] = 99"]
    (files / "stuck.py").write_text("\n".join([*lines, "    return model"]))
    options = ["--data", "npz:data.npz", "--epochs", 1, "--batch", 20, "--steps", 1, "--rate", 1e-6]
    status, text = run("train", "stuck.py:make", *options, "--out", "run", "--json", "t.json")
    assert status == 0, text
    assert "gives all images the same class" in " ".join(text.split())
    assert json.loads((files / "t.json").read_text())["kept"]["classes"] == 1
    status, text = run("train", "net.py:network", *SHORT, "--out", "other", "--json", "t.json")
    assert "collapsed" not in text
    assert json.loads((files / "t.json").read_text())["kept"]["classes"] > 1


def test_training_without_an_attack(run, files):
    options = ["--data", "npz:data.npz", "--epochs", 1, "--batch", 20, "--eps", 0, "--no-flip"]
    status, text = run("train", "net.py:network", *options, "--out", "run", "--json", "t.json")
    assert status == 0, text
    record = json.loads((files / "t.json").read_text())
    assert record["kept"]["natural"] == record["kept"]["robust"]
    assert record["recipe"]["flip"] is False


def test_a_network_of_the_zoo_has_as_many_classes_as_the_data(run, tmp_path):
    """And is found again, compressed or not, by the weights alone."""
    colours = training_images(20)
    np.savez(tmp_path / "data.npz", images=colours.images.permute(0, 2, 3, 1).numpy(), labels=12 + colours.labels.numpy())
    options = ["--data", "npz:data.npz", "--epochs", 1, "--batch", 8, "--steps", 1, "--out", "run"]
    status, text = run("train", "zoo:resnet20", *options)
    assert status == 0, text
    weights = ["--weights", "run/model.safetensors", "--data", "npz:data.npz"]
    compress = ["--method", "uniform", "--images", 4, "--eps", 0, "--out", "small"]
    status, text = run("compress", "zoo:resnet20", *weights, *compress)
    assert status == 0, text
    assert models.resolve(str(tmp_path / "small"))(torch.rand(1, 3, 8, 8)).shape == (1, 16)


def test_a_label_far_beyond_the_others_is_no_network(run, tmp_path):
    """Bug: a file of some kilobytes took 9 GB."""
    images = np.zeros((20, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.array([5_000_000] + [0] * 19))
    status, text = run("train", "zoo:resnet20", "--data", "npz:data.npz", "--out", "run")
    assert status == 2
    assert "a network for label 5,000,000 of npz:data.npz would take 100,000,020,000 bytes of memory" in " ".join(text.split())


def test_tune_from_the_command_line(run, tmp_path):
    """The embedded network, on few images."""
    train = data.load("demo", "train").take(30)
    base = models.embedded()
    gdws.save(gdws.compress(base, train.take(4), gdws.Macs(0.5), "uniform"), tmp_path / "small", base="demo", export=False)
    options = ["--data", "demo", "--images", 30, "--epochs", 1, "--batch", 8, "--steps", 1, "--teacher", "demo"]
    status, text = run("tune", "small", *options, "--out", "run", "--json", "t.json")
    assert status == 0, text
    assert "Written to run/model" in text
    tuned = models.resolve(str(tmp_path / "run" / "model"))
    assert gdws.plan_of(tuned).method == "uniform"
    assert [line["epoch"] for line in json.loads((tmp_path / "t.json").read_text())["epochs"]] == [0, 1]
    status, text = run("evaluate", "small", str(tmp_path / "run" / "model"), "--data", "demo", "--n", 20, "--attack", "none")
    assert status == 0, text
    assert " run/model  natural" in text
    status, text = run("tune", "small", *options[:-2], "--out", "other", "--teacher-weights", "w.safetensors")
    assert status == 2
    assert "without --teacher" in text
    status, text = run("tune", "small", *options[:-1], "zoo:tiny", "--out", "other")
    assert status == 2
    assert "zoo:tiny has random weights" in text
    status, text = run("train", "small", "--data", "demo", "--out", "other")
    assert status == 2
    assert "expected gdws tune" in text
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--recipe", "slow"], "unknown recipe 'slow'"),
        (["--recipe", "union", "--eps", "8/255"], "one radius"),
        (["--eps", "9"], "from 0 to 1"),
        (["--rate", "nan"], "rate=nan"),
        (["--json", "nowhere/x.json"], "there is no folder nowhere"),
        (["--seed", "99999999999999999999999"], "seed"),
    ],
)
def test_bad_words(run, files, words, sentence):
    status, text = run("train", "net.py:network", "--data", "npz:data.npz", "--out", "run", *words)
    assert status == 2
    assert sentence in text


def test_a_data_set_of_floats_trains_as_its_images(tmp_path):
    """Bug: its images were divided by 255 once more, without a word, and NaN was taken."""
    colors = training_images(20)
    floats = Dataset("own", colors.images.float() / 255, colors.labels)
    trained = [
        train(network(), each, recipe(epochs=1, held=4), tmp_path / str(number)) for number, each in enumerate((colors, floats))
    ]
    assert trained[0].history[0]["loss"] == trained[1].history[0]["loss"]
    for factor in (torch.nan, 2):
        with pytest.raises(GdwsError, match=r"expected \[0, 1\]"):
            train(network(), Dataset("own", factor * floats.images, colors.labels), recipe(), tmp_path / "wrong")
