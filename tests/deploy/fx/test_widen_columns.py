"""Convolutions of several columns at a time compute what those of one do."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gdws.deploy.fx.graph import convolution_arguments, functional_graph
from gdws.deploy.fx.widen_columns import TILE, split_columns, widen_columns
from gdws.deploy.tracing import trace_model

CONV = torch.ops.aten.conv2d.default


def widened(*layers, images):
    """The shapes of the weights and the strides of a network's convolutions, widened."""
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    made = functional_graph(trace_model(network, images))
    widen_columns(made)
    made.graph.lint()
    with torch.no_grad():
        for part in (images, images[:1], images.to(memory_format=torch.channels_last)):
            assert torch.allclose(made(part), network(part), rtol=1e-4, atol=1e-5)
    nodes = made.graph.find_nodes(op="call_function", target=CONV)
    return [(tuple(node.args[1].meta["val"].shape), tuple(convolution_arguments(node)[3])) for node in nodes]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.integers(0, 2),
    st.integers(5, 18),
    st.booleans(),
)
def test_any_first_convolution(channels, taps, stride, padding, width, bias):
    torch.manual_seed(0)
    first = nn.Conv2d(3, channels, (1, taps), stride, (0, padding), bias=bias)
    images = torch.rand(2, 3, 4, width)
    columns, after = 1, first(images).shape[3]
    while taps > 1 and after % (2 * columns) == 0 and 2 * columns * channels <= TILE:
        columns *= 2
    (found, strides), second = widened(first, nn.Conv2d(channels, 4, (3, 1), padding=(1, 0)), images=images)
    assert found == (columns * channels, 3, 1, taps + (columns - 1) * stride[1])
    assert strides == (stride[0], columns * stride[1])
    assert second[0] == (4, channels, 3, 1)


def test_ranks_of_sixteen_work_on_four_columns():
    """A map of 32 columns, strided or not, and one of 6, of which there are only two."""
    for stride, width, expected in (
        (1, 32, (64, 8, 1, 6)),
        (2, 32, (64, 8, 1, 9)),
        (1, 6, (32, 8, 1, 4)),
        (1, 7, (16, 8, 1, 3)),
    ):
        first = nn.Conv2d(8, 16, (1, 3), (1, stride), (0, 1))
        (found, _), _ = widened(first, nn.Conv2d(16, 8, (3, 1)), images=torch.rand(2, 8, 4, width))
        assert found == expected


def test_others_stay():
    images = torch.rand(2, 4, 6, 8)
    second = nn.Conv2d(8, 4, (3, 1))
    for first in (
        nn.Conv2d(4, 8, (3, 1)),
        nn.Conv2d(4, 8, (1, 3), groups=2),
        nn.Conv2d(4, 8, (1, 3), dilation=(1, 2)),
        nn.Conv2d(4, 8, 1),
    ):
        (found, _), _ = widened(first, second, images=images)
        assert found == tuple(first.weight.shape)
    (found, _), _ = widened(nn.Conv2d(4, 8, (1, 3), padding=(0, 1)), nn.ReLU(), second, images=images)  # read by something else
    assert found == (8, 4, 1, 3)


def test_columns_are_taken_apart_without_a_copy():
    wide = torch.arange(2 * 6 * 3 * 4).view(2, 6, 3, 4).to(memory_format=torch.channels_last)
    columns = split_columns(wide, 2)
    assert columns.shape == (2, 3, 3, 8)
    assert columns.data_ptr() == wide.data_ptr()
    assert torch.equal(columns[..., 1::2], wide[:, 3:])
