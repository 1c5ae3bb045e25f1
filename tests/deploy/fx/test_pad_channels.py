"""Convolutions of few channels compute what they did, padded to a tile."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gdws.deploy.fx.graph import convolution_arguments, functional_graph
from gdws.deploy.fx.pad_channels import TILE, pad_channels
from gdws.deploy.tracing import trace_model

CONV = torch.ops.aten.conv2d.default


def convolutions(*layers, images):
    """A network's graph, and the shapes of the weights and the strides, paddings and dilations of its convolutions, padded."""
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    made = functional_graph(trace_model(network, images))
    pad_channels(made)
    with torch.no_grad():
        for part in (images, images[:1]):
            assert torch.allclose(made(part), network(part), rtol=1e-4, atol=1e-5)
    nodes = made.graph.find_nodes(op="call_function", target=CONV)
    return [(tuple(node.args[1].meta["val"].shape), convolution_arguments(node)[3:6]) for node in nodes]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 20),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([0, 1, 2, "same", "valid"]),
    st.sampled_from(["zeros", "reflect"]),
    st.booleans(),
)
def test_any_convolution(channels, kernel, stride, dilation, padding, mode, bias):
    if padding == "same":  # of an even kernel it warns
        kernel, stride = (kernel[0] | 1, kernel[1] | 1), 1
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 5, kernel, stride, padding, dilation, bias=bias, padding_mode=mode)
    ((shape, (strides, *_)),) = convolutions(conv, images=torch.rand(2, channels, 17, 13))
    stacked = channels < TILE and kernel[0] > 1 and channels * {1: 1, 2: 2, 3: 4, 4: 4, 5: 8}[kernel[0]] <= TILE
    assert shape == (5, max(channels, TILE), 1 if stacked else kernel[0], kernel[1])
    assert list(strides) == [1 if stacked else stride, stride]


def test_grouped_ones_and_the_second_of_pairs_stay():
    images = torch.rand(2, 4, 8, 8)
    (grouped,) = convolutions(nn.Conv2d(4, 4, 3, groups=2), images=images)
    assert grouped[0] == (4, 2, 3, 3)
    first, second = convolutions(nn.Conv2d(4, 8, (3, 1)), nn.Conv2d(8, 6, (1, 3)), images=images)
    assert first[0] == (8, 16, 1, 1)
    assert second[0] == (6, 8, 1, 3)
