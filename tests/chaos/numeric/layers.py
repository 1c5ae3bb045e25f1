"""Layers of every geometry against loops, and curves of losses against the layers that are built."""

from __future__ import annotations

import itertools
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gdws
from chaos.case import Wrong
from gdws.structures import STRUCTURES
from gdws.structures.layers import GDWSConv2d, TwoStageConv2d
from gdws.structures.metric import add_ridge, loss


def _convolution(random: Random, generator: torch.Generator) -> tuple[nn.Conv2d, Tensor, str]:
    groups = random.choice((1, 1, 2, 4))
    kernel = random.choice(((3, 3), (1, 1), (5, 5), (1, 3), (3, 1), (2, 2), (4, 3)))
    dilation = random.choice((1, 1, 2, (1, 3)))
    padding = random.choice((0, 1, 2, (0, 1), (2, 0), "same", "valid"))
    stride = 1 if padding == "same" else random.choice((1, 2, 3, (1, 2), 7))
    mode = random.choice(("zeros", "zeros", "zeros", "reflect", "replicate", "circular"))
    conv = nn.Conv2d(4, 8, kernel, stride, padding, dilation, groups, random.random() < 0.5, mode).double()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    size = random.choice(((20, 20), (19, 33), (32, 23)))
    x = torch.randn(random.choice((1, 2)), 4, *size, generator=generator, dtype=torch.float64)
    told = f"{kernel} stride {stride} padding {padding} dilation {dilation} groups {groups} {mode} {size}"
    return conv, x, f"{told} bias {conv.bias is not None}"


def _by_loops(conv: nn.Conv2d, weight: Tensor, x: Tensor) -> Tensor:
    """The convolution from its definition, tap by tap, in float64."""
    padded = F.pad(
        x, conv._reversed_padding_repeated_twice, mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode
    )
    (sy, sx), (dy, dx), (kh, kw) = conv.stride, conv.dilation, conv.kernel_size
    rows = (padded.shape[2] - dy * (kh - 1) - 1) // sy + 1
    columns = (padded.shape[3] - dx * (kw - 1) - 1) // sx + 1
    out = x.new_zeros(len(x), conv.out_channels, rows, columns)
    per_in, per_out = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    for group in range(conv.groups):
        seen = padded[:, group * per_in : (group + 1) * per_in]
        own = weight[group * per_out : (group + 1) * per_out]
        for i, j in itertools.product(range(kh), range(kw)):
            tap = seen[:, :, i * dy : i * dy + sy * (rows - 1) + 1 : sy, j * dx : j * dx + sx * (columns - 1) + 1 : sx]
            out[:, group * per_out : (group + 1) * per_out] += torch.einsum("mc,bchw->bmhw", own[:, :, i, j], tap)
    return out if conv.bias is None else out + conv.bias[:, None, None]


def layers(random: Random, generator: torch.Generator):
    conv, x, told = _convolution(random, generator)
    kernels, kind = random.choice((0, 3, 8, 20, 500)), random.choice(("gdws", (0,), (1,), (), (0, 1)))
    rank = random.choice((1, 2, 5))

    @torch.no_grad()
    def check() -> None:
        if kind == "gdws":
            factors = gdws.mego(conv.weight, None, kernels, conv.groups)
            layer: nn.Module = GDWSConv2d.from_factors(factors, conv)
            weight = factors.dense()
        else:
            layer = TwoStageConv2d.like(conv, rank, kind)
            for parameter in (layer.first, layer.second):
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            first = layer.first.view(conv.groups, rank, *layer.first.shape[1:])
            second = layer.second.view(conv.groups, -1, *layer.second.shape[1:])
            weight = torch.einsum("grcab,gmrde->gmcadbe", first, second)
            weight = weight.reshape(
                conv.out_channels, -1, *(n * m for n, m in zip(first.shape[3:], second.shape[3:], strict=True))
            )
        wanted, found = _by_loops(conv, weight, x), layer(x)
        if found.shape != wanted.shape:
            raise Wrong(f"a layer gives {tuple(found.shape)}: expected {tuple(wanted.shape)}")
        if not torch.allclose(found, wanted, rtol=1e-9, atol=1e-9):
            raise Wrong(f"a layer gives numbers that differ by up to {float((found - wanted).abs().max()):.3g}")

    return f"layer {kind} {kernels if kind == 'gdws' else rank} for {told}", check


def curves(random: Random, generator: torch.Generator):
    """The losses that a curve promises are those of the layers that are built."""
    name = random.choice(sorted(STRUCTURES))
    outputs, inputs = random.choice((4, 8)), random.choice((2, 4))
    weight = torch.randn(outputs, inputs, 3, 3, generator=generator, dtype=torch.float64) * 10.0 ** random.choice((0, 0, -6, 6))
    patches, gradients = inputs * 9, outputs
    samples = random.choice((2, 20, 200))
    scale = 10.0 ** random.choice((0, 0, -12, -25, 12, 25))

    def moment(size: int) -> Tensor:
        rows = torch.randn(samples, size, generator=generator, dtype=torch.float64)
        if random.random() < 0.3:
            rows[:, : size // 2] = 0  # dead channels
        return add_ridge(scale * rows.T @ rows / samples, 1e-3)

    metric = moment(patches), moment(gradients)
    conv = nn.Conv2d(inputs, outputs, 3, bias=False).double()
    conv.weight.data.copy_(weight)

    def check() -> None:
        structure = STRUCTURES[name]
        if not structure.fits(conv):
            return
        curve = structure.curve(weight, metric)
        losses = curve.losses
        whole = loss(weight, weight * 0, *metric)
        if (
            not bool(losses.isfinite().all())
            or bool((losses.diff() > 1e-9 * whole).any())
            or bool((losses < -1e-6 * whole).any())
        ):
            raise Wrong(f"the curve is {losses[:6].tolist()}: expected finite numbers that do not rise")
        for size in [size for size in structure.sizes(curve) if size][:: max(1, len(losses) // 4)]:
            layer = structure.build(conv, structure.ranks([curve], size), [curve], [metric])
            found = loss(weight, _dense(layer, conv), *metric)
            if not found <= float(losses[size]) * 1.001 + 1e-5 * whole:
                raise Wrong(f"of size {size} loses {found:.6g} of {whole:.6g}: the curve says {float(losses[size]):.6g}")

    return f"curve {name} {outputs}x{inputs} weights of {float(weight.abs().max()):.6g}, {samples} samples of {scale:g}", check


@torch.no_grad()
def _dense(layer: nn.Module, conv: nn.Conv2d) -> Tensor:
    """The weight of a layer, from what it gives for each unit image."""
    taps = conv.in_channels * 9
    units = torch.eye(taps, dtype=torch.float64).view(taps, conv.in_channels, 3, 3)
    return layer(units)[:, :, 0, 0].T.reshape(conv.weight.shape)
