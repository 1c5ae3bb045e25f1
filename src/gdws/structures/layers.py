"""The modules that stand in the place of a convolution (gdws.nn).

`gdws_conv2d` is where a faster implementation can be put in: one that takes the same arguments and gives the same numbers,
up to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.core.errors import GdwsError
from gdws.structures.mego_lego import Factors

Pair = tuple[int, int]


def gdws_conv2d(
    x: Tensor,
    channels: Tensor | None,
    depthwise: Tensor,
    pointwise: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair | str,
    dilation: Pair,
    groups: int,
) -> Tensor:
    """Run a GDWS convolution: repeat the channels, convolve each copy with its own kernel, mix by a 1x1 convolution.

    x          (B, C, H, W), or without B.
    channels   int64 (G,), the input channel that each kernel reads; None where every channel has exactly one kernel.
    depthwise  (G, 1, kh, kw), the kernels.
    pointwise  (M, G / groups, 1, 1), the mix.
    bias       (M,) or None.
    stride, padding, dilation and groups  of the convolution that it stands for: pairs (vertical, horizontal), or a padding of
               "same" or "valid"; groups is a number.

    Returns (B, M, H', W'). index_select was measured the fastest plain form for unequal g_c on CPU and GPU; x[:, channels] and
    one convolution for each level of kernels cost up to 1.8x (docs/results/library-speed.md).

    >>> import gdws, torch
    >>> x, channels = torch.rand(1, 2, 5, 5), torch.tensor([0, 0, 1])
    >>> depthwise, pointwise = torch.rand(3, 1, 3, 3), torch.rand(4, 3, 1, 1)
    >>> gdws.nn.gdws_conv2d(x, channels, depthwise, pointwise, None, (1, 1), (1, 1), (1, 1), 1).shape
    torch.Size([1, 4, 5, 5])
    """
    features = depthwise_features(x, channels, depthwise, stride, padding, dilation)
    return F.conv2d(features, pointwise, bias, groups=groups)


def depthwise_features(
    x: Tensor, channels: Tensor | None, depthwise: Tensor, stride: Pair, padding: Pair | str, dilation: Pair
) -> Tensor:
    """Run the first stage of `gdws_conv2d`: what each depthwise kernel gives, (B, G, H', W').

    x, channels, depthwise, stride, padding and dilation are as there.

    >>> import gdws, torch
    >>> x, channels = torch.rand(1, 2, 5, 5), torch.tensor([0, 0, 1])
    >>> gdws.nn.depthwise_features(x, channels, torch.rand(3, 1, 3, 3), (1, 1), (0, 0), (1, 1)).shape
    torch.Size([1, 3, 3, 3])
    """
    copies = x if channels is None else x.index_select(-3, channels)
    return F.conv2d(copies, depthwise, None, stride, padding, dilation, groups=len(depthwise))


class FactoredConv2d(nn.Module, ABC):
    """The base of all layers that stand in the place of a dense convolution: a bank of features, and a mix of them.

    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device and dtype are those of
    the torch.nn.Conv2d that it stands for. Sizes are pairs (vertical, horizontal); padding may be "same" or "valid" too.

    >>> import gdws, torch
    >>> layer = gdws.nn.TwoStageConv2d.like(torch.nn.Conv2d(8, 16, 3), rank=2, axes=(0,))
    >>> isinstance(layer, gdws.nn.FactoredConv2d), tuple(layer.filters.shape), tuple(layer.mixing.shape)
    (True, (2, 8, 3, 1), (16, 2, 1, 3))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        *,
        stride: Pair = (1, 1),
        padding: Pair | str = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.padding_mode = padding_mode
        self.bias = nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype)) if bias else None

    @property
    @abstractmethod
    def filters(self) -> nn.Parameter:
        """(N, ...): what the first stage makes its N channels with, those of the groups one after another."""

    @property
    @abstractmethod
    def mixing(self) -> nn.Parameter:
        """(M, N / groups, ...): what each output makes of these channels. It has M n / groups elements."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """What is mixed, for x (B, C, H, W): (B, n, H', W'), in the order of `mixing`, group after group."""

    @torch.no_grad()
    def rescale(self, factors: Tensor) -> None:
        """Multiply each filter by its factor (`factors`, (N,)) and divide what is made of it: the same function."""
        self.filters.mul_(factors.view(-1, 1, 1, 1))
        rows = factors.view(self.groups, -1).repeat_interleave(self.out_channels // self.groups, 0)
        self.mixing.div_(rows[:, :, None, None])

    def _margins(self) -> list[int]:
        """(left, right, top, bottom) as F.pad takes them, with PyTorch's rule for 'same': the odd pixel goes after."""
        margins: list[int] = []
        for axis in (1, 0):
            if isinstance(self.padding, str):
                total = self.dilation[axis] * (self.kernel_size[axis] - 1) if self.padding == "same" else 0
                margins += [total // 2, total - total // 2]
            else:
                margins += [self.padding[axis]] * 2
        return margins

    def _check_input(self, x: Tensor) -> None:
        if x.shape[-3] != self.in_channels:  # index_select would take too many channels without a word
            raise GdwsError(f"input has shape {tuple(x.shape)}: expected {self.in_channels} channels")


def _geometry(conv: nn.Conv2d) -> dict[str, Any]:
    """The arguments of a FactoredConv2d in the place of a convolution."""
    return {
        "in_channels": conv.in_channels,
        "out_channels": conv.out_channels,
        "kernel_size": (conv.kernel_size[0], conv.kernel_size[1]),
        "stride": (conv.stride[0], conv.stride[1]),
        "padding": conv.padding if isinstance(conv.padding, str) else (conv.padding[0], conv.padding[1]),
        "dilation": (conv.dilation[0], conv.dilation[1]),
        "groups": conv.groups,
        "bias": conv.bias is not None,
        "padding_mode": conv.padding_mode,
        "device": conv.weight.device,
        "dtype": conv.weight.dtype,
    }


class GDWSConv2d(FactoredConv2d):
    """A generalized depthwise-separable convolution: kernels of one input channel each, mixed by a 1x1 convolution.

    It stands for a dense `nn.Conv2d` with the same arguments whose weight for input channel c has rank at most g_c, the
    number of kernels that read c.

    channels  int64 (G,), ascending: the input channel that each kernel reads. With groups, each group owns G / groups
              consecutive kernels. G may be 0: the output is then the bias.

    in_channels, out_channels, kernel_size, groups and others (stride, padding, ...) are as in FactoredConv2d.

    Parameters: depthwise (G, 1, kh, kw), pointwise (M, G / groups, 1, 1), bias (M,) or None. Buffer: channels (G,). They start
    at zero: `from_factors` gives a layer with weights. Raises GdwsError when channels are not as above.

    >>> import gdws, torch
    >>> conv = torch.nn.Conv2d(4, 8, 3, padding=1)
    >>> layer = gdws.nn.GDWSConv2d.from_factors(gdws.mego(conv.weight, None, kernels=36), conv)
    >>> x = torch.rand(1, 4, 6, 6)
    >>> torch.allclose(layer(x), conv(x), atol=1e-5)  # with all kernels it is the same convolution
    True
    """

    channels: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Pair, channels: Tensor, *, groups: int = 1, **others: Any
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, groups=groups, **others)
        _check_channels(channels, in_channels, groups)
        kernels, device, dtype = len(channels), others.get("device"), others.get("dtype")
        self.depthwise = nn.Parameter(torch.zeros(kernels, 1, *kernel_size, device=device, dtype=dtype))
        self.pointwise = nn.Parameter(torch.zeros(out_channels, kernels // groups, 1, 1, device=device, dtype=dtype))
        self.register_buffer("channels", channels.detach().clone().to(device))
        self._read_channels()
        self.register_load_state_dict_post_hook(_reread_channels)  # type: ignore[no-untyped-call]

    @classmethod
    def like(cls, conv: nn.Conv2d, channels: Tensor) -> GDWSConv2d:
        """Zero factors with these `channels` in the place of a dense `conv`: same geometry, type, device and bias."""
        return _in_place_of(conv, cls(channels=channels, **_geometry(conv)))

    @classmethod
    def from_factors(cls, factors: Factors, conv: nn.Conv2d) -> GDWSConv2d:
        """The layer that `factors` of the weight of `conv` make in its place. Raises GdwsError for other shapes."""
        expected = (conv.out_channels, conv.in_channels, conv.groups, *conv.kernel_size)
        given = (len(factors.pointwise), len(factors.g), factors.groups, *factors.depthwise.shape[1:])
        if given != expected:
            raise GdwsError(f"factors are for (out, in, groups, kh, kw) = {given}: expected {expected}")
        layer = cls.like(conv, factors.channels)
        layer.depthwise.data.copy_(factors.depthwise[:, None])
        layer.pointwise.data.copy_(factors.pointwise[:, :, None, None])
        return layer

    @property
    def g(self) -> Tensor:
        """The number of kernels of each input channel: (C,)."""
        return torch.bincount(self.channels, minlength=self.in_channels)

    def forward(self, input: Tensor) -> Tensor:
        """The outputs (B, M, H', W') for an input (B, C, H, W). Raises GdwsError when C is another number."""
        x, padding = self._padded(input)
        if len(self.depthwise) == 0:
            return self._bias_only(x, padding)
        return gdws_conv2d(
            x,
            None if self._every_channel_once else self.channels,
            self.depthwise,
            self.pointwise,
            self.bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
        )

    @property
    def filters(self) -> nn.Parameter:
        return self.depthwise

    @property
    def mixing(self) -> nn.Parameter:
        return self.pointwise

    def features(self, x: Tensor) -> Tensor:
        """What the depthwise kernels give for x (B, C, H, W), before the mix: (B, G, H', W')."""
        x, padding = self._padded(x)
        return depthwise_features(x, self.channels, self.depthwise, self.stride, padding, self.dilation)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"kernels={len(self.depthwise)}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, groups={self.groups}, bias={self.bias is not None}"
        )

    def _read_channels(self) -> None:
        # A Python bool, not a tensor: torch.compile and torch.export then see one path.
        every = torch.arange(self.in_channels, device=self.channels.device)
        self._every_channel_once = bool(torch.equal(self.channels, every))

    def _padded(self, x: Tensor) -> tuple[Tensor, Pair | str]:
        """The input as the convolution needs it, and the padding that is still to be done."""
        self._check_input(x)
        if self.padding_mode == "zeros":
            return x, self.padding
        return F.pad(x, self._margins(), mode=self.padding_mode), (0, 0)

    def _bias_only(self, x: Tensor, padding: Pair | str) -> Tensor:
        sizes = []
        for axis in (0, 1):
            reach = self.dilation[axis] * (self.kernel_size[axis] - 1)
            same = reach if padding == "same" else 0
            margin = same if isinstance(padding, str) else 2 * padding[axis]
            sizes.append((x.shape[axis - 2] + margin - reach - 1) // self.stride[axis] + 1)
        # A term of x makes its gradient zero, not missing; engines cannot run a sum over no channels, so it is one times 0.
        y = x.new_zeros(*x.shape[:-3], self.out_channels, *sizes) + x[..., :1, :1, :1] * 0
        return y if self.bias is None else y + self.bias[:, None, None]


class TwoStageConv2d(FactoredConv2d):
    """Two plain convolutions: the first has the kernel's taps along `axes`, the second those along the other axes.

    axes (0,): vertical kh x 1, then horizontal 1 x kw; (1,): the reverse; (): 1x1, then kh x kw; (0, 1): kh x kw, then 1x1.
    Each axis is padded, strided and dilated in the stage that has its taps.

    `rank` is the number of channels between the two stages, for each group. in_channels, out_channels, kernel_size, groups and
    others (stride, padding, ...) are as in FactoredConv2d.

    Parameters: first (groups * rank, C / groups, k1h, k1w), second (M, rank, k2h, k2w), bias (M,) or None. They start at zero.
    Raises GdwsError when rank is below 1 or axes has other numbers.

    >>> import gdws, torch
    >>> layer = gdws.nn.TwoStageConv2d(8, 16, (3, 3), rank=4, axes=(0,), padding=(1, 1))
    >>> layer(torch.rand(2, 8, 6, 6)).shape
    torch.Size([2, 16, 6, 6])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        rank: int,
        axes: tuple[int, ...],
        *,
        groups: int = 1,
        **others: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, groups=groups, **others)
        if rank < 1 or not set(axes) <= {0, 1}:
            raise GdwsError(f"rank is {rank}, axes are {axes}: expected a rank of at least 1 and axes among 0 and 1")
        self.rank, self.axes = rank, tuple(axes)
        device, dtype = others.get("device"), others.get("dtype")
        first, second = self._deal(self.kernel_size, (1, 1))
        self.first = nn.Parameter(torch.zeros(groups * rank, in_channels // groups, *first, device=device, dtype=dtype))
        self.second = nn.Parameter(torch.zeros(out_channels, rank, *second, device=device, dtype=dtype))
        margins = self._margins()
        left, right, top, bottom = margins
        # Zeros stay zeros in the first stage, which has no bias, so each stage can pad its own axes.
        padded_before = self.padding_mode != "zeros" or left != right or top != bottom
        self._pad_before = margins if padded_before else None
        padding = self._deal((0, 0) if padded_before else (top, left), (0, 0))
        strides, dilations = self._deal(self.stride, (1, 1)), self._deal(self.dilation, (1, 1))
        self._stages = tuple(zip(strides, padding, dilations, strict=True))

    @classmethod
    def like(cls, conv: nn.Conv2d, rank: int, axes: tuple[int, ...]) -> TwoStageConv2d:
        """Zero weights of this `rank` and these `axes` in the place of a dense `conv`: same geometry, type, device, bias."""
        return _in_place_of(conv, cls(rank=rank, axes=axes, **_geometry(conv)))

    @property
    def filters(self) -> nn.Parameter:
        return self.first

    @property
    def mixing(self) -> nn.Parameter:
        return self.second

    def forward(self, input: Tensor) -> Tensor:
        """The outputs (B, M, H', W') for an input (B, C, H, W). Raises GdwsError when C is another number."""
        return F.conv2d(self._between(input), self.second, self.bias, *self._stages[1], self.groups)

    def features(self, x: Tensor) -> Tensor:
        """The first stage's channels at each tap of the second, for x: (B, groups * rank * k2, H', W')."""
        between, (stride, padding, dilation) = self._between(x), self._stages[1]
        taps = F.unfold(between, self.second.shape[2:], dilation, padding, stride)
        sizes = [
            (between.shape[2 + axis] + 2 * padding[axis] - dilation[axis] * (self.second.shape[2 + axis] - 1) - 1)
            // stride[axis]
            + 1
            for axis in (0, 1)
        ]
        return taps.view(*taps.shape[:2], *sizes)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, rank={self.rank}, axes={self.axes}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, groups={self.groups}, "
            f"bias={self.bias is not None}"
        )

    def _between(self, x: Tensor) -> Tensor:
        self._check_input(x)
        if self._pad_before is not None:
            x = F.pad(x, self._pad_before, mode="constant" if self.padding_mode == "zeros" else self.padding_mode)
        return F.conv2d(x, self.first, None, *self._stages[0], self.groups)

    def _deal(self, values: Pair, rest: Pair) -> tuple[Pair, Pair]:
        """A pair of values dealt out to the two stages, each with `rest` along the other's axes."""
        first = tuple(values[axis] if axis in self.axes else rest[axis] for axis in (0, 1))
        second = tuple(rest[axis] if axis in self.axes else values[axis] for axis in (0, 1))
        return (first[0], first[1]), (second[0], second[1])


Layer = TypeVar("Layer", bound=FactoredConv2d)


def _in_place_of(conv: nn.Conv2d, layer: Layer) -> Layer:
    if layer.bias is not None and conv.bias is not None:
        layer.bias.data.copy_(conv.bias.detach())
    return layer.train(conv.training)


def _check_channels(channels: Tensor, in_channels: int, groups: int) -> None:
    if channels.ndim != 1 or channels.dtype != torch.int64 or len(channels) % groups:
        raise GdwsError(f"channels is {channels.dtype} {tuple(channels.shape)}: expected int64 (G,), G a multiple of {groups}")
    kernels = len(channels)
    if kernels == 0:
        return
    owner = torch.arange(kernels, device=channels.device) // (kernels // groups)
    if bool((channels // (in_channels // groups) != owner).any()) or bool((channels.diff() < 0).any()):
        raise GdwsError(
            f"channels are {channels.tolist()[:8]}...: expected ascending input channels below {in_channels}, "
            f"{kernels // groups} for each of {groups} groups"
        )


def _reread_channels(module: nn.Module, incompatible_keys: Any) -> None:
    assert isinstance(module, GDWSConv2d)
    _check_channels(module.channels, module.in_channels, module.groups)
    module._read_channels()
