"""A network on rows computes what it does on images, whatever stands between its convolutions."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gdws import models
from gdws.autotuned import prepared
from gdws.export import traced
from gdws.folding import functional
from gdws.rows import ON_ROWS, SINGLE_VALUES, as_images, as_rows, laid, on_rows
from gdws.structures import STRUCTURES
from gdws.surgery import replace, survey


def rewritten(network, x):
    """The graph of a network with pairs, on rows."""
    module = functional(traced(network, x))
    assert on_rows(module)
    return module


class Between(nn.Module):
    """What may stand between pairs: sums with several uses, one number for each channel, column, pixel or image, and others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.tall, self.wide = nn.Conv2d(8, 6, (3, 1), padding=(1, 0)), nn.Conv2d(6, 8, (1, 3), padding=(0, 1))
        self.strided = nn.Conv2d(8, 8, (1, 5), (1, 2), (0, 2), groups=2)
        self.lower = nn.Conv2d(8, 8, (1, 3), (2, 1), (0, 1))  # takes every other row
        self.act = nn.ReLU(inplace=True)
        self.register_buffer("channels", torch.randn(8, 1, 1))
        self.register_buffer("columns", torch.randn(10))
        self.register_buffer("lines", torch.randn(12, 1))
        self.register_buffer("pixels", torch.randn(1, 8, 12, 10))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.act(self.wide(self.tall(x)) * self.channels + 1)
        y = x + y - self.wide(self.tall(y)) / 2  # two uses of y
        y = y * self.columns
        z = y + self.pixels  # on images: rows of other images differ
        z = F.relu(z * self.lines) + self.wide(self.tall(z))
        z = z * torch.sigmoid(z.mean((2, 3), keepdim=True))
        return self.head(F.relu(self.lower(self.strided(z) - y[..., ::2])).mean((2, 3)))


def test_rows_and_images_are_the_same_memory():
    x = torch.randn(3, 5, 4, 6).to(memory_format=torch.channels_last)
    rows = as_rows(x)
    assert rows.shape == (12, 5, 1, 6)
    assert torch.equal(rows[4 + 2, :, 0], x[1, :, 2])
    assert rows.data_ptr() == as_images(rows, 4).data_ptr() == x.data_ptr()
    assert torch.equal(as_images(rows, 4), x)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_on_rows_computes_what_it_did(batch):
    """Also as torch.compile sees it, which is told where rows lie."""
    network = Between().eval()
    x = torch.rand(batch, 3, 12, 10)
    made = rewritten(network, torch.rand(2, 3, 12, 10))
    kinds = Counter(node.target for node in made.graph.nodes)
    assert all(kinds[kind] for kind in (as_images, as_rows, laid))
    with torch.no_grad():
        expected = network(x)
        assert torch.allclose(made(x), expected, rtol=1e-5, atol=1e-6)
        assert torch.allclose(made(x.to(memory_format=torch.channels_last)), expected, rtol=1e-5, atol=1e-6)
        torch._dynamo.reset()
        whole = torch.compile(made, backend="aot_eager", dynamic=False, fullgraph=True)
        assert torch.allclose(whole(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "size"),
    [
        ([nn.Conv2d(3, 4, (1, 3), padding=(0, 1)), nn.Flatten(), nn.Linear(256, 5)], (8, 8)),
        ([nn.Conv2d(3, 4, (1, 3), stride=(2, 1), padding=(1, 1)), nn.AdaptiveAvgPool2d(1), nn.Flatten()], (3, 8)),
        ([nn.Conv2d(3, 4, (1, 3)), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()], (1, 8)),
        ([nn.Conv2d(3, 4, (1, 3), dilation=2, groups=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()], (8, 9)),
    ],
    ids=["flattened", "as many rows by chance", "one row", "dilated"],
)
def test_what_stands_after_a_row(layers, size):
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Conv2d(3, 3, 1), *layers).eval(), torch.rand(4, 3, *size)
    made = functional(traced(network, x))
    on_rows(made)
    with torch.no_grad():
        assert torch.allclose(made(x.to(memory_format=torch.channels_last)), network(x), rtol=1e-5, atol=1e-6)


def test_numbers_such_as_the_size_of_the_batch_may_be_used():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.tall, self.wide = nn.Conv2d(3, 2, (3, 1)), nn.Conv2d(2, 4, (1, 3))

        def forward(self, x):
            return (self.wide(self.tall(x)) / x.shape[0]).mean((2, 3))

    network, x = Counting().eval(), torch.rand(3, 3, 6, 6)
    assert torch.allclose(rewritten(network, x)(x), network(x), rtol=1e-5, atol=1e-6)


def test_it_is_a_copy_in_eval_mode():
    network, x = Between(), torch.rand(2, 3, 12, 10)
    made, _ = prepared(network, x)
    assert network.training
    assert not made.half().training
    assert {value.dtype for value in network.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize(("structure", "joined"), [("vertical", True), ("horizontal", False), ("project", False)])
def test_after_vertical_pairs_all_is_on_rows(structure, joined):
    """Of a pre-activation network all that works on single values, but for the normalisation of its input."""
    model, images = models.embedded(), torch.rand(3, 3, 32, 32)
    convs = [site.conv for site in survey(model, images) if site.reason is None]
    pairs = {conv: STRUCTURES[structure].blank(conv, (8,)) for conv in convs}
    for pair in pairs.values():
        for weight in pair.parameters():
            nn.init.normal_(weight, 0, weight[0].numel() ** -0.5)
    replace(model, pairs)
    network, options = prepared(model, images)
    assert bool(options) == joined
    with torch.no_grad():
        assert torch.allclose(network(images), model(images), rtol=1e-4, atol=1e-4)
    single = [node for node in network.graph.nodes if node.target in SINGLE_VALUES]
    assert len(single) > 20
    assert sum(ON_ROWS not in node.meta for node in single) == (2 if joined else len(single))
