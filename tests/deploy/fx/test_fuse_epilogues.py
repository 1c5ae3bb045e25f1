"""A network whose loops run in other orders computes what it did, and what follows factorized pairs is fused into them."""

import re
from collections import Counter

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

from gdws import models
from gdws.core.sites import find_convolutions, replace_modules
from gdws.deploy.autotune import prepare_graph
from gdws.deploy.fx.fuse_epilogues import fuse_epilogues, keep_axes_apart, materialize, materialize_in_memory_order
from gdws.deploy.fx.graph import functional_graph
from gdws.deploy.inductor import LOOPS_IN_AXIS_ORDER
from gdws.deploy.tracing import trace_model
from gdws.structures import STRUCTURES

CONV, ADD = torch.ops.aten.conv2d.default, torch.ops.aten.add.Tensor


class Between(nn.Module):
    """What may stand between convolutions: sums with several uses, one number for each channel, column or pixel, others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.tall, self.wide = nn.Conv2d(8, 6, (3, 1), padding=(1, 0)), nn.Conv2d(6, 8, (1, 3), padding=(0, 1))
        self.strided = nn.Conv2d(8, 8, (1, 5), (1, 2), (0, 2), groups=2)
        self.lower = nn.Conv2d(8, 8, (1, 3), (2, 1), (0, 1))
        self.act = nn.ReLU(inplace=True)
        self.register_buffer("channels", torch.randn(8, 1, 1))
        self.register_buffer("columns", torch.randn(10))
        self.register_buffer("lines", torch.randn(12, 1))
        self.register_buffer("pixels", torch.randn(1, 8, 12, 10))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x * 2 - 1)
        y = self.act(self.wide(self.tall(x)) * self.channels + 1)
        y = x + y - self.wide(self.tall(y)) / 2  # two uses of y
        y = y * self.columns
        z = y + self.pixels
        z = F.relu(z * self.lines) + self.wide(self.tall(z)) / x.shape[0]
        z = F.hardswish(z) * torch.sigmoid(z.mean((2, 3), keepdim=True))
        return self.head(F.relu(self.lower(self.strided(z) - y[..., ::2])).mean((2, 3)))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("chosen", ["all", "none", "tall"])
def test_it_computes_what_it_did(chosen, batch):
    """Also as torch.compile sees it, which is told where values lie; whichever convolutions are chosen."""
    network, x = Between().eval(), torch.rand(batch, 3, 12, 10)
    made = functional_graph(trace_model(network, torch.rand(2, 3, 12, 10)))
    convs = made.graph.find_nodes(op="call_function", target=CONV)
    taken = {"all": convs, "none": [], "tall": [conv for conv in convs if conv.args[1].meta["val"].shape[2:] == (3, 1)]}
    fuse_epilogues(made, taken[chosen])
    made.graph.lint()
    kinds = Counter(node.target for node in made.graph.nodes)
    fused = [bool(kinds[kind]) for kind in (keep_axes_apart, materialize)]
    assert fused == [chosen == "all"] * 2
    assert kinds[materialize_in_memory_order]
    with torch.no_grad():
        expected = network(x)
        assert torch.allclose(made(x), expected, rtol=1e-5, atol=1e-6)
        assert torch.allclose(made(x.to(memory_format=torch.channels_last)), expected, rtol=1e-5, atol=1e-6)
        torch._dynamo.reset()
        whole = torch.compile(made, backend="aot_eager", dynamic=False, fullgraph=True)
        assert torch.allclose(whole(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore")  # torch.compile imports what is deprecated
@pytest.mark.parametrize("function", [keep_axes_apart, materialize, materialize_in_memory_order])
def test_the_order_in_which_torch_compile_goes_through_values(function):
    """Of the axes, with rows and columns apart, or of memory, which is one run through all values; in the code for a CPU."""
    options = {**LOOPS_IN_AXIS_ORDER, "fx_graph_cache": False, "cpp.simdlen": 1}  # the same code on every CPU
    maps = [torch.rand(2, 16, 8, 8).to(memory_format=torch.channels_last) for _ in range(2)]
    torch._dynamo.reset()
    network = torch.compile(lambda x, y: function((x + y).relu()), options=options)
    found, (code,) = run_and_get_code(network, *maps)
    loops = re.findall(r"for\(int64_t x\d+=.*?<static_cast<int64_t>\(([\dL]+)\)", code)
    assert [int(size.rstrip("L")) for size in loops] == (
        [2 * 16 * 8 * 8] if function is materialize_in_memory_order else [2, 16, 8, 8]
    )
    assert torch.equal(found, (maps[0] + maps[1]).relu())


def test_the_values_are_the_same():
    x = torch.randn(3, 5, 4, 6).to(memory_format=torch.channels_last)
    for same in (keep_axes_apart, materialize, materialize_in_memory_order):
        assert torch.equal(same(x), x)
        assert same(x.half()).dtype == torch.float16
    assert materialize_in_memory_order(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("structure", ["vertical", "horizontal", "project"])
def test_after_pairs_all_is_fused(structure):
    """Of a pre-activation network all but the normalisation of its input, as often as it has sums and ReLUs."""
    model, images = models.embedded(), torch.rand(3, 3, 32, 32)
    convs = [site.conv for site in find_convolutions(model, images) if site.reason is None]
    pairs = {conv: STRUCTURES[structure].build_empty(conv, (8,)) for conv in convs}
    for pair in pairs.values():
        for weight in pair.parameters():
            nn.init.normal_(weight, 0, weight[0].numel() ** -0.5)
    replace_modules(model, pairs)
    network = prepare_graph(model, images)
    with torch.no_grad():
        assert torch.allclose(network(images), model(images), rtol=1e-4, atol=1e-4)
    kinds = Counter(node.target for node in network.graph.nodes)
    assert kinds[materialize_in_memory_order] == 1
    relus, sums = 15, 7  # two ReLUs for each of seven blocks and one at the end; one sum for each block
    assert kinds[materialize] + kinds[keep_axes_apart] >= relus
    assert kinds[materialize] + kinds[keep_axes_apart] <= relus + sums


class Block(nn.Module):
    """Sums of what cuDNN computes and of the first convolution, of a product, and of a 1x1 convolution of some pixels."""

    def __init__(self):
        super().__init__()
        self.stem, self.dense = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.product, self.other = nn.Conv2d(16, 32, 1), nn.Conv2d(16, 32, 3, padding=1)
        self.short, self.strided = nn.Conv2d(32, 32, 1, 2), nn.Conv2d(32, 32, 3, 2, padding=1)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.dense(F.silu(x))
        x = self.product(x) + self.other(x)
        x = self.short(x) + self.strided(x)
        return F.max_pool2d(x, 2).mean((2, 3))


def test_what_can_be_fused():
    """A sum is fused into what can run last: not to the first convolution, before cuDNN's; products and pools go by memory."""
    torch.manual_seed(0)
    network, x = Block().eval(), torch.rand(2, 3, 8, 8)
    made = prepare_graph(network, x)
    with torch.no_grad():
        assert torch.allclose(made(x), network(x), rtol=1e-4, atol=1e-5)
    readers = [
        (node.target, {user.target for user in node.users})
        for node in made.graph.nodes
        if node.target in (ADD, torch.ops.aten.silu.default, torch.ops.aten.max_pool2d.default)
    ]
    assert readers == [
        (torch.ops.aten.silu.default, {keep_axes_apart}),
        (ADD, {materialize_in_memory_order}),
        (ADD, {materialize_in_memory_order}),
        (ADD, {keep_axes_apart}),
        (torch.ops.aten.max_pool2d.default, {materialize_in_memory_order}),
    ]
