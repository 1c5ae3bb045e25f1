"""The moments of a convolution, summed up in bands of large maps, against float64 and the definition."""

import pytest
import torch
from torch import nn

from gdws.calibration import collect
from gdws.calibration.hooks import Use
from gdws.core.sites import patches
from gdws.structures.metric import BLOCK, add_moment, mirror

CONVOLUTIONS = [
    nn.Conv2d(4, 6, 3, padding=1),
    nn.Conv2d(4, 6, (3, 2), stride=2, padding=(2, 1), dilation=(2, 1), groups=2),
    nn.Conv2d(4, 6, 5, stride=3, padding=2, padding_mode="reflect"),
    nn.Conv2d(4, 6, (4, 3), padding="same", padding_mode="circular"),
]


@pytest.mark.parametrize("conv", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("most", [1, 500, 2**22])
@torch.no_grad()
def test_bands_make_the_whole(conv, most, monkeypatch):
    """Bug: one image of three million pixels took 5 GB."""
    monkeypatch.setattr(collect, "LARGEST_TEMPORARY", most)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 4, 17, 14, generator=generator)
    g = torch.rand(conv(x).shape, generator=generator)
    moment, gradient = (torch.zeros(conv.groups, size, size) for size in (conv.weight[0].numel(), 6 // conv.groups))
    collect._add_moments(conv, [Use(x, g)], moment, gradient, 1.0, generator)
    seen = patches(conv, x).double()
    slopes = g.double().view(3, conv.groups, -1, seen.shape[3])
    weights = slopes.square().sum(2, keepdim=True)
    assert torch.allclose(moment.double().triu(), torch.einsum("bgip,bgjp->gij", seen * weights, seen).triu(), rtol=1e-4)
    assert torch.allclose(gradient.double().triu(), torch.einsum("bgip,bgjp->gij", slopes, slopes).triu(), rtol=1e-4)


@torch.no_grad()
def test_some_of_the_pixels_stand_for_all_of_them():
    conv, generator, share = CONVOLUTIONS[0], torch.Generator().manual_seed(0), 0.5
    x, g = torch.rand(40, 4, 32, 32, generator=generator), torch.rand(40, 6, 32, 32, generator=generator)
    sums = []
    for part in (1.0, share):
        moment, gradient = torch.zeros(1, 36, 36), torch.zeros(1, 6, 6)
        collect._add_moments(conv, [Use(x, g)], moment, gradient, part, generator)
        sums.append((moment / part, gradient / part))
    for whole, estimate in zip(*sums, strict=True):
        torch.testing.assert_close(estimate.triu(), whole.triu(), rtol=0.05, atol=0)


@pytest.mark.parametrize("rows", [None, (1, 4)])
@pytest.mark.parametrize(
    "settings", [{"padding": 1}, {"stride": 2, "groups": 2}, {"dilation": 2, "padding_mode": "reflect", "padding": 2}]
)
def test_patches_of_drawn_pixels_are_those_of_all(settings, rows):
    conv, x = nn.Conv2d(4, 4, 3, **settings), torch.randn(2, 4, 11, 9, generator=torch.Generator().manual_seed(0))
    whole = patches(conv, x, rows)
    drawn = torch.randperm(whole.shape[3], generator=torch.Generator().manual_seed(1))[:5]
    assert torch.equal(patches(conv, x, rows, drawn), whole[..., drawn])


@pytest.mark.parametrize("size", [1, BLOCK, 2 * BLOCK + 3])
def test_mirrored_matrices_are_whole(size):
    rows = torch.randn(2, size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(2, size, size, dtype=torch.float64)
    add_moment(total, rows)
    torch.testing.assert_close(mirror(total), rows @ rows.mT)
