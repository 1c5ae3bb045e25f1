"""BatchNorm of some channels of a tensor that keeps all of them: a residual stream, or features that are concatenated."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.core.errors import GdwsError


class SelectChannels(nn.Module):
    """Some channels of a tensor: (B, width, H, W) to (B, k, H, W).

    channels  int64 (k,), ascending: which.
    width     channels of the input.
    """

    channels: Tensor

    def __init__(self, channels: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("channels", channels)
        self.width = width
        self.register_load_state_dict_post_hook(_check_selected)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.channels)

    def extra_repr(self) -> str:
        return f"{len(self.channels)} of {self.width}"


class SpreadChannels(nn.Module):
    """The reverse, with zeros elsewhere: (B, count, H, W) to (B, width, H, W).

    sources  int64 (width,): the input channel of each output, `count` for zeros. Every input is used once, in order.
    count    channels of the input.
    """

    sources: Tensor

    def __init__(self, sources: Tensor, count: int) -> None:
        super().__init__()
        self.register_buffer("sources", sources)
        self.count = count
        self.register_load_state_dict_post_hook(_check_spread)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, 0, 0, 1)).index_select(1, self.sources)  # the one more is the zero

    def extra_repr(self) -> str:
        return f"{self.count} to {len(self.sources)}"


def selected_norm(norm: nn.BatchNorm2d, channels: Tensor, width: int) -> nn.Sequential:
    """BatchNorm of the selected channels alone."""
    return nn.Sequential(OrderedDict(select=SelectChannels(channels, width), norm=norm))


def spread_norm(norm: nn.BatchNorm2d, sources: Tensor) -> nn.Sequential:
    """BatchNorm of which the other channels are zero."""
    return nn.Sequential(OrderedDict(norm=norm, spread=SpreadChannels(sources, norm.num_features)))


def _check_selected(layer: SelectChannels, _: Any) -> None:
    chosen = layer.channels
    inside = bool(((chosen >= 0) & (chosen < layer.width)).all())
    if not inside or bool((chosen.diff() <= 0).any()):
        raise GdwsError(f"a layer selects the channels {chosen[:4].tolist()}...: expected ascending ones below {layer.width}")


def _check_spread(layer: SpreadChannels, _: Any) -> None:
    used = layer.sources[layer.sources != layer.count]
    if not torch.equal(used, torch.arange(layer.count, device=used.device)):
        raise GdwsError(f"a layer spreads the channels {used[:4].tolist()}...: expected 0 to {layer.count - 1} in order")
