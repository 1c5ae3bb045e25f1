"""Two plain convolutions against the dense one that they stand for."""

import itertools

import pytest
import torch
from torch import nn

from gdws.core.errors import GdwsError
from gdws.structures.layers import TwoStageConv2d

AXES = [(), (0,), (1,), (0, 1)]
PADDINGS = [("zeros", (1, 2)), ("zeros", "same"), ("reflect", (2, 1)), ("circular", "same")]
STRIDES = [(1, 1), (2, 1), (2, 3)]


def pair(axes, kernel=(3, 3), rank=3, **arguments):
    """A layer with random weights, and the dense convolution that it stands for."""
    conv = nn.Conv2d(4, 6, kernel, **arguments)
    layer = TwoStageConv2d.like(conv, rank, axes)
    nn.init.normal_(layer.first)
    nn.init.normal_(layer.second)
    groups = conv.groups
    first = layer.first.view(groups, rank, 4 // groups, *layer.first.shape[2:])
    second = layer.second.view(groups, 6 // groups, rank, *layer.second.shape[2:])
    dense = torch.einsum("grcab,gmrde->gmcadbe", first, second)
    conv.weight.data = dense.reshape(6, 4 // groups, *kernel).detach()
    return layer, conv


CASES = [case for case in itertools.product(AXES, PADDINGS, STRIDES) if case[1][1] != "same" or case[2] == (1, 1)]


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # with even kernels PyTorch says that it copies
@pytest.mark.parametrize(("axes", "padding", "stride"), CASES)
def test_equals_the_dense_convolution(axes, padding, stride):
    mode, margins = padding
    torch.manual_seed(0)
    for dilation, groups, kernel in itertools.product([(1, 1), (2, 1)], [1, 2], [(3, 3), (2, 5)]):
        arguments = {"stride": stride, "dilation": dilation, "groups": groups, "padding": margins, "padding_mode": mode}
        layer, conv = pair(axes, kernel, **arguments)
        x = torch.randn(2, 4, 9, 11)
        assert torch.allclose(layer(x), conv(x), atol=1e-4)
        features = layer.features(x).unflatten(1, (groups, -1))
        mixed = torch.einsum("gmn,bgnhw->bgmhw", layer.mixing.view(groups, 6 // groups, -1), features).flatten(1, 2)
        assert torch.allclose(mixed + layer.bias[:, None, None], conv(x), atol=1e-4)


def test_gradients_and_export():
    layer, conv = pair((0,), padding=1, stride=2)
    x, other = (torch.rand(2, 4, 8, 8).requires_grad_() for _ in range(2))
    other.data = x.data.clone()
    layer(x).square().sum().backward()
    conv(other).square().sum().backward()
    assert torch.allclose(x.grad, other.grad, rtol=1e-3, atol=1e-3)
    exported = torch.export.export(layer.eval(), (x.detach(),)).module()
    assert torch.allclose(exported(x.detach()), layer(x.detach()), atol=1e-5)


def test_refuses_what_cannot_be():
    conv = nn.Conv2d(4, 6, 3)
    with pytest.raises(GdwsError, match="rank is 0"):
        TwoStageConv2d.like(conv, 0, (0,))
    with pytest.raises(GdwsError, match=r"axes are \(2,\)"):
        TwoStageConv2d.like(conv, 2, (2,))
    with pytest.raises(GdwsError, match="expected 4 channels"):
        TwoStageConv2d.like(conv, 2, (0,))(torch.rand(1, 5, 8, 8))
