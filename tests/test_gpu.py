"""The same numbers on a CUDA device as on the CPU: `make test-gpu`."""

import copy
import warnings

import pytest
import torch

import gdws
from gdws import data, models
from gdws.attacks import PGD
from gdws.core.execution import full_precision
from gdws.evaluation.accuracy import evaluate

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


@pytest.mark.parametrize("method", [gdws.Paper, gdws.Calibrated])
def test_compress(method):
    model, train = models.embedded(), data.load("demo", "train").take(50)
    images = data.load("demo", "test").take(100).images.float() / 255
    settings = method(attack=PGD(steps=2))
    there = gdws.compress(copy.deepcopy(model).cuda(), train, gdws.Macs(0.5), settings)
    here = gdws.compress(model, train, gdws.Macs(0.5), settings)
    assert gdws.agreement(here, copy.deepcopy(there).cpu(), images) >= 95


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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says once that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        attack(there, images, labels, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_recordings_compute_what_the_function_does():
    """Other values, the same shapes; another shape; weights that changed in place; running statistics once for each call."""
    from gdws.core.cuda_graphs import GraphedCallable

    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda()
    expected = copy.deepcopy(layer)
    recorded, generator = GraphedCallable(lambda x: (layer(x),)), torch.Generator("cuda").manual_seed(0)
    with torch.no_grad():
        for number in range(8):
            x = torch.rand(4 + number % 2, 3, 9, 9, device="cuda", generator=generator)
            if number == 6:
                for model in (layer, expected):
                    model[0].weight.mul_(2)
            assert torch.allclose(recorded(x)[0], expected(x), rtol=1e-3, atol=1e-4), number
    assert len(recorded.recordings) == 2
    assert layer[1].num_batches_tracked == 8
    assert torch.allclose(layer[1].running_var, expected[1].running_var, rtol=1e-3)


def test_a_function_that_waits_for_the_device_is_not_recorded():
    from gdws.core.cuda_graphs import GraphedCallable

    waits = GraphedCallable(lambda x: (x * float(x.max()),))
    x = torch.rand(5, device="cuda")
    stream = torch.cuda.current_stream()
    for _ in range(5):
        assert torch.equal(waits(x)[0], x * x.max())
    assert not waits.recordings
    assert torch.cuda.current_stream() == stream
    torch.rand(1, device="cuda")  # the generator is not left in the middle of a recording


@pytest.mark.parametrize(("norm", "eps", "step"), [("linf", 8 / 255, 2 / 255), ("l2", 0.5, 0.1), ("l1", 12.0, 2.0)])
def test_recorded_attacks_break_what_plain_ones_break(norm, eps, step):
    """Many steps and restarts, so that batches shrink and recordings are used, against the same attack on the CPU."""
    model, test = models.embedded(), data.load("demo", "test").take(50)
    attack = PGD(eps=eps, step=step, steps=10, norm=norm, restarts=2, early_exit=True)
    here, there = evaluate(model, test, attack), evaluate(copy.deepcopy(model).cuda(), test, attack)
    assert int((here.attacked != there.attacked).sum()) <= 3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_is_recorded_and_computes_what_plain_steps_do(precision):
    from gdws.core.distributed import SINGLE_PROCESS
    from gdws.training.learner import Learner
    from gdws.training.losses import Robust
    from gdws.training.recipes import Recipe

    train = data.load("demo", "train").take(256)
    recipe = Recipe(batch=64, attack=PGD(steps=3), rate=0.01, precision=precision)
    learners = [Learner(models.embedded().cuda(), train, recipe, Robust(), SINGLE_PROCESS) for _ in range(2)]
    learners[1].attack, learners[1].gradients = learners[1]._attack, learners[1]._gradients
    losses = [[float(learner.step(epoch, step)[1][0]) for epoch in range(3) for step in range(4)] for learner in learners]
    assert len(learners[0].gradients.recordings) == 1
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    for name, value in learners[0].model.state_dict().items():
        assert torch.allclose(value, learners[1].model.state_dict()[name], rtol=0.05, atol=5e-3), name


def test_a_radius_that_grows_is_recorded_anew():
    from gdws.core.distributed import SINGLE_PROCESS
    from gdws.training.learner import Learner
    from gdws.training.losses import Robust
    from gdws.training.recipes import Recipe

    train = data.load("demo", "train").take(128)
    recipe = Recipe(epochs=2, batch=32, attack=PGD(steps=2), warmup=1, rate=1e-6)
    learner, before = Learner(models.embedded().cuda(), train, recipe, Robust(), SINGLE_PROCESS), None
    for epoch, eps in enumerate((4 / 255, 8 / 255)):
        for step in range(4):
            images, start, labels = learner.drawn(epoch, step)
            learner.step(epoch, step)
        assert len(learner.attack.recordings) == 1
        assert learner.attack is not before
        before = learner.attack
        (attacked,) = learner.attack(start, images, labels)
        assert float((attacked - images).abs().max()) == pytest.approx(eps, rel=1e-3)


@pytest.mark.parametrize("method", [gdws.Uniform, gdws.Calibrated])
def test_a_compressed_network_is_tuned(method):
    """Its gradients have the strides that the fused optimiser wants, of depthwise kernels too."""
    from gdws.core.distributed import SINGLE_PROCESS
    from gdws.training.learner import Learner
    from gdws.training.losses import Taught
    from gdws.training.recipes import Recipe
    from gdws.training.tuning import balance, trainable_copy

    base, train = models.embedded().cuda(), data.load("demo", "train").take(128)
    small = trainable_copy(gdws.compress(base, train.take(8), gdws.Macs(0.5), method(attack=PGD(steps=1))))
    balance(small)
    recipe = Recipe(batch=32, attack=PGD(steps=2), rate=0.01, precision="bfloat16")
    learner = Learner(small, train, recipe, Taught(base), SINGLE_PROCESS)
    losses = [float(learner.step(epoch, step)[1][0]) for epoch in range(4) for step in range(4)]
    assert len(learner.gradients.recordings) == 1
    assert sum(losses[-4:]) < sum(losses[:4])


@pytest.mark.parametrize("stage", ["scores", "period", "finetune"])
def test_the_stages_of_pruning_are_recorded_and_compute_what_plain_steps_do(stage):
    """HYDRA's masks change between the replays of a recording."""
    from gdws.core.distributed import SINGLE_PROCESS
    from gdws.training.learner import Learner
    from gdws.training.losses import Robust
    from gdws.training.pruning.hydra import Scored, with_scores
    from gdws.training.pruning.losses import Augmented, Masked
    from gdws.training.pruning.masks import masks_of, prunable_layers
    from gdws.training.recipes import Recipe

    base, train = models.embedded().cuda(), data.load("demo", "train").take(256)
    layers = prunable_layers(base, "irregular", 0.1)
    recipe = Recipe(batch=64, attack=PGD(steps=3), rate=0.01, nesterov=False)

    def learner():
        if stage == "scores":
            return Learner(with_scores(base, layers, 0.1), train, recipe, Scored(Robust(), 0.1), SINGLE_PROCESS)
        targets = {name: 0.5 * value.detach() for name, value in base.named_parameters()}
        masks = masks_of(layers, "irregular", 0.1)
        loss = Augmented(Robust(), 0.1, targets) if stage == "period" else Masked(Robust(), masks)
        return Learner(copy.deepcopy(base), train, recipe, loss, SINGLE_PROCESS)

    learners = [learner() for _ in range(2)]
    learners[1].attack, learners[1].gradients = learners[1]._attack, learners[1]._gradients
    losses = [[float(each.step(epoch, step)[1][0]) for epoch in range(3) for step in range(4)] for each in learners]
    assert len(learners[0].gradients.recordings) == 1
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)


def test_a_network_on_the_device_is_compacted_there():
    """The indices of channels were looked for on the CPU, and weights on the device."""
    model = models.embedded().cuda()
    for norm in (layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)):
        norm.weight.data[::2] = norm.bias.data[::2] = 0
    x = torch.rand(4, 3, 32, 32, device="cuda")
    small = gdws.compact(model, x)
    assert all(value.is_cuda for value in small.state_dict().values())
    assert sum(value.numel() for value in small.parameters()) < 0.5 * sum(value.numel() for value in model.parameters())
    with full_precision(), torch.no_grad():
        assert torch.allclose(small(x), model.eval()(x), atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_recorded_network_answers_as_the_network(precision):
    from gdws.deploy.graphed_model import graph_model

    model, images = models.embedded().cuda(), data.load("demo", "test").take(50).images.float() / 255
    dtype = getattr(torch, precision)
    ready = graph_model(model, images, precision)
    assert ready.replay.recordings
    with full_precision(), torch.no_grad():
        expected = model(images.cuda())
        for shift in range(3):
            answers = ready(images.roll(shift, 0).to("cuda", dtype))
            assert answers.dtype == dtype
            assert torch.allclose(answers.float(), expected.roll(shift, 0), atol=1e-3 if precision == "float32" else 0.1)


class Residual(torch.nn.Module):
    """Two convolutions before a sum, the second of which may be replaced, and one that stays dense."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32)
        self.conv, self.last = torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.Conv2d(32, 32, 3, 2)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.conv(self.norm(x).relu())
        return self.head(self.last(x.relu()).relu().mean((2, 3)))


@pytest.mark.parametrize("structure", ["project", "horizontal"])
@pytest.mark.filterwarnings("ignore")  # torch.compile imports what is deprecated
def test_an_autotuned_network_answers_as_the_network(structure):
    """Few layers: each takes seconds. Three channels first, a sum in the kernel of a pair, and something for cuDNN."""
    from gdws.deploy.autotune import autotune

    torch.manual_seed(0)
    model = Residual().eval()
    images = data.load("demo", "test").take(64).images.float() / 255
    method = gdws.Calibrated(structures=structure, exclude=["last"], attack=None)
    model = gdws.compress(model, [images], gdws.Macs(0.6), method).cuda()
    run = autotune(model, images)
    assert len(run.replay.recordings) == 1
    with full_precision(), torch.no_grad():
        expected = model(images.cuda())
        for shift in range(3):
            answers = run(images.roll(shift, 0).cuda().half()).float()
            assert (answers - expected.roll(shift, 0)).norm() < 0.01 * expected.norm()


def test_kernels_are_timed_as_they_run():
    """As long as in a recording, where nothing is launched: what takes microseconds too."""
    from gdws.core.cuda_graphs import GraphedCallable
    from gdws.deploy.inductor import milliseconds

    for size in (64, 2048):
        x = torch.rand(size, size, device="cuda")
        often = GraphedCallable(lambda x: tuple(x @ x for _ in range(50)))
        for _ in range(3):
            often(x)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        often(x)
        end.record()
        end.synchronize()
        assert milliseconds(lambda x=x: x @ x) == pytest.approx(begin.elapsed_time(end) / 50, rel=0.5)


def test_a_plan_by_time_on_this_gpu():
    """Every layer has its time, and what was planned took about what was predicted."""
    from torch import nn

    torch.manual_seed(0)
    blocks = [layer for _ in range(3) for layer in (nn.BatchNorm2d(256), nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)]
    model = nn.Sequential(nn.Conv2d(3, 256, 3, stride=2), *blocks, *head).cuda().eval()
    target = gdws.Target("cuda", batch=64)
    train, method = data.load("demo", "train").take(20), gdws.Calibrated(attack=None)
    compressed = gdws.compress(model, train, gdws.Latency(0.7), method, target=target)
    plan = gdws.plan_of(compressed)
    measured = plan.measured
    assert measured.engine == measured.dense_engine == "cuda"
    assert measured.device == torch.cuda.get_device_name()
    assert measured.latency < 0.75
    assert measured.latency == pytest.approx(measured.predicted, rel=0.1)
    assert all(layer.seconds > 0 for layer in plan.layers if layer.replaceable)
    assert compressed(torch.rand(2, 3, 32, 32, device="cuda")).isfinite().all()
