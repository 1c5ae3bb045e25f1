"""What torch.compile is given computes what the network does; what it makes of it is tested on a GPU (test_gpu)."""

import copy

import pytest
import torch
from torch import nn
from torch._inductor.runtime.benchmarking import benchmarker
from torch.nn import functional as F

import gdws
from gdws import data, models
from gdws.core.errors import GdwsError
from gdws.core.sites import find_convolutions, replace_modules
from gdws.deploy import inductor
from gdws.deploy.autotune import FixedSize, autotune, check_logits, prepare_graph, torch_compile
from gdws.deploy.fx.fold_batchnorm import NORM
from gdws.deploy.inductor import MAX_AUTOTUNE
from gdws.models import zoo
from gdws.structures import STRUCTURES

CUDNN = torch.ops.gdws.conv2d.default
CONV = torch.ops.aten.conv2d.default


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
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
    )


def test_a_prepared_network_computes_what_it_did(network):
    x = torch.rand(4, 3, 17, 19)
    before = copy.deepcopy(network.state_dict())
    made = prepare_graph(network, x)
    with torch.no_grad():
        assert torch.allclose(made(x), network(x), rtol=1e-4, atol=1e-4)
        assert torch.allclose(made(x[:1]), network(x[:1]), rtol=1e-4, atol=1e-4)
    assert not list(made.graph.find_nodes(op="call_function", target=NORM))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet20", "vgg16"])
def test_networks_of_the_zoo_compute_what_they_did(name):
    """Groups, other activations, sums after products, pools."""
    torch.manual_seed(0)
    network, x = zoo.build(name), torch.rand(2, 3, 32, 32)
    made = prepare_graph(network, x)
    with torch.no_grad():
        expected = network(x)
        for given in (x, x.to(memory_format=torch.channels_last)):
            assert (made(given) - expected).norm() < 1e-4 * expected.norm()


def test_in_half_precision_it_is_as_near_as_pytorch_s_own():
    """float16 rounds on the way either way: neither may be much further from float32."""
    model, images = models.embedded(), data.load("demo", "test").take(8).images.float() / 255
    compressed = gdws.compress(model, [images], gdws.Macs(0.6), gdws.Calibrated(structures="vertical", attack=None))
    with torch.no_grad():
        for network in (model, compressed):
            exact = network(images)
            theirs = copy.deepcopy(network).half()(images.half()).float()
            ours = prepare_graph(network, images).half()(images.half()).float()
            assert (ours - exact).norm() < 2 * (theirs - exact).norm()
            check_logits(ours, exact, "float16")


def test_cudnn_gets_what_is_dense():
    """But for products and the first convolution, with each ReLU that alone reads one; of pairs, nothing."""
    images = torch.rand(2, 3, 32, 32)
    dense = prepare_graph(models.embedded(), images)
    given = dense.graph.find_nodes(op="call_function", target=CUDNN)
    assert len(given) == 14
    assert sum(node.args[-1] for node in given) == 7  # one for each block
    left = dense.graph.find_nodes(op="call_function", target=CONV)
    assert [tuple(node.args[1].meta["val"].shape[2:]) for node in left] == [(1, 3), (1, 1), (1, 1)]
    model = models.embedded()
    convs = [site.conv for site in find_convolutions(model, images) if site.reason is None]
    replace_modules(model, {conv: STRUCTURES["vertical"].build_empty(conv, (8,)) for conv in convs})
    pairs = prepare_graph(model, images)
    assert not pairs.graph.find_nodes(op="call_function", target=CUDNN)
    assert len(pairs.graph.find_nodes(op="call_function", target=CONV)) == 1 + 2 * 14 + 2


def test_a_model_may_put_other_things_together():
    """Rows of numbers, as where images become tokens, and images."""

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.rand(1, 1, 8))

        def forward(self, x):
            x = self.conv(x)
            x = torch.cat([x, x.relu()], 1).permute(0, 2, 3, 1)[..., :8]
            tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(1, 2)], 1)
            return tokens.permute(0, 2, 1).mean(2)

    torch.manual_seed(0)
    network, x = Tokens().eval(), torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        made = prepare_graph(network, x)
        assert torch.allclose(made(x), network(x), rtol=1e-4, atol=1e-5)
        torch._dynamo.reset()
        whole = torch.compile(made, backend="aot_eager", dynamic=False, fullgraph=True)
        assert torch.allclose(whole(x), network(x), rtol=1e-4, atol=1e-5)


class Reading(nn.Module):
    """One of several things that follow a convolution, or stand before it."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.conv = kind, nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b = nn.Parameter(torch.randn(1, 8, 6, 4)), nn.Parameter(torch.randn(1, 8, 6, 4))
        self.register_buffer("number", torch.tensor(200))

    def forward(self, x):
        if self.kind == "another type":
            x = x * torch.linspace(0, 1, 5, dtype=torch.float64).mean()
        y = F.conv2d(x, self.conv.weight * 0.3, padding=1) if self.kind == "weights" else self.conv(x)
        y = y.relu()
        if self.kind == "constants":
            y = y + (self.a + self.b)
        elif self.kind == "integers":
            y = torch.cat([y, ((x * 100).to(torch.uint8) + self.number).float()], 1)
        elif self.kind == "turned":
            return y.permute(0, 2, 3, 1).reshape(x.shape[0], -1)
        elif self.kind == "piled up":  # images on top of one another
            piled = x.permute(1, 0, 2, 3).reshape(1, 3, x.shape[0] * 6, 4)
            return F.avg_pool1d(self.conv(piled).mean(3), 6)[0].T
        return y.mean((2, 3))


@pytest.mark.parametrize("kind", ["constants", "weights", "integers", "another type", "turned", "piled up"])
def test_what_networks_may_do_with_maps(kind):
    """For batches of any size, and as torch.compile sees it."""
    torch.manual_seed(0)
    network = Reading(kind).eval()
    made = prepare_graph(network, torch.rand(2, 3, 6, 4))
    torch._dynamo.reset()
    whole = torch.compile(made, backend="aot_eager", dynamic=False, fullgraph=True)
    with torch.no_grad():
        for batch in (1, 2, 3):
            x = torch.rand(batch, 3, 6, 4)
            assert torch.allclose(made(x), network(x), rtol=1e-4, atol=1e-5)
        assert torch.allclose(whole(x), network(x), rtol=1e-4, atol=1e-5)


class Making(nn.Module):
    """Makes tensors like others, and names a type."""

    def __init__(self):
        super().__init__()
        self.conv, self.weight = nn.Conv2d(3, 16, 3), nn.Parameter(torch.rand(17, 5))

    def forward(self, x):
        y = self.conv(x.float()).mean((2, 3)).to(x.dtype)
        more = torch.ones(y.shape[0], 1, device=y.device, dtype=y.dtype) * torch.arange(3, device=y.device).float().mean()
        return (torch.cat([y, more], 1) @ self.weight).float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_what_a_model_makes_is_made_in_the_type_asked_for(dtype):
    torch.manual_seed(0)
    model, x = Making().eval(), torch.rand(3, 3, 9, 9)
    made = prepare_graph(model, x, "cpu", dtype)
    assert made(x.to(dtype)).dtype == dtype
    assert torch.allclose(made(x.to(dtype)).float(), model(x), rtol=1e-2 if dtype == torch.float16 else 1e-5)
    assert model.weight.dtype == torch.float32
    there = prepare_graph(model, x, "meta", dtype)
    whole = torch.compile(there, backend="aot_eager", dynamic=False, fullgraph=True)
    assert whole(x.to("meta", dtype)).device.type == "meta"


def test_views_of_maps_are_kept_whatever_their_layout():
    """As in LeNet: the first convolution, of few channels, gives channels-last memory."""

    class Viewed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3), nn.Linear(16, 4)

        def forward(self, x):
            y = F.max_pool2d(F.relu(self.two(F.max_pool2d(F.relu(self.one(x)), 2))), 2)
            return self.head(y.view(y.size(0), -1))

    torch.manual_seed(0)
    model, x = Viewed().eval(), torch.rand(4, 3, 12, 14)
    with torch.no_grad():
        made = prepare_graph(model, x)
        assert torch.allclose(made(x), model(x), atol=1e-5)
        assert torch.allclose(made(x.to(memory_format=torch.channels_last)), model(x), atol=1e-5)


def test_other_images_than_it_was_made_for_are_refused():
    ways = []

    class Flat(nn.Module):
        def forward(self, x):
            ways.append(type(benchmarker).benchmark_gpu)
            return x.flatten(1)

    network = FixedSize(Flat(), (3, 4, 4))
    for batch in (*range(1, 9), 3):
        assert network(torch.rand(batch, 3, 4, 4)).shape == (batch, 48)
    assert set(ways[:8]) == {inductor._timed}  # those that are compiled
    assert ways[8] is not inductor._timed
    for _ in range(2):
        with pytest.raises(GdwsError, match=r"the batch has 9 images: expected one of 1, 2, 3, 4, 5, 6, 7, 8, since"):
            network(torch.rand(9, 3, 4, 4))
    with pytest.raises(GdwsError, match=r"the images are \(2, 3, 8, 4\): expected \(batch, 3, 4, 4\)"):
        network(torch.rand(2, 3, 8, 4))


def test_logits_that_are_not_the_models_are_refused():
    wanted = torch.randn(4, 10)
    check_logits(wanted * 1.005, wanted, "float16")
    for wrong in (wanted * 1.02, wanted.roll(1, 0), wanted * torch.nan):
        with pytest.raises(
            GdwsError, match=r"the logits in float16 are \S+ of their norm off the model's: expected at most 0.01"
        ):
            check_logits(wrong, wanted, "float16")
    with pytest.raises(GdwsError, match=r"expected at most 0.001"):
        check_logits(wanted * 1.005, wanted, "float32")


@pytest.mark.filterwarnings("ignore")  # torch.compile imports what is deprecated
def test_a_network_is_compiled_whole(network):
    """A Sequential is PyTorch's own class, whose call torch.compile leaves alone if it is asked by the module itself."""
    seen = []

    def backend(graph, inputs):
        seen.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    with pytest.MonkeyPatch.context() as patch:
        plain = torch.compile

        def compile(model, options, **others):
            plain(model, options=options)  # refuses options that there are not
            return plain(model, backend=backend, **others)

        patch.setattr(torch, "compile", compile)
        torch._dynamo.reset()
        made = torch_compile(network, MAX_AUTOTUNE)
        made(torch.rand(2, 3, 17, 19))
    assert len(seen) == 1
    assert seen[0] >= 8


def test_what_hooks_do_is_kept():
    """Weights that are computed before each call, and what is done with what a layer gives."""
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    network = noisy(nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4), *head))
    network[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.allclose(prepare_graph(network, x)(x), network(x), rtol=1e-4, atol=1e-5)


def test_without_a_gpu_it_says_so(network):
    with pytest.raises(GdwsError, match="the model is on cpu: expected a CUDA device"):
        autotune(network, torch.rand(2, 3, 17, 19))
    with pytest.raises(GdwsError, match="precision is 'int8': expected float32 or float16"):
        autotune(network, torch.rand(2, 3, 17, 19), "int8")
