"""A model through torch.compile with kernels that were tried out, as a CUDA graph: minutes to make, for large float16 batches.

torch.compile joins what stands between convolutions, and with max_autotune it times kernels of its own beside the libraries'.
Two things help it: BatchNorm as one product and one sum, and convolutions, mostly the first, whose channels fill a block.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.contract import placement, unpack
from gdws.errors import GdwsError, first_line
from gdws.progress import track
from gdws.recorded import TYPES, Recorded, check_recorded
from gdws.surgery import replace

OPTIONS = {"coordinate_descent_tuning": True}
"""Of torch.compile: the kernels between convolutions are tuned."""
TRIED = {**OPTIONS, "max_autotune": True, "autotune_num_choices_displayed": 0}
"""The same, with kernels for convolutions tried out."""
BLOCK = 16
"""Channels that the smallest kernels work on together."""


def autotuned(model: nn.Module, example: Tensor, precision: str = "float16") -> Recorded:
    """A copy of a model on a GPU, compiled for batches like `example` (B, C, H, W); up to eight sizes are compiled anew."""
    if precision not in TYPES:
        raise GdwsError(f"precision is {precision!r}: expected {' or '.join(TYPES)}")
    images, _ = unpack(example)
    device, _ = placement(model)
    if device.type != "cuda":
        raise GdwsError(f"the model is on {device}: expected a CUDA device, whose kernels torch.compile tries out")
    made = filled(scaled(model)).to(TYPES[precision])
    try:
        run = Recorded(compiled(made, TRIED), torch.channels_last)
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # beyond it, things would run without torch.compile
            for _ in track(range(3), "torch.compile tries kernels (minutes)"):  # the third call is recorded
                run(images.to(device, TYPES[precision]))
    except Exception as error:
        raise GdwsError(f"torch.compile cannot make the model: {first_line(error)}") from error
    check_recorded([run])
    return run


def compiled(model: nn.Module, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The model through torch.compile, whole: `model.compile()` leaves out a root that is PyTorch's own, such as Sequential."""
    made = torch.compile(model, options=dict(options or {}), dynamic=False)
    assert isinstance(made, nn.Module)
    return made


class Scaled(nn.Module):
    """BatchNorm in eval mode: y = scale x + shift for each channel of x (B, C, H, W), in x's type and not in float32."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight.detach().double()
        shift = -norm.running_mean.double() * scale
        if norm.bias is not None:
            shift = shift + norm.bias.detach().double()
        dtype = norm.running_var.dtype
        self.scale = nn.Buffer(scale.to(dtype)[:, None, None])
        self.shift = nn.Buffer(shift.to(dtype)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Filled(nn.Module):
    """A convolution of few channels as one of a whole block, some of them zeros: three channels make unaligned reads.

    Where they fit into the block its vertical taps become channels first, so that k x k of three channels, nine then, is 1 x k:
    a third of the work, and something that can run on rows (gdws.rows).
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        height, width = conv.kernel_size
        left, right, *self.margins = conv._reversed_padding_repeated_twice
        stacks = 1 < height <= BLOCK // conv.in_channels and conv.padding_mode == "zeros" and left == right
        self.taps = height if stacks else 1
        self.stride, self.dilation = conv.stride[0], conv.dilation[0]
        self.missing = BLOCK - conv.in_channels * self.taps
        weight = conv.weight.detach()
        self.conv = copy.deepcopy(conv)
        self.conv.in_channels = BLOCK
        if stacks:
            weight = weight.transpose(1, 2).reshape(len(weight), -1, 1, width)
            self.conv.kernel_size, self.conv.padding = (1, width), (0, left)
            self.conv.stride, self.conv.dilation = (1, conv.stride[1]), (1, conv.dilation[1])
        self.conv.weight = nn.Parameter(F.pad(weight, (0, 0, 0, 0, 0, self.missing)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.taps > 1:
            x = F.pad(x, (0, 0, *self.margins))
            reach = x.shape[2] - self.dilation * (self.taps - 1)
            x = torch.cat([x[:, :, tap * self.dilation :][:, :, : reach : self.stride] for tap in range(self.taps)], 1)
        y: Tensor = self.conv(F.pad(x, (0, 0, 0, 0, 0, self.missing)))
        return y


def scaled(model: nn.Module) -> nn.Module:
    """A copy in eval mode whose BatchNorms are a scale and a shift; those without statistics of their own stay."""
    made = copy.deepcopy(model).eval()
    norms = [module for module in made.modules() if type(module) is nn.BatchNorm2d and not _hooked(module)]
    replace(made, {norm: Scaled(norm) for norm in norms if norm.running_var is not None})
    return made


def filled(model: nn.Module) -> nn.Module:
    """A copy whose convolutions have at least as many channels as the smallest block; grouped ones stay."""
    made = copy.deepcopy(model)
    convs = [module for module in made.modules() if type(module) is nn.Conv2d and not _hooked(module)]
    replace(made, {conv: Filled(conv) for conv in convs if conv.groups == 1 and conv.in_channels < BLOCK})
    return made


def _hooked(module: nn.Module) -> bool:
    """Whether something happens around it, such as the computing of its weights."""
    return bool(module._forward_pre_hooks or module._forward_hooks)
