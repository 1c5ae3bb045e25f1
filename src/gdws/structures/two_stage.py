"""Two plain convolutions in the place of one: spatially separable, or with fewer channels before or after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError
from gdws.core.sites import Site
from gdws.structures import filter_splitting
from gdws.structures.base import Curve, Metric, Structure, set_factors
from gdws.structures.layers import FactoredConv2d, TwoStageConv2d

GRAINS = {128: 8, 32: 4}
"""Steps between ranks, for curves of at least so many: vector units take channels by eights or fours."""


class Split(Structure):
    """A size is the rank: the channels between the two stages; so is what a plan keeps. `axes`: see TwoStageConv2d.

    A first stage of few channels is fast on tensor cores where it is horizontal (gdws.deploy.fx.widen_columns).
    """

    def __init__(self, name: str, axes: tuple[int, ...]) -> None:
        self.name, self.axes = name, axes
        self.narrow = axes == (1,)

    def fits(self, conv: nn.Conv2d) -> bool:
        """Both stages together must be able to be smaller than the whole, and separable ones must each have taps."""
        first, second = self._stage_taps(conv)
        group = (conv.out_channels // conv.groups, *conv.weight.shape[1:])
        return filter_splitting.most_filters(group, self.axes) > 0 and (len(self.axes) != 1 or (first > 1 and second > 1))

    def curve(self, weight: Tensor, metric: Metric) -> filter_splitting.SplitCurve:
        return filter_splitting.curve(weight, *metric, self.axes)

    def sizes(self, curve: Curve) -> Sequence[int]:
        step = next((step for least, step in GRAINS.items() if len(curve.losses) > least), 1)
        return range(step, len(curve.losses), step)

    def curve_from_tensors(self, tensors: dict[str, Tensor]) -> filter_splitting.SplitCurve:
        return filter_splitting.SplitCurve(tensors["filters"], tensors["losses"])

    def parameters(self, conv: nn.Conv2d, size: int) -> int:
        first, second = self._stage_taps(conv)
        return size * (conv.in_channels * first + conv.out_channels * second)

    def macs(self, site: Site, size: int) -> int:
        """The first stage runs at the output's size along its own axes, at the input's along the others."""
        first, second = self._stage_taps(site.conv)
        margins = _padded_before(site.conv)
        total = 0
        for *before, height, width in site.maps:
            after = height, width
            sizes = [after[axis] if axis in self.axes else before[axis] + margins[axis] for axis in (0, 1)]
            total += sizes[0] * sizes[1] * site.conv.in_channels * first + height * width * site.conv.out_channels * second
        return size * total

    def ranks(self, curves: Sequence[Curve], size: int) -> tuple[int, ...]:
        return (size,)

    def build_several(
        self,
        conv: nn.Conv2d,
        ranks: Sequence[tuple[int, ...]],
        curves: Sequence[Curve],
        metrics: Sequence[Metric],
        *,
        draft: bool = False,
    ) -> list[FactoredConv2d]:
        layers = [self.build_empty(conv, each) for each in ranks]
        weights = conv.weight.detach().double().view(conv.groups, -1, *conv.weight.shape[1:])
        groups = []
        for weight, curve, metric in zip(weights, curves, metrics, strict=True):
            assert isinstance(curve, filter_splitting.SplitCurve)
            groups.append(filter_splitting.fit(weight, *metric, curve, [rank for (rank,) in ranks], self.axes, draft))
        for layer, parts in zip(layers, zip(*groups, strict=True), strict=True):
            firsts, seconds = zip(*parts, strict=True)
            set_factors(layer, torch.cat(firsts), torch.cat(seconds))
        return list(layers)

    def build_empty(self, conv: nn.Conv2d, ranks: tuple[int, ...]) -> TwoStageConv2d:
        return TwoStageConv2d.like(conv, ranks[0], self.axes)

    def build_like(self, conv: nn.Conv2d, tensors: dict[str, Tensor]) -> TwoStageConv2d:
        if "second" not in tensors or tensors["second"].ndim != 4:
            raise GdwsError(f"a {self.name} layer has no tensor second: expected a whole file that gdws.save wrote")
        outputs, rank, *_ = tensors["second"].shape
        if outputs != conv.out_channels:  # one without outputs could claim any rank
            raise GdwsError(f"a {self.name} layer has {outputs} outputs: expected {conv.out_channels}, as its convolution")
        return TwoStageConv2d.like(conv, rank, self.axes)

    def is_layer(self, layer: nn.Module) -> bool:
        return isinstance(layer, TwoStageConv2d) and layer.axes == self.axes

    def describe(self, ranks: tuple[int, ...]) -> str:
        return f"{self.name}, rank {ranks[0]}"

    def _stage_taps(self, conv: nn.Conv2d) -> tuple[int, int]:
        return filter_splitting.stage_taps((conv.kernel_size[0], conv.kernel_size[1]), self.axes)


def _padded_before(conv: nn.Conv2d) -> tuple[int, int]:
    """Rows and columns that TwoStageConv2d adds to its input; with equal margins of zeros, each stage pads its own axes."""
    left, right, top, bottom = conv._reversed_padding_repeated_twice
    if conv.padding_mode == "zeros" and left == right and top == bottom:
        return 0, 0
    return top + bottom, left + right
