"""A network whose values are gone through in other orders computes what it did, and what follows pairs is joined to them."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gdws import models
from gdws.autotuned import prepared
from gdws.export import traced
from gdws.folding import functional
from gdws.joining import as_maps, as_memory, by_rows_and_columns, join, laid, once
from gdws.structures import STRUCTURES
from gdws.surgery import replace, survey

CONV = torch.ops.aten.conv2d.default


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
        z = z * torch.sigmoid(z.mean((2, 3), keepdim=True))
        return self.head(F.relu(self.lower(self.strided(z) - y[..., ::2])).mean((2, 3)))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("chosen", ["all", "none", "tall"])
def test_it_computes_what_it_did(chosen, batch):
    """Also as torch.compile sees it, which is told where values lie; whichever convolutions are chosen."""
    network, x = Between().eval(), torch.rand(batch, 3, 12, 10)
    made = functional(traced(network, torch.rand(2, 3, 12, 10)))
    convs = made.graph.find_nodes(op="call_function", target=CONV)
    taken = {"all": convs, "none": [], "tall": [conv for conv in convs if conv.args[1].meta["val"].shape[2:] == (3, 1)]}
    join(made, taken[chosen])
    made.graph.lint()
    kinds = Counter(node.target for node in made.graph.nodes)
    assert bool(kinds[by_rows_and_columns] and kinds[once]) == (chosen == "all")
    assert kinds[laid]
    with torch.no_grad():
        expected = network(x)
        assert torch.allclose(made(x), expected, rtol=1e-5, atol=1e-6)
        assert torch.allclose(made(x.to(memory_format=torch.channels_last)), expected, rtol=1e-5, atol=1e-6)
        torch._dynamo.reset()
        whole = torch.compile(made, backend="aot_eager", dynamic=False, fullgraph=True)
        assert torch.allclose(whole(x), expected, rtol=1e-5, atol=1e-6)


def test_maps_and_memory_are_the_same_values():
    x = torch.randn(3, 5, 4, 6).to(memory_format=torch.channels_last)
    pixels = as_memory(x)
    assert pixels.is_contiguous()
    assert pixels.data_ptr() == x.data_ptr()
    assert torch.equal(as_maps(pixels), x)
    assert as_memory(torch.rand(5, 1, 1)).shape == (1, 1, 1, 5)
    assert as_memory(torch.rand(6)).shape == (1, 1, 6, 1)
    for same in (by_rows_and_columns, once, laid):
        assert torch.equal(same(x), x)
        assert same(x.half()).dtype == torch.float16


@pytest.mark.parametrize("structure", ["vertical", "horizontal", "project"])
def test_after_pairs_all_is_joined(structure):
    """Of a pre-activation network all but the normalisation of its input, as often as it has sums and ReLUs."""
    model, images = models.embedded(), torch.rand(3, 3, 32, 32)
    convs = [site.conv for site in survey(model, images) if site.reason is None]
    pairs = {conv: STRUCTURES[structure].blank(conv, (8,)) for conv in convs}
    for pair in pairs.values():
        for weight in pair.parameters():
            nn.init.normal_(weight, 0, weight[0].numel() ** -0.5)
    replace(model, pairs)
    network = prepared(model, images)
    with torch.no_grad():
        assert torch.allclose(network(images), model(images), rtol=1e-4, atol=1e-4)
    kinds = Counter(node.target for node in network.graph.nodes)
    assert kinds[laid] == 1
    relus, sums = 15, 7  # two ReLUs for each of seven blocks and one at the end; one sum for each block
    assert kinds[once] + kinds[by_rows_and_columns] >= relus
    assert kinds[once] + kinds[by_rows_and_columns] <= relus + sums


def test_what_runs_later_than_a_convolution_decides():
    """A sum with what cuDNN computes after the first convolution is not joined to that; one with a 1x1 convolution is."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.dense = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
            self.short, self.other = nn.Conv2d(16, 32, 1), nn.Conv2d(16, 32, 3, padding=1)

        def forward(self, x):
            x = self.stem(x)
            x = x + self.dense(x.relu())
            x = self.short(x) + self.other(x)
            return x.mean((2, 3))

    torch.manual_seed(0)
    network, x = Block().eval(), torch.rand(2, 3, 8, 8)
    made = prepared(network, x)
    with torch.no_grad():
        assert torch.allclose(made(x), network(x), rtol=1e-4, atol=1e-5)
    sums = [node for node in made.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    assert [{user.target for user in each.users} for each in sums] == [{as_maps}, {by_rows_and_columns}]
