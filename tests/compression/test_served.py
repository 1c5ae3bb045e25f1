"""Networks as they are found in other people's programs: with hooks, called by others meanwhile, random, oddly typed."""

import threading
import time
import types

import pytest
import torch
from helpers import ATTACK, network
from torch import nn
from torch.nn import functional as F

import gdws
from gdws.core.errors import GdwsError
from gdws.core.execution import own_copy

METHOD = gdws.Calibrated(attack=ATTACK, structures=["gdws", "vertical"])


@pytest.fixture(scope="module")
def images():
    return torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def same(one, other):
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def separable():
    """A network whose second convolution is a depthwise-separable one, so that GDWS can be the same function."""
    model = network()
    with torch.no_grad():
        model[3].weight.copy_(model[3].weight[:, :, :1, :1] * model[3].weight[:1])
    model[5] = nn.ReLU()
    return model


def lossless(model, images):
    """The network by a plan without any loss."""
    made = gdws.plan(model, [images], gdws.Beta(0.0), gdws.Paper(attack=None))
    (layer,) = (layer for layer in made.layers if layer.reason != "first layer")
    return gdws.apply(model, made), layer


def scaled(module, inputs, output):
    return 2 * output


HOOKS = {
    "forward": lambda conv: conv.register_forward_hook(scaled),
    "forward, with names": lambda conv: conv.register_forward_hook(lambda m, x, named, y: 2 * y, with_kwargs=True),
    "forward, always": lambda conv: conv.register_forward_hook(scaled, always_call=True),
    "pre": lambda conv: conv.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],)),
    "pre, with names": lambda conv: conv.register_forward_pre_hook(lambda m, x, named: ((2 * x[0],), named), with_kwargs=True),
    "padding": lambda conv: conv.register_forward_pre_hook(lambda module, inputs: (F.pad(inputs[0], (1, 1, 1, 1)),)),
    "cropping": lambda conv: conv.register_forward_hook(lambda module, inputs, output: output[:, :, 1:, 1:]),
    "backward": lambda conv: conv.register_full_backward_hook(lambda module, into, out: (3 * into[0],)),
    "backward, before": lambda conv: conv.register_full_backward_pre_hook(lambda module, out: (3 * out[0],)),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_go_with_the_place_of_a_convolution(images, kind):
    """Bug: they were dropped, so that a plan without loss changed the logits by 1.4."""
    model = separable()
    HOOKS[kind](model[3])
    compressed, layer = lossless(model, images)
    assert layer.structure == "gdws"

    def answers(made):
        x = images.clone().requires_grad_(True)
        logits = made(x)
        return logits, torch.autograd.grad(logits.square().sum(), x)[0]

    for found, wanted in zip(answers(compressed), answers(model), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", HOOKS)
def test_a_refit_wants_what_the_convolution_gives_without_its_hooks(images, kind):
    """A calibrated network with hooks is near its original, as one without them is."""
    errors = []
    for hook in (None, HOOKS[kind]):
        model = network()
        if hook is not None:
            hook(model[3])
        compressed = gdws.compress(model, [images], gdws.Macs(0.6), gdws.Calibrated(attack=None, structures="gdws"))
        assert any(layer.structure == "gdws" for layer in gdws.plan_of(compressed).layers)
        wanted, found = model(images).detach(), compressed(images).detach()
        errors.append(float((found - wanted).norm() / (wanted - wanted.mean(0)).norm()))
    assert errors[1] < 2 * errors[0] + 0.05


def test_hooks_survive_saving_into_a_network_that_has_them(images, tmp_path):
    model = separable()
    model[3].register_forward_hook(scaled)
    compressed, _ = lossless(model, images)
    gdws.save(compressed, tmp_path / "saved", export=False)
    assert torch.equal(gdws.load(tmp_path / "saved", model)(images), compressed(images))


def test_a_convolution_with_a_forward_of_its_own_stays_dense(images):
    """Bug: what it did was lost."""
    model = separable()
    model[3].forward = types.MethodType(lambda self, x: 2 * nn.Conv2d.forward(self, x), model[3])
    compressed, layer = lossless(model, images)
    assert (layer.structure, layer.reason) == ("dense", "has a forward of its own")
    assert torch.equal(compressed(images), model(images))
    plan = gdws.plan(network(), [images], gdws.Macs(0.5), "uniform")
    with pytest.raises(GdwsError, match=r"replaces 3 by gdws \(has a forward of its own\): expected it to stay dense"):
        gdws.apply(model, plan)


def test_a_network_whose_copy_would_run_the_original_is_refused(images):
    model = network()
    inner = model.forward
    model.forward = lambda x: 2 * inner(x)
    with pytest.raises(GdwsError, match=r"runs no nn.Conv2d, since the model has a forward of its own"):
        gdws.plan(model, [images], gdws.Macs(0.5), "uniform")


@pytest.mark.parametrize("wrap", [lambda scripted: scripted, nn.Sequential])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_by_its_name(images, wrap):
    with pytest.raises(GdwsError, match="is or holds TorchScript: expected what it was made from"):
        gdws.plan(wrap(torch.jit.trace(network(), images[:1])), [images], gdws.Macs(0.5), "uniform")


class Named(nn.Module):
    """Calls its convolutions by the name of their input."""

    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x):
        for layer in self.layers:
            x = layer(input=x)
        return x


@pytest.mark.parametrize("method", [METHOD, gdws.Paper(attack=None), gdws.Uniform()])
def test_a_convolution_may_be_called_by_the_name_of_its_input(images, method):
    """Bug: IndexError."""
    model = Named().eval()
    compressed = gdws.compress(model, [images], gdws.Macs(0.5), method)
    plain = gdws.compress(model.layers, [images], gdws.Macs(0.5), method)
    assert gdws.plan_of(compressed).macs <= 0.5
    assert torch.equal(compressed(images), plain(images))
    assert len(gdws.sensitivity(model, [images])) == 2


# ------------------------------------------------------------------------------------------------ threads


def in_threads(count, work):
    """What `work` gives in so many threads at once; the first exception is raised."""
    found, start = {}, threading.Barrier(count)

    def run(index):
        try:
            start.wait()
            found[index] = work(index)
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in found.values():
        if isinstance(result, BaseException):
            raise result
    return [found[index] for index in range(count)]


@pytest.mark.parametrize("method", [METHOD, gdws.Paper(attack=ATTACK)])
def test_threads_that_compress_one_model_get_what_one_gets(images, method):
    """Bug: four threads planning one model got four different plans."""
    model = network()
    wanted = gdws.compress(model, [images], gdws.Macs(0.4), method)
    for found in in_threads(4, lambda _: gdws.compress(model, [images], gdws.Macs(0.4), method)):
        assert gdws.plan_of(found) == gdws.plan_of(wanted)
        assert same(found, wanted)
    assert all(not module._forward_hooks for module in model.modules())


class Served(nn.Module):
    """Notes whether anybody changes its flags, and whom its passes serve."""

    def __init__(self):
        super().__init__()
        self.layers, self.dropout = network(), nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.layers(x))


@pytest.mark.parametrize("training", [False, True])
def test_a_model_can_be_served_meanwhile(images, training):
    """Bugs: its passes were counted among those of the calibration, which crashed; and its modules' flags changed under it."""
    model = Served().train(training)
    flags = [module.training for module in model.modules()]
    wanted, seen, done = model.layers.eval()(images), [], threading.Event()
    model.train(training)
    hooked = model.layers[3].register_forward_hook(lambda module, inputs, output: seen.append(module.training))

    def serve(index):
        if index:
            try:
                for _ in range(2):
                    gdws.compress(model, [images], gdws.Macs(0.4), METHOD)
                    gdws.sensitivity(model, [images])
                return None
            finally:
                done.set()
        answers = []
        while not done.is_set():
            assert [module.training for module in model.modules()] == flags
            time.sleep(0.001)  # a loop that holds the GIL makes the other thread wait 5 ms at each operation
            if not training:
                answers.append(model(images))
        return answers

    answers, _ = in_threads(2, serve)
    hooked.remove()
    assert all(torch.equal(answer, wanted) for answer in answers)
    assert all(not module._forward_hooks for module in model.modules())
    assert [module.training for module in model.modules()] == flags


class Remembering(nn.Module):
    """Keeps what its last pass gave, a tensor with a graph of gradients, under names that come and go."""

    def __init__(self):
        super().__init__()
        self.layers, self.passes = network(), 0

    def forward(self, x):
        self.passes += 1
        vars(self).pop(f"seen{self.passes - 2}", None)
        seen = self.layers(x)
        setattr(self, f"seen{self.passes}", seen)
        return seen


def test_a_model_that_remembers_its_passes_can_be_served_meanwhile(images):
    model, done = Remembering().eval(), threading.Event()

    def work(index):
        try:
            while index and not done.is_set():
                model(images[:1])
            return [] if index else [gdws.network_cost(model, images).macs for _ in range(50)]
        finally:
            done.set()

    found, _ = in_threads(2, work)
    assert set(found) == {gdws.network_cost(network(), images).macs}


def test_tensors_with_a_graph_are_copied_wherever_a_model_keeps_them(images):
    """Bug: PyTorch copies none of them. Those in lists were not found, nor those that a pass had just put there."""
    model = network().eval()
    model.seen = [model(images)]
    copied = own_copy(model)
    assert torch.equal(copied.seen[0], model.seen[0])
    assert copied.seen[0] is not model.seen[0]


def test_precision_is_what_it_was_after_threads_that_overlap():
    """Bug: the flags are PyTorch's, for all threads: the first to leave allowed TF32 to the others."""
    from gdws.core.execution import full_precision

    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    first, second = threading.Event(), threading.Event()

    def work(index):
        if index == 0:
            with full_precision():
                first.set()
                assert second.wait(10)
        else:
            assert first.wait(10)
            with full_precision(tf32=True):
                second.set()
                assert not torch.backends.cudnn.allow_tf32
            with full_precision(), full_precision(tf32=True):
                pass

    in_threads(2, work)
    assert before == (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    with full_precision(tf32=True):
        assert torch.backends.cudnn.allow_tf32
        with full_precision():
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    assert before == (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)


# ------------------------------------------------------------------------------------------------ randomness


class Noisy(nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.layers, self.noise = network(), noise

    def forward(self, x):
        return self.noise(self.layers(x))


NOISES = {
    "dropout left on": lambda x: F.dropout(x, 0.2, training=True),
    "noise": lambda x: x + 0.1 * torch.randn_like(x),
    "rare noise": lambda x: torch.where(torch.rand(len(x), 1) < 0.2, torch.zeros_like(x), x),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    "step",
    [
        lambda model, images: gdws.calibrate(model, [images], METHOD),
        lambda model, images: gdws.plan(model, [images], gdws.Macs(0.5), "uniform"),
        lambda model, images: gdws.compress(model, [images], gdws.Macs(0.5), "paper"),
    ],
)
def test_a_network_that_answers_at_random_is_refused(images, noise, step):
    """Bug: it was planned without a word."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with pytest.raises(GdwsError, match=r"answers the same images differently when asked again, by .*is dropout left on"):
            step(Noisy(NOISES[noise]).eval(), images)


def test_an_evaluation_of_a_network_that_answers_at_random_says_so(images):
    """Bug: a number came out of it without a word."""
    batches = [(images, torch.zeros(12, dtype=torch.int64))] * 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="model answers the same images differently when asked again") as told:
            gdws.evaluate(Noisy(NOISES["noise"]).eval(), batches)
    assert len(told) == 1
