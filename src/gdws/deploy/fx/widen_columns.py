"""Compute Q output columns per 1 x k kernel, so that Q C channels fill a tensor-core tile.

A 1 x k convolution to few channels C is bound by its loads: each kernel loads what all of its k taps see, k times the map, and
computes little of it. Q neighboring columns see k + Q - 1 taps together, which is (k + Q - 1) / Q times the map for Q C
channels; the weights for taps that a column does not have are zero. In channels-last memory the Q C channels lie just as
the C channels of Q neighboring columns would, so that splitting them again is a view.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from gdws.deploy.fx.graph import add_constant, convolution_arguments, has_fixed_size, is_plain, value_of

aten = torch.ops.aten
TILE = 64
"""Channels that tensor-core kernels compute well together."""


def widen_columns(network: GraphModule) -> None:
    """Rewrite such convolutions of a functional graph that only convolutions read: the first ones of factorized pairs."""
    for conv in network.graph.find_nodes(op="call_function", target=aten.conv2d.default):
        source, weight, bias, stride, padding, dilation, groups = convolution_arguments(conv)
        columns = _columns(conv)
        if columns == 1:
            continue
        values = _widened(value_of(network, weight), columns, stride[1])
        with network.graph.inserting_before(conv):
            weight = add_constant(network, values, f"{conv.name}_wide", weight)
            if bias is not None:
                bias = add_constant(network, value_of(network, bias).repeat(columns), f"{conv.name}_wide_bias", bias)
            stride = [stride[0], columns * stride[1]]
            arguments = (source, weight, bias, stride, padding, dilation, groups)
            wide = network.graph.call_function(aten.conv2d.default, arguments)
            apart = network.graph.call_function(split_columns, (wide, columns))
        wide.meta["val"] = aten.conv2d.default(*(part.meta["val"] if isinstance(part, Node) else part for part in arguments))
        apart.meta["val"] = conv.meta["val"]
        conv.replace_all_uses_with(apart)
        network.graph.erase_node(conv)
    network.recompile()


def split_columns(wide: Tensor, columns: int) -> Tensor:
    """(B, Q C, H, W / Q), channels of the first column first, as (B, C, H, W): a view of channels-last memory."""
    pixels = wide.permute(0, 2, 3, 1)
    count, height, width, channels = pixels.shape
    return pixels.reshape(count, height, width * columns, channels // columns).permute(0, 3, 1, 2)


def _columns(conv: Node) -> int:
    """How many columns are worth computing together: 1, 2, 4, ... as fill a tile."""
    _, weight, _, _, _, dilation, groups = convolution_arguments(conv)
    channels, _, height, width = weight.meta["val"].shape
    if not is_plain(conv) or groups != 1 or (height, dilation[1]) != (1, 1) or width == 1:
        return 1
    if any(user.target is not aten.conv2d.default for user in conv.users) or not has_fixed_size(conv):
        return 1
    columns = 1
    while conv.meta["val"].shape[3] % (2 * columns) == 0 and 2 * columns * channels <= TILE:
        columns *= 2
    return columns


def _widened(weight: Tensor, columns: int, stride: int) -> Tensor:
    """(C, N, 1, k) as (Q C, N, 1, k + (Q - 1) stride): for each column the taps that it has, and zeros."""
    room = (columns - 1) * stride
    return torch.cat([F.pad(weight, (place * stride, room - place * stride)) for place in range(columns)])
