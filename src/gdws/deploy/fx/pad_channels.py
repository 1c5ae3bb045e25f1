"""Pad the input channels of convolutions with few of them (mostly the first layer) to a tensor-core tile, with zeros.

Three channels make unaligned loads. Where they fit into the tile, the vertical taps become channels too, so that a k x k
convolution of three channels is a 1 x k convolution of k times as many: a third of the work for k = 3. Taps are padded to a
power of two, and channels to their part of the tile.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional as F

from gdws.deploy.fx.fuse_epilogues import materialize_pixels
from gdws.deploy.fx.graph import add_constant, convolution_arguments, has_fixed_size, is_plain, value_of

aten = torch.ops.aten
TILE = 16
"""Channels that the smallest tensor-core kernels work on together."""


def pad_channels(network: GraphModule) -> None:
    """Rewrite such convolutions of a functional graph; grouped ones and the second ones of factorized pairs stay."""
    for conv in network.graph.find_nodes(op="call_function", target=aten.conv2d.default):
        source, weight, bias, stride, padding, dilation, groups = convolution_arguments(conv)
        if not is_plain(conv) or groups != 1 or source.target is aten.conv2d.default:
            continue
        values = value_of(network, weight)
        _, channels, height, width = values.shape
        if channels >= TILE or not has_fixed_size(source):
            continue
        taps = 1 << (height - 1).bit_length()
        vertically = source.meta["val"].shape[2], 1, 1, 0, 1
        if 1 < taps <= TILE // channels:
            vertically = conv.meta["val"].shape[2], taps, stride[0], padding[0], dilation[0]
            values = F.pad(values, (0, 0, 0, taps - height, 0, TILE // taps - channels))
            values = values.transpose(1, 2).reshape(-1, TILE, 1, width)
            stride, padding, dilation = (1, stride[1]), (0, padding[1]), (1, dilation[1])
        values = F.pad(values, (0, 0, 0, 0, 0, TILE - values.shape[1]))
        with network.graph.inserting_before(conv):
            tile = network.graph.call_function(to_tile, (source, *vertically))
            tile.meta["val"] = to_tile(source.meta["val"], *vertically)
            whole = add_constant(network, values, f"{conv.name}_tile", weight)
        conv.args = (tile, whole, bias, stride, padding, dilation, groups)
    network.recompile()


def to_tile(images: Tensor, height: int, taps: int, stride: int, padding: int, dilation: int) -> Tensor:
    """(B, C, H, W) as (B, TILE, height, W): first the channels of what the first vertical tap sees, then of the second, ...

    Each with zeros up to its part of the block.
    """
    reach = dilation * (taps - 1) + 1
    below = stride * (height - 1) + reach - images.shape[2] - padding  # more than the margin, where taps were filled up
    pixels = images.permute(0, 2, 3, 1)  # in the order of channels-last memory, in which torch.compile is to write them
    pixels = F.pad(pixels, (0, TILE // taps - images.shape[1], 0, 0, padding, max(below, 0)))
    seen = pixels.unfold(1, reach, stride)[:, :height, ..., ::dilation]  # (B, height, W, C, taps)
    return materialize_pixels(seen.transpose(3, 4).reshape(-1, height, images.shape[3], TILE)).permute(0, 3, 1, 2)
