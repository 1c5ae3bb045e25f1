"""What torch.compile is given computes what the network does; what it makes of it is tested on a GPU (test_gpu)."""

import copy

import pytest
import torch
from torch import nn

import gdws
from gdws import data, models
from gdws.autotuned import TRIED, Filled, Scaled, autotuned, compiled, filled, scaled
from gdws.errors import GdwsError


def noisy(network):
    """Statistics and weights of a BatchNorm that has seen something."""
    random = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
            module.running_mean.uniform_(-1, 1, generator=random)
            module.running_var.uniform_(0.1, 3, generator=random)
            if module.affine:
                module.weight.data.uniform_(-2, 2, generator=random)
                module.bias.data.uniform_(-1, 1, generator=random)
    return network.eval()


@pytest.fixture(scope="module")
def network():
    """Every kind of BatchNorm and of convolution that has to be told apart."""
    torch.manual_seed(0)
    shared = nn.BatchNorm2d(24)
    return noisy(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
            nn.BatchNorm2d(8, affine=False),
            nn.Conv2d(8, 24, (1, 3), stride=2, dilation=(1, 2), padding="valid"),
            shared,
            nn.Conv2d(24, 24, 3, groups=4),
            shared,
            nn.BatchNorm2d(24, track_running_stats=False),
            nn.Conv2d(24, 5, 1),
        )
    ).double()


def test_a_prepared_network_computes_what_it_did(network):
    x = torch.randn(4, 3, 17, 19, dtype=torch.float64)
    before = copy.deepcopy(network.state_dict())
    made = filled(scaled(network))
    assert torch.allclose(made(x), network(x), rtol=1e-10, atol=1e-10)
    assert sum(isinstance(module, Scaled) for module in made.modules()) == 2
    assert sum(isinstance(module, Filled) for module in made.modules()) == 2
    assert sum(isinstance(module, nn.BatchNorm2d) for module in made.modules()) == 1  # which has no statistics
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(isinstance(module, Scaled | Filled) for module in network.modules())


def test_in_half_precision_it_is_as_near_as_pytorch_s_own():
    """float16 rounds on the way either way: neither may be much further from float32."""
    model, images = models.embedded(), data.load("demo", "test").take(8).images.float() / 255
    compressed = gdws.apply(model, gdws.plan(model, [images], gdws.Macs(0.6), structures="project", attack=None))
    with torch.no_grad():
        for network in (model, compressed):
            exact = network(images)
            theirs = copy.deepcopy(network).half()(images.half()).float()
            ours = filled(scaled(network)).half()(images.half()).float()
            assert (ours - exact).norm() < 2 * (theirs - exact).norm()
            assert (ours - exact).norm() < 0.01 * exact.norm()


def test_a_network_is_compiled_whole(network):
    """A Sequential is PyTorch's own class, whose call torch.compile leaves alone if it is asked by the module itself."""
    seen = []

    def backend(graph, inputs):
        seen.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    with pytest.MonkeyPatch.context() as patch:
        plain = torch.compile
        patch.setattr(torch, "compile", lambda model, options, dynamic: plain(model, backend=backend, dynamic=dynamic))
        torch._dynamo.reset()
        made = compiled(filled(scaled(network)), TRIED)
        made(torch.rand(2, 3, 17, 19, dtype=torch.float64))
    assert len(seen) == 1
    assert seen[0] >= 8


def test_what_hooks_do_is_kept():
    """Weights that are computed before each call, and what is done with what a layer gives."""
    torch.manual_seed(0)
    network = noisy(nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)))
    network[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.allclose(filled(scaled(network))(x), network(x))


def test_without_a_gpu_it_says_so(network):
    with pytest.raises(GdwsError, match="the model is on cpu: expected a CUDA device"):
        autotuned(network, torch.rand(2, 3, 17, 19))
    with pytest.raises(GdwsError, match="precision is 'int8': expected float32 or float16"):
        autotuned(network, torch.rand(2, 3, 17, 19), "int8")
