"""A network on rows computes what it does on images, whatever stands between its convolutions."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gdws
from gdws import models
from gdws.autotuned import filled, scaled
from gdws.rows import SINGLE_VALUES, as_images, as_rows, laid, on_rows


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
    network = Between().eval()
    x = torch.rand(batch, 3, 12, 10)
    made = on_rows(network, torch.rand(2, 3, 12, 10))
    with torch.no_grad():
        assert torch.allclose(made(x), network(x), rtol=1e-5, atol=1e-6)
    counts = Counter(node.target for node in made.graph.nodes)
    assert all(counts[kind] for kind in (as_images, as_rows, laid))


@pytest.mark.parametrize("structure", ["vertical", "horizontal", "project"])
def test_between_vertical_pairs_all_is_on_rows(structure):
    """Of a pre-activation network only what comes before the first pair is on images, and 3x1 and other convolutions are."""
    model, images = models.embedded(), torch.rand(8, 3, 32, 32)
    made = gdws.apply(model, gdws.plan(model, [images], gdws.Macs(0.5), structures=structure, attack=None))
    network = on_rows(filled(scaled(made)), images)
    with torch.no_grad():
        assert torch.allclose(network(images), made(images), rtol=1e-4, atol=1e-4)
    single = [node for node in network.graph.nodes if node.target in SINGLE_VALUES]
    on_images = [node for node in single if not any(_on_rows(value) for value in node.all_input_nodes)]
    if structure == "vertical":
        assert len(on_images) < 0.4 * len(single)
    if structure == "project":
        assert len(on_images) == len(single)
        assert not any(node.target in (as_rows, laid) for node in network.graph.nodes)


def _on_rows(value):
    """Whether a value of a rewritten graph is on rows, by how it came about."""
    if value.target in (as_rows, laid):
        return True
    if value.target is torch.ops.aten.conv2d.default or value.target in SINGLE_VALUES:
        return any(_on_rows(one) for one in value.all_input_nodes)
    return False
