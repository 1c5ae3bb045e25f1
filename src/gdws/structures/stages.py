"""A factored layer as the plain convolutions that it runs one after another: what an engine's graph has in its place."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gdws.structures.layers import FactoredConv2d, GDWSConv2d, Pair, TwoStageConv2d


@dataclass(frozen=True)
class Stage:
    """One convolution of a layer. The last one has the layer's bias.

    name      of its weight (M, C / groups, kh, kw) in the layer
    channels  those of its input that it reads, in this order; None for all
    padding   zeros (top, left, bottom, right)
    """

    name: str
    weight: Tensor
    channels: Tensor | None
    stride: Pair
    padding: tuple[int, int, int, int]
    dilation: Pair
    groups: int


def stages_of(layer: FactoredConv2d) -> tuple[Stage, ...]:
    """The stages of a layer; none where it is not made of such alone: of other margins than zeros, or without kernels."""
    if isinstance(layer, GDWSConv2d) and layer.padding_mode == "zeros" and len(layer.depthwise):
        left, right, top, bottom = layer._margins()
        channels = None if layer._every_channel_once else layer.channels
        margins = top, left, bottom, right
        return (
            Stage("depthwise", layer.depthwise, channels, layer.stride, margins, layer.dilation, len(layer.depthwise)),
            Stage("pointwise", layer.pointwise, None, (1, 1), (0, 0, 0, 0), (1, 1), layer.groups),
        )
    if isinstance(layer, TwoStageConv2d) and layer._pad_before is None:
        weights = {"first": layer.first, "second": layer.second}
        return tuple(
            Stage(name, weight, None, stride, (*padding, *padding), dilation, layer.groups)
            for (name, weight), (stride, padding, dilation) in zip(weights.items(), layer._stages, strict=True)
        )
    return ()
