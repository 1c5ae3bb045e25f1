"""GDWS: each input channel has its own number of depthwise kernels, a 1x1 convolution mixes what they give."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError
from gdws.core.sites import Site
from gdws.structures import kernel_elimination
from gdws.structures.base import Curve, Metric, Structure
from gdws.structures.layers import FactoredConv2d, GDWSConv2d
from gdws.structures.mego_lego import Factors, assemble
from gdws.structures.scaling import within_range

GRAINS = {256: 16, 64: 8}
"""Steps between numbers of kernels, for curves of at least so many: engines run a depthwise convolution well only where its
channels fill whole vectors (in ONNX Runtime five times faster)."""


class GDWS(Structure):
    """A size is a number of depthwise kernels; a plan keeps g, the kernels of each input channel."""

    name = "gdws"
    plain = False
    brittleness = 2.0  # its errors vary 1.4x as much within the attack's ball: docs/explanation/structures.md

    def fits(self, conv: nn.Conv2d) -> bool:
        return True

    def curve(self, weight: Tensor, metric: Metric) -> kernel_elimination.Curve:
        return kernel_elimination.curve(weight.flatten(2), *metric)

    def sizes(self, curve: Curve) -> Sequence[int]:
        step = next((step for least, step in GRAINS.items() if len(curve.losses) > least), 1)
        return range(0, len(curve.losses), step)

    def curve_from_tensors(self, tensors: dict[str, Tensor]) -> kernel_elimination.Curve:
        return kernel_elimination.Curve(**tensors)

    def parameters(self, conv: nn.Conv2d, size: int) -> int:
        """G (K^2 + M) with G kernels in all and the M outputs of one group."""
        taps = conv.kernel_size[0] * conv.kernel_size[1]
        return size * conv.groups * (taps + conv.out_channels // conv.groups)

    def macs(self, site: Site, size: int) -> int:
        return site.positions * self.parameters(site.conv, size)

    def ranks(self, curves: Sequence[Curve], size: int) -> tuple[int, ...]:
        return tuple(torch.cat([_own(curve).distribution(size) for curve in curves]).tolist())

    def build_several(
        self,
        conv: nn.Conv2d,
        ranks: Sequence[tuple[int, ...]],
        curves: Sequence[Curve],
        metrics: Sequence[Metric],
        *,
        draft: bool = False,
    ) -> list[FactoredConv2d]:
        return [self._build_one(conv, each, curves, metrics) for each in ranks]

    def build_empty(self, conv: nn.Conv2d, ranks: tuple[int, ...]) -> GDWSConv2d:
        return GDWSConv2d.like(conv, torch.arange(conv.in_channels).repeat_interleave(torch.tensor(ranks)))

    def build_like(self, conv: nn.Conv2d, tensors: dict[str, Tensor]) -> GDWSConv2d:
        if "channels" not in tensors:
            raise GdwsError("a gdws layer has no tensor channels: expected a whole file that gdws.save wrote")
        most = conv.in_channels * conv.kernel_size[0] * conv.kernel_size[1]
        if tensors["channels"].numel() > most:
            raise GdwsError(f"a gdws layer has {tensors['channels'].numel()} kernels: expected at most {most}")
        return GDWSConv2d.like(conv, tensors["channels"])

    def is_layer(self, layer: nn.Module) -> bool:
        return isinstance(layer, GDWSConv2d)

    def describe(self, ranks: tuple[int, ...]) -> str:
        return f"gdws, {sum(ranks)} kernels"

    def _build_one(
        self, conv: nn.Conv2d, ranks: tuple[int, ...], curves: Sequence[Curve], metrics: Sequence[Metric]
    ) -> GDWSConv2d:
        per_group = torch.tensor(ranks, device=conv.weight.device).view(conv.groups, -1)
        weights = conv.weight.detach().double().view(conv.groups, -1, *conv.weight.shape[1:])
        parts = []
        for g, weight, curve, (moment, _) in zip(per_group, weights, curves, metrics, strict=True):
            channels, kernels = _own(curve).leading(g)
            parts.append((channels, kernels, kernel_elimination.best_mix(weight.flatten(2), moment, channels, kernels)))
        return GDWSConv2d.from_factors(_joined(conv, per_group, parts), conv)


def _own(curve: Curve) -> kernel_elimination.Curve:
    assert isinstance(curve, kernel_elimination.Curve)
    return curve


def _joined(conv: nn.Conv2d, per_group: Tensor, parts: list[tuple[Tensor, Tensor, Tensor]]) -> Factors:
    """The factors of a layer from (channels, kernels (G, K), mix (M, G)) of each of its groups."""
    taps = conv.kernel_size[0] * conv.kernel_size[1]
    left = torch.zeros(*per_group.shape, conv.out_channels // conv.groups, taps, dtype=torch.float64)
    right = torch.zeros(*per_group.shape, taps, taps, dtype=torch.float64)
    left, right = left.to(conv.weight.device), right.to(conv.weight.device)
    for group, (channels, kernels, mix) in enumerate(parts):
        level = torch.arange(len(channels), device=channels.device) - torch.searchsorted(channels, channels)
        left[group, channels, :, level] = mix.T
        right[group, channels, level] = kernels
    kernel = (conv.kernel_size[0], conv.kernel_size[1])
    kernels, columns = within_range(right.flatten(0, 1), left.flatten(0, 1).mT, conv.weight.dtype)
    return assemble(per_group.flatten(), columns.mT, kernels, kernel, conv.groups, conv.weight.dtype, float("nan"))
