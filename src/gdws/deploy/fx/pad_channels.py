"""Convolutions of few channels, mostly the first, as such of a whole block: three channels make unaligned reads.

Where they fit into the block the vertical taps become channels too, so that k x k of three channels is 1 x k of k times as
many: a third of the work for k = 3. Taps are filled up to a power of two, and channels to their part of the block, by zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional as F

from gdws.deploy.fx.fuse_epilogues import placed
from gdws.deploy.fx.graph import convolution_arguments, has_fixed_size, is_plain, kept, value_of

aten = torch.ops.aten
BLOCK = 16
"""Channels that the smallest kernels work on together."""


def pad_channels(network: GraphModule) -> None:
    """Rewrite such convolutions of a functional graph (gdws.deploy.fx.graph); grouped ones and the second ones of pairs stay."""
    for conv in network.graph.find_nodes(op="call_function", target=aten.conv2d.default):
        source, weight, bias, stride, padding, dilation, groups = convolution_arguments(conv)
        if not is_plain(conv) or groups != 1 or source.target is aten.conv2d.default:
            continue
        values = value_of(network, weight)
        _, channels, height, width = values.shape
        if channels >= BLOCK or not has_fixed_size(source):
            continue
        taps = 1 << (height - 1).bit_length()
        vertically = source.meta["val"].shape[2], 1, 1, 0, 1
        if 1 < taps <= BLOCK // channels:
            vertically = conv.meta["val"].shape[2], taps, stride[0], padding[0], dilation[0]
            values = F.pad(values, (0, 0, 0, taps - height, 0, BLOCK // taps - channels))
            values = values.transpose(1, 2).reshape(-1, BLOCK, 1, width)
            stride, padding, dilation = (1, stride[1]), (0, padding[1]), (1, dilation[1])
        values = F.pad(values, (0, 0, 0, 0, 0, BLOCK - values.shape[1]))
        with network.graph.inserting_before(conv):
            block = network.graph.call_function(to_block, (source, *vertically))
            block.meta["val"] = to_block(source.meta["val"], *vertically)
            whole = kept(network, values, f"{conv.name}_block", weight)
        conv.args = (block, whole, bias, stride, padding, dilation, groups)
    network.recompile()


def to_block(images: Tensor, height: int, taps: int, stride: int, padding: int, dilation: int) -> Tensor:
    """(B, C, H, W) as (B, BLOCK, height, W): first the channels of what the first vertical tap sees, then of the second, ...

    Each with zeros up to its part of the block.
    """
    reach = dilation * (taps - 1) + 1
    below = stride * (height - 1) + reach - images.shape[2] - padding  # more than the margin, where taps were filled up
    pixels = images.permute(0, 2, 3, 1)  # in the order of channels-last memory, in which torch.compile is to write them
    pixels = F.pad(pixels, (0, BLOCK // taps - images.shape[1], 0, 0, padding, max(below, 0)))
    seen = pixels.unfold(1, reach, stride)[:, :height, ..., ::dilation]  # (B, height, W, C, taps)
    return placed(seen.transpose(3, 4).reshape(-1, height, images.shape[3], BLOCK)).permute(0, 3, 1, 2)
