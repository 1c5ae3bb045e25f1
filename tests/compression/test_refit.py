"""The one-pass refit against the slow way: layer after layer, each with a pass of its own, least squares by lstsq."""

import copy

import pytest
import torch
from torch import nn

import gdws
from gdws.compression import refit as refit_module
from gdws.core.progress import shown
from gdws.structures import STRUCTURES


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.a = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        x = x + self.b(torch.relu(self.norm(self.a(torch.relu(x)))))
        return self.head(x.mean((2, 3))) * 3


def calls_of(model, name, images):
    """Input and output at each call."""
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda m, i, o: seen.append((i[0], o)))
    with torch.no_grad():
        model(images)
    handle.remove()
    return seen


def slow_refit(model, compressed, names, clean, attacked):
    for name in names:
        layer = compressed.get_submodule(name)
        z = [layer.features(calls_of(compressed, name, x)[0][0]).detach() for x in (clean, attacked)]
        y = [
            calls_of(model, name, x)[0][1] - (0 if layer.bias is None else layer.bias[:, None, None]) for x in (clean, attacked)
        ]
        weight = refit_module.ATTACK_WEIGHT**0.5
        z, y = torch.cat([*z, weight * (z[1] - z[0])]), torch.cat([*y, weight * (y[1] - y[0])]).detach()
        outputs = layer.out_channels // layer.groups
        for group in range(layer.groups):
            kernels = layer.pointwise.shape[1]
            rows = slice(group * outputs, (group + 1) * outputs)
            a = z[:, group * kernels : (group + 1) * kernels].transpose(0, 1).flatten(1).T.double()
            b = y[:, rows].transpose(0, 1).flatten(1).T.double()
            ridge = (refit_module.RIDGE * a.square().sum(0)).sqrt()
            before = layer.pointwise.data[rows, :, 0, 0].T.double()
            stacked = torch.cat([a, torch.diag(ridge)]), torch.cat([b, ridge[:, None] * before])
            layer.pointwise.data[rows, :, 0, 0] = torch.linalg.lstsq(*stacked).solution.T.float()


@pytest.fixture
def setting():
    torch.manual_seed(0)
    model = Residual().eval()
    model.norm.running_mean.normal_()
    clean = torch.rand(12, 3, 9, 9)
    attacked = (clean + 0.03 * torch.randn(12, 3, 9, 9)).clamp(0, 1)
    made = gdws.plan(model, [clean], gdws.Macs(0.3), "uniform")
    return model, gdws.apply(model, made), clean, attacked


def test_one_pass_refits_like_one_pass_a_layer(setting):
    model, compressed, clean, attacked = setting
    slow, fast = copy.deepcopy(compressed), copy.deepcopy(compressed)
    slow_refit(model, slow, ["a", "b"], clean, attacked)
    refit_module.refit(model, {"a": fast.a, "b": fast.b}, [81, 81], clean, attacked)
    assert not torch.allclose(fast.a.pointwise, compressed.a.pointwise)
    for name in ("a", "b"):
        assert torch.allclose(fast.get_submodule(name).pointwise, slow.get_submodule(name).pointwise, atol=1e-4)
    before, after = ((net(clean) - model(clean)).norm() for net in (compressed, fast))
    assert float(after.detach()) < 0.7 * float(before.detach())


def test_refit_leaves_the_model_alone_and_survives_dead_features_and_one_image(setting):
    model, compressed, clean, attacked = setting
    state = copy.deepcopy(model.state_dict())
    compressed.a.depthwise.data[0] = 0
    refit_module.refit(model, {"a": compressed.a, "b": compressed.b}, [81, 81], clean[:1], attacked[:1])
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert isinstance(model.a, nn.Conv2d)
    assert bool(compressed(clean).isfinite().all())


def test_memory_bound_limits_the_images(setting, monkeypatch):
    model, compressed, clean, attacked = setting
    few = copy.deepcopy(compressed)
    refit_module.refit(model, {"a": few.a, "b": few.b}, [81, 81], clean[:3], attacked[:3])
    monkeypatch.setitem(refit_module.LARGEST_MAP, "cpu", 4 * 4 * 8 * 81 * 3)
    refit_module.refit(model, {"a": compressed.a, "b": compressed.b}, [81, 81], clean, attacked)
    assert torch.equal(few.b.pointwise, compressed.b.pointwise)


class Recurrent(nn.Module):
    """One convolution called several times, by turns with one that is not, on maps of one size or of two."""

    def __init__(self, times, pooled):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.steps = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1)] * times)
        self.between, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head, self.pooled = nn.Linear(16, 4), pooled

    def forward(self, x):
        x = torch.relu(self.first(x))
        for call, step in enumerate(self.steps):
            x = torch.relu(step(x))
            if call == 0:
                x = torch.relu(self.between(nn.functional.avg_pool2d(x, 2) if self.pooled else x))
        return self.head(torch.relu(self.last(x)).mean((2, 3))) * 3


@pytest.mark.parametrize(("times", "pooled"), [(2, False), (3, False), (2, True)])
def test_a_layer_that_is_called_again_is_fitted_to_all_its_calls(times, pooled):
    torch.manual_seed(0)
    model = Recurrent(times, pooled).eval()
    clean = nn.functional.interpolate(torch.rand(40, 3, 6, 6), 12, mode="bilinear")
    attacked = (clean + 0.03 * torch.randn_like(clean)).clamp(0, 1)
    compressed = gdws.apply(model, gdws.plan(model, [clean], gdws.Macs(0.5), "uniform"))
    apart = copy.deepcopy(compressed)
    apart.steps = nn.ModuleList(copy.deepcopy(step) for step in compressed.steps)
    model_apart = copy.deepcopy(model)
    model_apart.steps = nn.ModuleList(copy.deepcopy(step) for step in model.steps)

    def errors(original, refitted):
        """Of the output of each step, and of the network, as shares of what they are apart from their means."""
        steps = dict.fromkeys(name for name, module in original.named_modules() if name.startswith("steps."))
        layers = {name: refitted.get_submodule(name) for name in (*steps, "between", "last")}
        refit_module.refit(original, layers, [144] * len(layers), clean, attacked)
        return [
            float((got - wanted).norm() / (wanted - wanted.mean(0)).norm())
            for name in (*steps, "")
            for (_, got), (_, wanted) in zip(*(calls_of(net, name, clean) for net in (refitted, original)), strict=True)
        ]

    together, separately = errors(model, compressed), errors(model_apart, apart)
    assert len(together) == len(separately) == times + 1
    assert all(ours < 1.5 * each for ours, each in zip(together, separately, strict=True))  # fitted to the first: 8x and more


class Parts(nn.Module):
    """The two halves of each picture as one batch: by pictures, or all left halves before all right ones."""

    def __init__(self, by_pictures):
        super().__init__()
        self.first, self.a, self.b = (nn.Conv2d(inputs, 8, 3, padding=1) for inputs in (3, 8, 8))
        self.head, self.by_pictures = nn.Linear(8, 4), by_pictures

    def forward(self, x):
        parts = torch.stack(x.chunk(2, 3), 1 if self.by_pictures else 0)
        y = self.b(torch.relu(self.a(torch.relu(self.first(parts.flatten(0, 1)))))).mean((2, 3))
        y = y.unflatten(0, parts.shape[:2])
        return self.head(y[:, 0] - y[:, 1] if self.by_pictures else y[0] - y[1])


@pytest.mark.parametrize("is_attacked", [False, True])
def test_parts_of_samples_are_fitted_in_whatever_order_they_lie(is_attacked):
    torch.manual_seed(0)
    by_pictures = Parts(True).eval()
    by_sides = Parts(False).eval()
    by_sides.load_state_dict(by_pictures.state_dict())
    clean = nn.functional.interpolate(torch.rand(20, 3, 4, 8), (9, 18), mode="bilinear")
    attacked = (clean + 0.03 * torch.randn_like(clean)).clamp(0, 1)
    made = gdws.plan(by_pictures, [clean], gdws.Macs(0.5), "uniform")
    fitted = []
    for model in (by_pictures, by_sides):
        compressed = gdws.apply(model, made)
        layers = {name: compressed.get_submodule(name) for name in ("a", "b")}
        refit_module.refit(model, layers, [81, 81], clean, attacked if is_attacked else None)
        fitted.append(compressed)
    for name in ("a", "b"):
        one, other = (each.get_submodule(name).pointwise for each in fitted)
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


class Regions(Parts):
    """The first layer sees pictures, the second some regions of a few of them."""

    def forward(self, x):
        y = self.a(torch.relu(self.first(x)))
        chosen = torch.cat([y[:1, :, :6, :6], y[:, :, 3:, 3:][:, :, :6, :6]])
        return self.head(y.mean((2, 3)) + self.b(chosen).mean((2, 3))[1:])


def test_a_layer_whose_maps_nobody_can_tell_apart_stays_as_it_is():
    torch.manual_seed(0)
    model, clean = Regions(True).eval(), torch.rand(20, 3, 9, 9)
    compressed = gdws.apply(model, gdws.plan(model, [clean], gdws.Macs(0.5), "uniform"))
    before = copy.deepcopy(compressed)
    refit_module.refit(model, {"a": compressed.a, "b": compressed.b}, [81, 36], clean, None)
    assert not torch.equal(compressed.a.pointwise, before.a.pointwise)
    assert torch.equal(compressed.b.pointwise, before.b.pointwise)


def test_the_bar_of_a_refit_goes_on_with_every_layer():
    """Bug: it stood at 0/1 for minutes."""

    class Counted:
        def __init__(self):
            self.totals, self.steps, self.stopped = [], 0, 0

        def start(self, label, total):
            self.totals.append(total)

        def advance(self, note):
            self.steps += 1

        def stop(self):
            self.stopped += 1

    torch.manual_seed(0)
    model, images = Residual().eval(), torch.rand(4, 3, 8, 8)
    statistics = gdws.calibrate(model, [images], gdws.Calibrated(attack=None))
    made = gdws.plan(model, statistics, gdws.Macs(0.4))
    replaced = {layer.name: layer for layer in made.layers if layer.structure != "dense"}
    layers = {
        name: STRUCTURES[layer.structure].build(
            model.get_submodule(name),
            layer.ranks,
            statistics.curves[name][layer.structure],
            statistics.layers[name].metrics(),
        )
        for name, layer in replaced.items()
    }
    display = Counted()
    with shown(display):
        refit_module.refit(model, layers, [64] * len(layers), images, images)
    assert (display.totals, display.steps, display.stopped) == ([len(layers)], len(layers), 1)
    assert len(layers) == 2
