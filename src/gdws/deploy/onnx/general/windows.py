"""Operators that slide a window over the last axes: convolutions, transposed ones and pools, of any rank and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.rearranging import Attributes

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def pads_of(attributes: Attributes, window: Sequence[int], sizes: Sequence[Any]) -> list[Any]:
    """What is padded: before all axes, then after them.

    window  sizes of the kernel.
    sizes   of the input's last axes. They matter where SAME_UPPER and SAME_LOWER pad what ceil(size / stride) outputs need.
    """
    count = len(window)
    kind = attributes.get("auto_pad", b"NOTSET")
    if kind in (b"NOTSET", b""):
        return list(attributes.get("pads", [0] * 2 * count))
    if kind == b"VALID":
        return [0] * 2 * count
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    before, after = [], []
    for size, taps, stride, dilation in zip(sizes, window, strides, dilations, strict=True):
        reach = dilation * (taps - 1) + 1
        total = reach - 1 if stride == 1 else torch.sym_max(0, (-(-size // stride) - 1) * stride + reach - size)
        small, large = total // 2, total - total // 2
        before.append(small if kind == b"SAME_UPPER" else large)
        after.append(large if kind == b"SAME_UPPER" else small)
    return before + after


def pad(x: Tensor, pads: Sequence[Any], value: float = 0.0) -> Tensor:
    """ONNX gives what comes before all axes, then what comes after; PyTorch wants the last axis first."""
    count = len(pads) // 2
    last_first = [each for axis in reversed(range(count)) for each in (pads[axis], pads[axis + count])]
    return x if all(isinstance(each, int) and each == 0 for each in pads) else F.pad(x, last_first, value=value)


def is_symmetric(pads: Sequence[Any]) -> bool:
    count = len(pads) // 2
    return all(isinstance(each, int) for each in pads) and list(pads[:count]) == list(pads[count:])


def convolution(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, weight, bias = [*inputs, None][:3]
    count = weight.ndim - 2
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = pads_of(attributes, weight.shape[2:], x.shape[2:])
    own = pads[:count] if is_symmetric(pads) else [0] * count
    padded = x if is_symmetric(pads) else pad(x, pads)
    return CONVOLUTIONS[count](padded, weight, bias, strides, own, dilations, attributes.get("group", 1))


def transposed_padding(attributes: Attributes, window: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """The padding and the output padding by which PyTorch's transposed convolution does what ONNX's does, and what must be cut
    off then at the beginning and the end of each axis, where it cuts as much at both."""
    if "output_shape" in attributes:
        raise GdwsError("a ConvTranspose names its output_shape: expected pads")
    count = len(window)
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    before, after = _cut_by_transposed(attributes, window, strides, dilations)
    axes: list[tuple[int, int, tuple[int, int]]] = []
    own = attributes.get("output_padding", [0] * count)
    for first, last, more, stride, dilation in zip(before, after, own, strides, dilations, strict=True):
        missing = first - last + more  # what is cut off less at the end is put on there
        least = min(first, last)
        fits = 0 <= missing < max(stride, dilation)
        axes.append((first, missing, (0, 0)) if fits else (least, more, (first - least, last - least)))
    padding, extra, cuts = (list(column) for column in zip(*axes, strict=True))
    return padding, extra, cuts


def _cut_by_transposed(
    attributes: Attributes, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """What ONNX cuts off before and after each axis. SAME leaves stride times the size of the input."""
    count = len(window)
    kind = attributes.get("auto_pad", b"NOTSET")
    if kind not in (b"SAME_UPPER", b"SAME_LOWER"):
        pads = list(attributes.get("pads", [0] * 2 * count))
        return pads[:count], pads[count:]
    own = attributes.get("output_padding", [0] * count)
    totals = [
        dilation * (taps - 1) + 1 + more - stride
        for taps, stride, dilation, more in zip(window, strides, dilations, own, strict=True)
    ]
    halves = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return halves if kind == b"SAME_UPPER" else (halves[1], halves[0])


def transposed_convolution(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, weight, bias = [*inputs, None][:3]
    count = weight.ndim - 2
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    padding, extra, cuts = transposed_padding(attributes, weight.shape[2:])
    made: Tensor = TRANSPOSED[count](x, weight, bias, strides, padding, extra, attributes.get("group", 1), dilations)
    for axis, (first, last) in enumerate(cuts, 2):
        made = made.narrow(axis, first, made.shape[axis] - first - last)
    return made


def max_pool(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, size = inputs[0], attributes["kernel_shape"]
    count = len(size)
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = pads_of(attributes, size, x.shape[2:])
    inside = is_symmetric(pads) and all(2 * each <= taps for each, taps in zip(pads, size, strict=False))
    padded, own = (x, pads[:count]) if inside else (pad(x, pads, -torch.inf), [0] * count)
    pooled: Tensor = MAX_POOLS[count](padded, size, strides, own, dilations, bool(attributes.get("ceil_mode", 0)))
    return pooled


def average_pool(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, size = inputs[0], attributes["kernel_shape"]
    count = len(size)
    strides = attributes.get("strides", [1] * count)
    pads = pads_of(attributes, size, x.shape[2:])
    ceil, counts = bool(attributes.get("ceil_mode", 0)), bool(attributes.get("count_include_pad", 0))
    average = AVERAGE_POOLS[count]
    if is_symmetric(pads) and all(2 * each <= taps for each, taps in zip(pads, size, strict=False)):
        return average(x, size, strides, pads[:count], ceil, counts)
    if counts:
        return average(pad(x, pads), size, strides, 0, ceil)
    present = pad(torch.ones_like(x[:1, :1]), pads)
    return average(pad(x, pads), size, strides, 0, ceil) / average(present, size, strides, 0, ceil)


def local_response(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Of so many neighboring channels, an odd number: of an even one PyTorch takes the others."""
    size = attributes["size"]
    if size % 2 == 0:
        raise GdwsError(f"an LRN is of {size} channels: expected an odd number")
    settings = (attributes.get("alpha", 1e-4), attributes.get("beta", 0.75), attributes.get("bias", 1.0))
    return F.local_response_norm(inputs[0], size, *settings)


WINDOWS = {
    "AveragePool": average_pool,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "LRN": local_response,
    "MaxPool": max_pool,
}
READ = {
    "AveragePool": "kernel_shape strides pads ceil_mode count_include_pad auto_pad",
    "Conv": "kernel_shape strides dilations pads group auto_pad",
    "ConvTranspose": "kernel_shape strides dilations pads group auto_pad output_padding output_shape",
    "LRN": "alpha beta bias size",
    "MaxPool": "kernel_shape strides dilations pads ceil_mode auto_pad",
}
