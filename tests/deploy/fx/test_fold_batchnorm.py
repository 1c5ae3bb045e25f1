"""A network whose BatchNorms are folded computes what it did, with as few operations as there can be."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from gdws.deploy.fx.fold_batchnorm import NORM, fold_into_next, fold_into_previous, split_into_scale_and_shift
from gdws.deploy.fx.graph import convolution_arguments, functional_graph, value_of
from gdws.deploy.tracing import trace_model

aten = torch.ops.aten


def norm(channels, low=0.2, **others):
    """A BatchNorm that has seen something, its scales from `low` to 2."""
    made = nn.BatchNorm2d(channels, **others)
    if made.affine:
        nn.init.uniform_(made.weight, low, 2)
        nn.init.uniform_(made.bias, -1, 1)
    if made.running_var is not None:
        nn.init.uniform_(made.running_mean, -1, 1)
        nn.init.uniform_(made.running_var, 0.3, 3)
    return made


class Block(nn.Module):
    """A pre-activation block with what folding has to tell apart: who reads a convolution, and who reads an activation."""

    def __init__(self, low, bias, groups):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first, self.second, self.last = norm(8, low), norm(8, low, affine=bias), norm(8, low)
        self.one = nn.Conv2d(8, 8, 3, 2, 1, bias=bias, groups=groups)
        self.two = nn.Conv2d(8, 8, (1, 3), padding=(0, 1))
        self.shortcut = nn.Conv2d(8, 8, 1, 2, bias=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        a = F.relu(self.first(x), inplace=True)
        y = self.two(F.relu(self.second(self.one(a)))) + self.shortcut(a) + x[..., ::2, ::2]
        return self.head(F.relu(self.last(y)).mean((2, 3)))


def folded(network, x):
    module = functional_graph(trace_model(network, x))
    counts = []
    for step in (lambda module: None, fold_into_previous, fold_into_next, split_into_scale_and_shift):
        step(module)
        counts.append(Counter(node.target for node in module.graph.nodes))
    return module, counts


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([-1.0, 0.2]), st.booleans(), st.sampled_from([1, 2]), st.integers(0, 99))
def test_it_computes_what_it_did(low, bias, groups, seed):
    torch.manual_seed(seed)
    network = Block(low, bias, groups).eval()
    x = torch.rand(3, 3, 8, 8)
    module, (before, back, ahead, after) = folded(network, x)
    positive = bool((network.first.weight > 0).all())
    assert before[NORM] == 3
    assert back[NORM] == 2  # the second, which alone reads its convolution
    assert ahead[NORM] == (1 if positive and groups == 1 else 2)  # the first, which convolutions read; the last is averaged
    assert after[NORM] == 0
    with torch.no_grad():
        for images in (x, torch.rand(1, 3, 8, 8)):
            assert torch.allclose(module(images), network(images), rtol=1e-4, atol=1e-5)


def test_weights_and_sums_are_what_the_formulas_say():
    torch.manual_seed(0)
    network = nn.Sequential(norm(4), nn.ReLU(), nn.Conv2d(4, 6, 3, bias=False), norm(6), nn.Flatten(), nn.Linear(24, 2)).eval()
    module, _ = folded(network, torch.rand(2, 4, 4, 4))
    s, t = ((n.weight / (n.running_var + n.eps).sqrt()).detach() for n in (network[0], network[3]))
    (conv,) = module.graph.find_nodes(op="call_function", target=aten.conv2d.default)
    _, weight, bias, *_ = convolution_arguments(conv)
    expected = network[2].weight.detach() * s.view(1, -1, 1, 1) * t.view(-1, 1, 1, 1)
    assert torch.allclose(value_of(module, weight), expected)
    assert torch.allclose(value_of(module, bias), network[3].bias - network[3].running_mean * t)
    (added,) = module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    assert torch.allclose(value_of(module, added.args[1]).view(-1), network[0].bias / s - network[0].running_mean)


@pytest.mark.parametrize("scale", [1e-7, 1e-4, 1e-3, 1.0])
@pytest.mark.parametrize("shifted", [True, False])
def test_small_scales_do_not_cost_precision_in_float16(scale, shifted):
    """A scale of 1e-4 in the weights would leave them a few bits, with a bias, which makes t / s large, and without."""
    torch.manual_seed(0)
    layers = norm(32), nn.ReLU(), nn.Conv2d(32, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    network, x = nn.Sequential(*layers).eval(), torch.rand(4, 32, 6, 6)
    with torch.no_grad():
        network[0].weight.mul_(scale)
        network[0].bias.mul_(float(shifted))
        network[2].weight.mul_(0.2)
        network[2].bias.zero_()
        module, (*_, after) = folded(network, x)
        wanted = network(x)
        assert torch.allclose(module(x), wanted, atol=1e-6)
        theirs = (network.half()(x.half()) - wanted).norm()
        assert (module.half()(x.half()) - wanted).norm() < 2 * theirs + 1e-3 * wanted.norm()
    assert after[aten.mul.Tensor] == (scale < 1)


def test_types_that_a_model_mixes_are_kept():
    """What autocast makes in bfloat16 is not that of the statistics."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3), norm(8), nn.Conv2d(8, 4, 3)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.norm(self.conv(x)).relu()
            return self.last(y.float()).mean((2, 3))

    torch.manual_seed(0)
    network, x = Mixed().eval(), torch.rand(2, 3, 9, 9)
    module, _ = folded(network, x)
    with torch.no_grad():
        assert torch.allclose(module(x), network(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shared", ["norm", "convolution"])
def test_what_is_used_twice_keeps_its_weights(shared):
    """Each use is folded by itself."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(2)])
            self.norms = nn.ModuleList([norm(4) for _ in range(2)])
            if shared == "norm":
                self.norms[1] = self.norms[0]
            else:
                self.convs[1] = self.convs[0]

        def forward(self, x):
            for conv, one in zip(self.convs, self.norms, strict=True):
                x = F.relu(one(conv(x)))
            return x.mean((2, 3))

    torch.manual_seed(0)
    network, x = Twice().eval(), torch.rand(2, 4, 6, 6)
    module, (*_, after) = folded(network, x)
    assert after[NORM] == after[aten.mul.Tensor] == 0
    with torch.no_grad():
        assert torch.allclose(module(x), network(x), rtol=1e-4, atol=1e-5)


def test_batches_that_norm_themselves_are_left_alone():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), norm(4, track_running_stats=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    x = torch.rand(3, 3, 6, 6)
    module, _ = folded(network, x)
    assert torch.allclose(module(x), network(x), atol=1e-6)
