"""Robust pruning: HYDRA, ADMM, magnitude."""

import copy
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import SMOOTH, network, recipe, training_images
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils import prune as theirs

import gdws
from gdws import models
from gdws.attacks import PGD
from gdws.core.distributed import SINGLE_PROCESS
from gdws.core.errors import GdwsError
from gdws.training import Admm, Hydra, Magnitude, prune, pruning_for
from gdws.training.learner import Learner
from gdws.training.losses import Robust, Trades
from gdws.training.pruning import PRUNINGS
from gdws.training.pruning.admm import dual_update
from gdws.training.pruning.hydra import Scored, with_scores, without_scores
from gdws.training.pruning.losses import Augmented, Masked
from gdws.training.pruning.masks import KINDS, kept_of, largest, masks_of, project, prunable_layers
from gdws.training.pruning.recipes import NearbyPGD

SHORT = recipe(epochs=1, keep="last", average=0.0, nesterov=False, weight_decay=1e-4)


def scattered(model):
    """The model with BatchNorm weights that differ, and some bias everywhere."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.uniform_(-0.5, 0.5, generator=generator)
    return model


def short(method, keep=0.3, **changes):
    """A method with stages of an epoch."""
    plain = replace(SHORT, **changes)
    return {
        "hydra": Hydra(keep=keep, prune=plain, finetune=plain),
        "admm": Admm(keep=keep, periods=2, rho=0.1, prune=plain, finetune=plain),
        "filter": Admm(keep=keep, kind="filter", periods=1, rho=0.1, prune=plain, finetune=plain),
        "column": Admm(keep=keep, kind="column", periods=1, rho=0.1, prune=plain, finetune=plain),
        "irregular": Admm(keep=keep, kind="irregular", periods=1, rho=0.1, prune=plain, finetune=plain),
        "magnitude": Magnitude(keep=keep, finetune=plain),
        "channels": Magnitude(keep=keep, structured=True, finetune=plain),
    }[method]


# ------------------------------------------------------------------------------------------------ masks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0.05, 0.3, 0.5, 0.9])
def test_the_projection_is_the_nearest_pruned_weight(kind, keep):
    """Brute force: of all choices of so many groups, none is nearer."""
    generator = torch.Generator().manual_seed(0)
    shape = {"irregular": (2, 4), "batchnorm": (7,), "filter": (6, 2, 2, 2), "column": (3, 2, 2, 2)}[kind]
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    groups = {
        "irregular": torch.arange(8).view(2, 4),
        "batchnorm": torch.arange(7),
        "filter": torch.arange(6).view(6, 1, 1, 1),
        "column": torch.arange(8).view(1, 2, 2, 2),
    }[kind]
    found, count = project(weight, kind, keep), max(1, round(keep * groups.numel()))
    distances = [
        float((weight * ~torch.isin(groups, torch.tensor(chosen))).norm())
        for chosen in itertools.combinations(range(groups.numel()), count)
    ]
    assert float((weight - found).norm()) == pytest.approx(min(distances))
    assert len(groups.expand(shape)[found != 0].unique()) == count


@pytest.mark.parametrize("count", [1, 2, 7, 100, 432])
@pytest.mark.parametrize("keep", [0.001, 0.01, 0.1, 0.5, 0.999])
def test_ties_change_no_count(count, keep):
    for lengths in (torch.ones(count), torch.zeros(count), torch.arange(count).float() % 3):
        assert int(largest(lengths, keep).sum()) == max(1, round(keep * count)) == kept_of(keep, count)


def test_magnitude_is_that_of_pytorch():
    model = models.zoo.build("tiny")
    expected = copy.deepcopy(model)
    masks = masks_of(prunable_layers(model, "irregular", 0.1), "irregular", 0.1)
    layers = {name: module for name, module in expected.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    assert masks.keys() == {f"{name}.weight" for name in layers}
    for name, module in layers.items():
        theirs.l1_unstructured(module, "weight", module.weight.numel() - round(0.1 * module.weight.numel()))
        assert torch.equal(masks[f"{name}.weight"], module.weight_mask.bool())


# ------------------------------------------------------------------------------------------------ HYDRA


def attacked_by_hand(model, x, start, labels, attack, goal):
    """Steps in the l-2 ball along the gradient of what the goal is, asked anew in every step of the model in eval mode."""
    point = start
    for _ in range(attack.steps):
        point = point.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(goal(model, point, x, labels), point)
        moved = point - x + attack.step * F.normalize(gradient.flatten(1)).view_as(x)
        length = moved.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        point = (x + moved * (attack.eps / length).clamp(max=1)).clamp(0, 1)
    return point.detach()


def test_steps_of_hydra_are_what_plain_pytorch_computes():
    """Scores by SGD with the straight-through gradient, frozen weights, BatchNorm that trains, TRADES with clean logits that
    are asked anew in each step of the attack: written out in float64."""
    model, keep = scattered(network()), 0.1
    plan = replace(SHORT, epochs=4, batch=40, rate=0.5, schedule="cosine", loss="trades", attack=SMOOTH)
    layers = list(prunable_layers(model, "irregular", keep))
    learner = Learner(with_scores(model, layers, keep), training_images(40), plan, Scored(Trades(), keep), SINGLE_PROCESS)
    by_hand = copy.deepcopy(model).double()
    dense = {name: by_hand.get_submodule(name).weight.detach().clone() for name in layers}
    scores = {
        name: nn.Parameter((6 / (weight.numel() / len(weight))) ** 0.5 * weight / weight.abs().max())
        for name, weight in dense.items()
    }
    norms = [by_hand[1].weight, by_hand[1].bias, by_hand[4].weight, by_hand[4].bias]
    optimizer = torch.optim.SGD([*scores.values(), *norms], 1, momentum=0.9, weight_decay=1e-4)

    def mask(name):
        order = scores[name].detach().abs().flatten().argsort(descending=True)
        chosen = torch.zeros(len(order), dtype=torch.float64)
        chosen[order[: max(1, round(keep * len(order)))]] = 1
        return chosen.view_as(scores[name])

    def divergence(network, point, x, labels):
        return F.kl_div(network(point).log_softmax(1), network(x).detach().softmax(1), reduction="sum")

    for epoch in range(4):
        x, start, labels = learner.drawn(epoch, 0)
        for name in layers:
            by_hand.get_submodule(name).weight.data = dense[name] * mask(name)
        attacked = attacked_by_hand(by_hand.eval(), x.double(), start.double(), labels, plan.attack, divergence)
        rate, _ = learner.step(epoch, 0)
        by_hand.train()
        natural, logits = by_hand(torch.cat([x.double(), attacked])).chunk(2)
        kl = (natural.softmax(1) * (natural.log_softmax(1) - logits.log_softmax(1))).sum(1).mean()
        optimizer.zero_grad()
        by_hand.zero_grad()
        (F.cross_entropy(natural, labels) + 6 * kl).backward()
        for name in layers:
            scores[name].grad = by_hand.get_submodule(name).weight.grad * dense[name]
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    trained, masks = without_scores(learner.model, model, layers)
    for name in layers:
        assert torch.equal(masks[f"{name}.weight"], mask(name).bool()), name
        assert torch.equal(trained.get_submodule(name).weight, model.get_submodule(name).weight)
        found = learner.model.get_submodule(name).parametrizations.weight.original
        assert torch.allclose(found.double(), scores[name], atol=1e-5), name
        bias = trained.get_submodule(name).bias
        assert torch.equal(bias, model.get_submodule(name).bias)
    for name, value in by_hand.state_dict().items():
        if name.partition(".")[0] in ("1", "4"):
            assert torch.allclose(trained.state_dict()[name].double(), value.double(), atol=1e-5), name
    first = masks_of(prunable_layers(model, "irregular", keep), "irregular", keep)
    assert any(not torch.equal(first[name], value) for name, value in masks.items()), "nothing was learnt"


def test_trades_starts_beside_the_image():
    x = torch.rand(50, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    start = NearbyPGD().start(x, torch.Generator().manual_seed(1))
    assert float((start - x).std()) == pytest.approx(0.001, rel=0.02)
    assert float((start - x).mean()) == pytest.approx(0, abs=1e-4)


# ------------------------------------------------------------------------------------------------ ADMM


def test_periods_of_admm_are_what_plain_pytorch_computes(tmp_path):
    """Two periods of two steps in float64, with the penalty's gradient by hand, and the dual updates between them."""
    model, keep, rho = scattered(network()), 0.25, 0.3
    plan = replace(SHORT, batch=40, rate=0.02, schedule="thirds", attack=SMOOTH)
    method = Admm(keep=keep, rho=rho, periods=2, prune=replace(plan, epochs=2), finetune=plan)
    data = training_images(50)  # of which ten are held back
    found, masks = method.choose(
        model,
        lambda name, start, settings, loss: gdws.training.train(start, data, settings, tmp_path / name, objective=loss).model,
    )
    by_hand, names = copy.deepcopy(model).double(), ("1.weight", "4.weight")

    def nearest(values):
        return values * (values.abs() >= values.abs().sort(descending=True).values[3])  # a quarter of sixteen

    z = {name: nearest(by_hand.get_parameter(name).detach()) for name in names}
    u = {name: torch.zeros_like(value) for name, value in z.items()}
    for period in range(2):
        settings = replace(method.prune, seed=method.prune.seed + period)
        drawn = Learner(copy.deepcopy(model), data.split(10)[0], settings, Robust(), SINGLE_PROCESS).drawn
        optimizer = torch.optim.SGD(by_hand.parameters(), 1, momentum=0.9, weight_decay=1e-4)
        for epoch in range(2):
            x, start, labels = drawn(epoch, 0)
            attacked = attacked_by_hand(
                by_hand.eval(),
                *(x.double(), start.double(), labels, plan.attack),
                lambda network, point, x, labels: F.cross_entropy(network(point), labels),
            )
            optimizer.zero_grad()
            F.cross_entropy(by_hand.train()(attacked), labels).backward()
            for name in names:
                parameter = by_hand.get_parameter(name)
                parameter.grad += rho * 1.3**period * (parameter.detach() - z[name] + u[name])
            optimizer.param_groups[0]["lr"] = 0.02 * (1, 0.1)[epoch]
            optimizer.step()
        for name in names:
            w = by_hand.get_parameter(name).detach()
            z[name] = nearest(w + u[name])
            u[name] = u[name] + w - z[name]
    for name, value in by_hand.state_dict().items():
        assert torch.allclose(found.state_dict()[name].double(), value.double(), atol=1e-5), name
    for layer in ("1", "4"):
        kept = nearest(by_hand.get_parameter(f"{layer}.weight").detach()) != 0
        assert torch.equal(masks[f"{layer}.weight"], kept)
        assert torch.equal(masks[f"{layer}.bias"], kept)


def test_the_dual_draws_until_the_weight_is_pruned():
    """On a quadratic, whose minimum over W is known, the iteration ends at the pruned minimum."""
    wanted = torch.tensor([3.0, -2.0, 1.0, 0.5], dtype=torch.float64)
    z, u = project(wanted, "batchnorm", 0.5), torch.zeros(4, dtype=torch.float64)
    for _ in range(200):
        w = (wanted + (z - u)) / 2  # argmin |w - wanted|^2 / 2 + |w - z + u|^2 / 2
        z, u = dual_update(w, u, "batchnorm", 0.5)
    assert torch.allclose(w, torch.tensor([3.0, -2.0, 0.0, 0.0], dtype=torch.float64), atol=1e-6)


def test_the_penalty_counts_once_whatever_the_batch():
    model, (x, y) = network(), next(iter(training_images(8)))
    targets = {"1.weight": torch.full((16,), 0.5)}
    plain, _ = Robust().losses(model, x, x, y)
    drawn, _ = Augmented(Robust(), 0.1, targets).losses(model, x, x, y)
    assert torch.allclose(drawn - plain, torch.full((8,), 0.05 * 16 * 0.25))


# ------------------------------------------------------------------------------------------------ whole prunings


@pytest.mark.parametrize("name", ["hydra", "admm", "filter", "column", "irregular", "magnitude", "channels"])
def test_what_comes_out_is_an_ordinary_network_with_exact_zeros(tmp_path, name):
    model = scattered(network())
    model[8].bias.requires_grad_(False)
    before, method = copy.deepcopy(model), short(name, average=0.9)
    pruned = prune(model, training_images(), method, tmp_path)
    assert all(torch.equal(value, before.state_dict()[key]) for key, value in model.state_dict().items())
    assert [type(module) for module in pruned.model.modules()] == [type(module) for module in model.modules()]
    assert pruned.model.state_dict().keys() == model.state_dict().keys()
    assert not any(parametrize.is_parametrized(module) or theirs.is_pruned(module) for module in pruned.model.modules())
    assert not pruned.model.training
    assert not pruned.model[8].bias.requires_grad
    assert torch.equal(pruned.model[8].bias, before[8].bias)
    assert pruned.model[8].weight.requires_grad
    for layer, (kept, of) in pruned.kept.items():
        weight, bias = (pruned.model.get_submodule(layer).get_parameter(part) for part in ("weight", "bias"))
        assert kept == max(1, round(0.3 * of))
        if pruned.groups == "irregular":
            assert (int(weight.count_nonzero()), weight.numel()) == (kept, of)
        elif pruned.groups == "column":
            assert int(weight.abs().sum(0).count_nonzero()) == kept
        else:
            rows = weight.flatten(1).abs().sum(1) if weight.ndim > 1 else weight
            assert (int(rows.count_nonzero()), len(rows)) == (kept, of)
            assert torch.equal(bias[rows == 0], torch.zeros(of - kept))
            assert bool((bias[rows != 0] != 0).all())
        assert not bool((weight == 0).logical_and(weight.signbit()).any()), "expected no negative zero"
    layers = {"irregular": {"0", "3", "8"}, "batchnorm": {"1", "4"}, "filter": {"0", "3"}, "column": {"0", "3"}}
    assert pruned.kept.keys() == layers[pruned.groups]
    stages = {"hydra": ["prune", "finetune"], "admm": ["period-01", "period-02", "finetune"], "magnitude": ["finetune"]}
    assert list(pruned.stages) == stages.get(name, ["finetune"] if name == "channels" else ["period-01", "finetune"])
    first, *others = ([line["epoch"] for line in history] for history in pruned.stages.values())
    assert first == [0, 1]
    assert others == [[1]] * len(others)
    assert pruned.last == pruned.stages["finetune"][-1]


def test_pruned_networks_learn(tmp_path):
    """Half of the weights are enough for four colours."""
    base = gdws.training.train(network(), training_images(400), recipe(epochs=6), tmp_path / "base").model
    for name in ("hydra", "magnitude", "admm"):
        found = prune(base, training_images(400), short(name, keep=0.5, epochs=3), tmp_path / name)
        assert found.last["robust"] >= 60, name


def test_masked_weights_never_move():
    model = scattered(network())
    masks = masks_of(prunable_layers(model, "batchnorm", 0.2), "batchnorm", 0.2)
    gdws.training.pruning.masks.set_zeros(model, masks)
    learner = Learner(model, training_images(40), replace(SHORT, batch=40), Masked(Robust(), masks), SINGLE_PROCESS)
    before = copy.deepcopy(learner.model.state_dict())
    for epoch in range(3):
        learner.step(epoch, 0)
        for name, mask in masks.items():
            after = learner.model.get_parameter(name).detach()
            assert float(after[~mask].abs().max()) == 0
            assert bool((after[mask] != before[name][mask]).all())


RUN = """
import sys
from pathlib import Path
from helpers import SMOOTH, network, training_images
from test_pruning import scattered, short
from gdws.core.distributed import join_processes
from gdws.training import prune
import torch
torch.set_num_threads(1)
_, folder, epochs, *names = sys.argv
with join_processes() as processes:
    for name in names:
        method = short(name, epochs=int(epochs), attack=SMOOTH, seed=3)
        model = scattered(network(seed=processes.rank))  # the first process's weights count
        prune(model, training_images(), method, Path(folder, name), resume=True, processes=processes, checkpoint_seconds=0)
"""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([*sys.path, os.path.dirname(__file__)])}


def without_times(stages):
    return {
        stage: [{name: value for name, value in line.items() if "second" not in name} for line in history]
        for stage, history in stages.items()
    }


@pytest.mark.parametrize(("name", "stage"), [("hydra", "prune"), ("hydra", "finetune"), ("admm", "period-02")])
def test_a_killed_pruning_goes_on_as_if_nothing_had_been(tmp_path, name, stage):
    method = short(name, epochs=8, attack=SMOOTH, seed=3)
    whole = prune(scattered(network()), training_images(), method, tmp_path / "whole")
    cut = tmp_path / name
    process = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path), "8", name], env=ENVIRONMENT)
    deadline = time.monotonic() + 120
    while not (cut / stage / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len((cut / stage / "log.jsonl").read_text().splitlines())
    assert 1 <= done < 8, "it was killed too late to prove anything"
    resumed = prune(scattered(network()), training_images(), method, cut, resume=True)
    assert without_times(resumed.stages) == without_times(whole.stages)
    assert resumed.kept == whole.kept
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key]), key


def test_two_processes_prune_as_one(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script, names = tmp_path / "script.py", ("hydra", "admm")
    script.write_text(RUN)
    done = subprocess.run(
        [*torchrun, script, tmp_path, "2", *names], env=ENVIRONMENT, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    for name in names:
        method, model = short(name, epochs=2, attack=SMOOTH, seed=3), scattered(network())
        alone = prune(model, training_images(), method, tmp_path / f"{name} alone")
        both = prune(model, training_images(), method, tmp_path / name, resume=True)
        for stage, history in alone.stages.items():
            for one, two in zip(history, both.stages[stage], strict=True):
                assert two.get("loss", 0) == pytest.approx(one.get("loss", 0), rel=1e-4)
        for key, value in alone.model.state_dict().items():
            assert torch.equal(value == 0, both.model.state_dict()[key] == 0), key
            assert torch.allclose(value, both.model.state_dict()[key], rtol=1e-3, atol=1e-4), key


# ------------------------------------------------------------------------------------------------ presets


def test_presets_are_as_published():
    hydra, admm = PRUNINGS["hydra"]["paper"], PRUNINGS["admm"]["paper"]
    assert (hydra.prune.epochs, hydra.prune.rate, hydra.finetune.epochs, hydra.finetune.rate) == (20, 0.1, 100, 0.01)
    assert admm.periods * admm.prune.epochs == admm.finetune.epochs == 200
    assert admm.rho * admm.growth**9 == pytest.approx(0.0106, abs=1e-4)
    for kind, presets in PRUNINGS.items():
        for method in presets.values():
            json.dumps(method.record())
            for plan in method.recipes().values():
                assert (plan.batch, plan.weight_decay, plan.nesterov, plan.keep) == (128, 1e-4, False, "last")
                assert plan.attack.steps == 10
                assert (plan.loss, plan.attack.eps) == (("robust", 8 / 255) if kind == "admm" else ("trades", 0.031))
    pulls = [
        sum(method.prune.epochs * method.rho * method.growth**period for period in range(method.periods))
        for method in PRUNINGS["admm"].values()
    ]
    assert pulls[0] == pytest.approx(pulls[1], rel=0.03)  # the short form draws as strongly in all
    epochs = {name: [sum(plan.epochs for plan in m.recipes().values()) for m in PRUNINGS[name].values()] for name in PRUNINGS}
    assert epochs["hydra"] == epochs["magnitude"] == [40, 120]


def test_a_preset_is_suited_to_data_and_device():
    method = pruning_for("hydra", "svhn:DIR", "cuda", keep=0.05, prune_epochs=2, epochs=3, seed=7, loss="robust", eps=4 / 255)
    assert (method.keep, method.prune.epochs, method.finetune.epochs) == (0.05, 2, 3)
    for plan in (method.prune, method.finetune):
        assert (plan.flip, plan.precision, plan.seed, plan.loss) == (False, "bfloat16", 7, "robust")
        assert plan.attack == NearbyPGD(4 / 255, 1 / 255, 10)
    assert pruning_for("admm", "demo", kind="filter").kind == "filter"
    assert pruning_for("magnitude", "demo", structured=True).groups == "batchnorm"


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Hydra(keep=0), "keep is 0: expected the share"),
        (lambda: Hydra(keep=1.0), "keep is 1.0"),
        (lambda: Magnitude(keep=float("nan")), "keep is nan"),
        (lambda: Magnitude(keep="0.1"), "keep is '0.1'"),
        (lambda: Admm(keep=0.5, kind="row"), "kind is 'row': expected one of irregular, batchnorm, filter, column"),
        (lambda: Admm(keep=0.5, rho=0), "rho=0"),
        (lambda: Admm(keep=0.5, periods=0), "periods=0"),
        (lambda: Hydra(keep=0.5, prune=recipe()), "prune has a recipe with keep='best': expected 'last'"),
        (lambda: pruning_for("snip", "demo"), "unknown method 'snip': expected one of hydra, admm, magnitude"),
        (lambda: pruning_for("hydra", "demo", recipe="slow"), "unknown recipe 'slow': expected one of fast, paper"),
        (lambda: pruning_for("hydra", "demo", kind="filter"), "kind is 'filter' with hydra"),
        (lambda: pruning_for("magnitude", "demo", prune_epochs=3), "prune_epochs is 3 with magnitude"),
    ],
)
def test_bad_methods(make, words):
    with pytest.raises(GdwsError, match=words):
        make()


def parametrized():
    model = network()
    nn.utils.parametrizations.weight_norm(model[3])
    return model


def masked():
    model = network()
    theirs.l1_unstructured(model[3], "weight", 10)
    return model


def already_pruned():
    model = network()
    model[3].weight.data[1:] = 0
    return model


def tied():
    model = network()
    model.append(nn.Linear(4, 4))
    model.append(nn.Linear(4, 4))
    model[10].weight = model[9].weight
    return model


def without_batchnorm():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("make", "method", "words"),
    [
        (parametrized, "magnitude", "the weight of 3 is made from other tensors"),
        (masked, "hydra", "the weight of 3 is made from other tensors"),
        (already_pruned, "hydra", "3 has 144 weights that are not zero: expected at least 691"),
        (tied, "hydra", "have one weight between them"),
        (without_batchnorm, "admm", "the model has no BatchNorm channels that could be pruned"),
        (without_batchnorm, "channels", "the model has no BatchNorm channels that could be pruned"),
        (
            lambda: gdws.compress(network(), training_images(20), gdws.Macs(0.5), "uniform"),
            "hydra",
            "3 is a factored layer: expected the network before",
        ),
    ],
)
def test_what_cannot_be_pruned_is_refused(tmp_path, make, method, words):
    with pytest.raises(GdwsError, match=words):
        prune(make().eval(), training_images(80), short(method), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_pruning_is_not_overwritten_and_not_continued_with_other_settings(tmp_path):
    data = training_images(80)
    prune(network(), data, short("magnitude"), tmp_path)
    with pytest.raises(GdwsError, match="holds a pruning: expected another folder"):
        prune(network(), data, short("magnitude"), tmp_path)
    with pytest.raises(GdwsError, match="was pruned with another keep: expected that again"):
        prune(network(), data, short("magnitude", keep=0.2), tmp_path, resume=True)
    with pytest.raises(GdwsError, match="was pruned with another kind of method"):
        prune(network(), data, short("hydra"), tmp_path, resume=True)
    with pytest.raises(GdwsError, match="another data"):
        prune(network(), training_images(80, seed=1), short("magnitude"), tmp_path, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_text("mine")
    for resume in (False, True):
        with pytest.raises(GdwsError, match=r"holds model.safetensors, which is no pruning's"):
            prune(network(), data, short("magnitude"), tmp_path / "other", resume=resume)
    (tmp_path / "pruning.json").write_text("{}")
    with pytest.raises(GdwsError, match=r"pruning.json is not of gdws prune: .*format is missing"):
        prune(network(), data, short("magnitude"), tmp_path, resume=True)


def test_pruning_again_keeps_what_was_zero(tmp_path):
    """A pruned network is an ordinary one, so it can be pruned further."""
    once = prune(network(), training_images(80), short("magnitude", keep=0.5), tmp_path / "once").model
    twice = prune(once, training_images(80), short("magnitude", keep=0.2), tmp_path / "twice").model
    for name in ("0.weight", "3.weight", "8.weight"):
        assert not bool(((once.get_parameter(name) == 0) & (twice.get_parameter(name) != 0)).any())
    assert PGD(steps=1)(twice, torch.rand(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)).shape == (2, 3, 8, 8)


# ------------------------------------------------------------------------------------------------ the command line


@pytest.fixture
def files(tmp_path):
    """A network as code, and its images as a file, in the folder where `run` works."""
    (tmp_path / "net.py").write_text("from helpers import network\n")
    colours = training_images(100)
    np.savez(tmp_path / "data.npz", images=colours.images.permute(0, 2, 3, 1).numpy(), labels=colours.labels.numpy())
    return tmp_path


QUICK = ["--data", "npz:data.npz", "--prune-epochs", 1, "--epochs", 1, "--batch", 20, "--steps", 1]


def test_prune_and_go_on_from_the_command_line(run, files):
    status, text = run("prune", "net.py:network", *QUICK, "--keep", 0.2, "--out", "run", "--json", "p.json")
    assert status == 0, text
    assert "598 of 2,992 weights are kept: sparsity 80.01 %, from 79.99 % (3) to 80.09 % (0) in a layer" in text
    assert "Written to run/model" in text
    record = json.loads((files / "p.json").read_text())
    assert record["layers"] == {
        "0": {"kept": 86, "of": 432},
        "3": {"kept": 461, "of": 2304},
        "8": {"kept": 51, "of": 256},
    }
    assert record["sparsity"] == pytest.approx(1 - (86 + 461 + 51) / (432 + 2304 + 256))
    assert record["kept"] == record["stages"]["finetune"][-1]
    stored = json.loads((files / "run" / "model" / "gdws.json").read_text())
    assert stored["base"] == "net.py:network"
    model = models.resolve("run/model", base="net.py:network")
    assert int(model[3].weight.count_nonzero()) == 461
    status, text = run("prune", "net.py:network", *QUICK, "--keep", 0.2, "--out", "run")
    assert status == 2
    assert "run holds a pruning: expected another folder, or to continue that one (--resume)" in text
    status, text = run("prune", "net.py:network", *QUICK, "--keep", 0.1, "--out", "run", "--resume")
    assert status == 2
    assert "run was pruned with another keep" in text
    assert run("prune", "net.py:network", *QUICK, "--keep", 0.2, "--out", "run", "--resume")[0] == 0
    evaluate = ["--attack", "none", "--data", "npz:data.npz"]
    assert run("evaluate", "net.py:network", "run/model", *evaluate)[0] == 0
    again = ["--method", "magnitude", "--keep", 0.1, "--out", "further", "--base", "net.py:network"]
    status, text = run("prune", "run/model", "--data", "npz:data.npz", "--epochs", 1, "--batch", 20, "--steps", 1, *again)
    assert status == 0, text
    assert int(models.resolve("further/model", base="net.py:network")[3].weight.count_nonzero()) == 230


def test_channels_from_the_command_line(run, tmp_path):
    """Of the embedded network, on few images."""
    options = ["--data", "demo", "--images", 30, "--epochs", 1, "--prune-epochs", 1, "--batch", 8, "--steps", 1]
    status, text = run("prune", "demo", *options, "--method", "admm", "--keep", 0.5, "--out", "run", "--loss", "robust")
    assert status == 0, text
    assert "BatchNorm channels are kept: sparsity 50.00 %, from 50.00 %" in text
    pruned = models.resolve(str(tmp_path / "run" / "model"))
    for module in pruned.modules():
        if isinstance(module, nn.BatchNorm2d):
            gone = module.weight == 0
            assert int(gone.sum()) == len(gone) // 2
            assert not bool(module.bias[gone].any())
    if importlib.util.find_spec("torch_pruning") is None:
        assert "keeps its zeros" in text
        return
    small, images = models.resolve(str(tmp_path / "run" / "compact")), training_images(4).images.float() / 255
    images = F.interpolate(images, size=32)
    assert sum(value.numel() for value in small.parameters()) < 0.5 * sum(value.numel() for value in pruned.parameters())
    with torch.no_grad():
        assert torch.allclose(small(images), pruned(images), atol=1e-4)


def test_a_pruning_that_collapsed_says_so(run, files):
    lines = ["from helpers import network", "def make():", "    model = network()", "    model[-1].bias.data[2] = 99"]
    (files / "stuck.py").write_text("\n".join([*lines, "    return model"]))
    status, text = run("prune", "stuck.py:make", *QUICK, "--keep", 0.2, "--out", "run")
    assert status == 0, text
    assert "Warning: the network gives all images the same class" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["net.py:network", "--method", "snip"], "unknown method 'snip'"),
        (["net.py:network", "--recipe", "slow"], "unknown recipe 'slow'"),
        (["net.py:network", "--keep", "1.5"], "keep is 1.5: expected the share"),
        (["net.py:network", "--kind", "filter"], "kind is 'filter' with hydra"),
        (["net.py:network", "--structured"], "structured is True with hydra"),
        (["net.py:network", "--loss", "hinge"], "one of robust, trades"),
        (["zoo:resnet20"], "zoo:resnet20 has random weights"),
        (["net.py:network", "--json", "nowhere/x.json"], "there is no folder nowhere"),
    ],
)
def test_bad_words(run, files, words, sentence):
    status, text = run("prune", *words, "--data", "npz:data.npz", "--out", "run")
    assert status == 2
    assert sentence in text
    assert not (files / "run").exists()
