"""Operators of ONNX on the spatial axes of maps, one to three, as gdws exports them: convolutions, pools, changes of size.

Those of any other network, of any padding, are in gdws.deploy.onnx.general.windows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.rearranging import Attributes, numbers_in

RESIZED: dict[tuple[str, str, str], dict[str, Any]] = {
    ("nearest", "asymmetric", "floor"): {"mode": "nearest"},
    ("nearest", "half_pixel", "round_prefer_ceil"): {"mode": "nearest-exact"},
    ("linear", "half_pixel", ""): {"mode": "linear", "align_corners": False},
    ("linear", "align_corners", ""): {"mode": "linear", "align_corners": True},
    ("cubic", "half_pixel", ""): {"mode": "bicubic", "align_corners": False},
    ("cubic", "align_corners", ""): {"mode": "bicubic", "align_corners": True},
}
"""What PyTorch calls the kinds of Resize that it exports: mode, coordinates and, of the nearest, rounding."""
CUBIC = -0.75
"""PyTorch's coefficient of cubic interpolation, and the only one."""


def convolution(inputs: list[Any], attributes: Attributes) -> Tensor:
    x, weight, bias = [*inputs, None][:3]
    ones = [1] * (x.ndim - 2)
    stride, dilation = (attributes.get(name, ones) for name in ("strides", "dilations"))
    convolve = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    return convolve(padded(x, attributes), weight, bias, stride, 0, dilation, attributes.get("group", 1))


def transposed_convolution(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Without paddings, which are then cut off: ONNX has other ones before than after."""
    x, weight, bias = [*inputs, None][:3]
    size = x.ndim - 2
    stride, dilation = (attributes.get(name, [1] * size) for name in ("strides", "dilations"))
    more, group = attributes.get("output_padding", [0] * size), attributes.get("group", 1)
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[size - 1]
    whole = convolve(x, weight, bias, stride, 0, more, group, dilation)
    pads = attributes.get("pads", [0] * 2 * size)
    return padded(whole, {"pads": [-each for each in pads]})


def padded(x: Tensor, attributes: Attributes, value: float = 0.0) -> Tensor:
    """ONNX pads all beginnings, then all ends; PyTorch the last axis first."""
    size = x.ndim - 2
    pads = attributes.get("pads", [0] * 2 * size)
    last_first = [each for axis in reversed(range(size)) for each in (pads[axis], pads[axis + size])]
    return F.pad(x, last_first, value=value) if any(pads) else x


def max_pool(inputs: list[Any], attributes: Attributes) -> Tensor:
    x = padded(inputs[0], attributes, -torch.inf)
    size = attributes["kernel_shape"]
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3]
    result: Tensor = pool(x, size, attributes.get("strides", [1] * len(size)), ceil_mode=bool(attributes.get("ceil_mode", 0)))
    return result


def average_pool(inputs: list[Any], attributes: Attributes) -> Tensor:
    size = attributes["kernel_shape"]
    pads = attributes.get("pads", [0] * 2 * len(size))
    if pads[: len(size)] != pads[len(size) :]:
        raise GdwsError(f"an AveragePool has the pads {pads}: expected as many before as after")
    ceil, counts = bool(attributes.get("ceil_mode", 0)), bool(attributes.get("count_include_pad", 0))
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(size) - 1]
    return pool(inputs[0], size, attributes.get("strides", [1] * len(size)), pads[: len(size)], ceil, counts)


def resized(inputs: list[Any], attributes: Attributes) -> Tensor:
    """By scales or to sizes, of all but the first two axes, in one of the ways that PyTorch has."""
    x, _, scales, sizes = [*inputs, None, None][:4]
    mode = attributes.get("mode", b"nearest").decode()
    places = attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    rounding = attributes.get("nearest_mode", b"round_prefer_floor").decode() if mode == "nearest" else ""
    options = RESIZED.get((mode, "half_pixel" if places == "pytorch_half_pixel" else places, rounding))
    if options is None or (mode == "cubic" and abs(attributes.get("cubic_coeff_a", CUBIC) - CUBIC) > 1e-6):
        raise GdwsError(f"a Resize is {mode}, {places} {rounding}: expected one that PyTorch exports")
    if options["mode"] == "linear":
        options = options | {"mode": ("linear", "bilinear", "trilinear")[x.ndim - 3]}
    if sizes is not None:
        whole = numbers_in(sizes)
        kept, target = list(x.shape[:2]) == list(whole[:2]), {"size": whole[2:]}
    else:
        whole = numbers_in(scales)
        kept, target = list(whole[:2]) == [1, 1], {"scale_factor": whole[2:], "recompute_scale_factor": False}
    if not kept:
        raise GdwsError(f"a Resize changes batch or channels, by {whole}: expected height and width alone")
    result: Tensor = F.interpolate(x, **options, **target)
    return result


def depth_to_space(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Of mode CRD as PixelShuffle has it, or with depth first."""
    x, size = inputs[0], attributes["blocksize"]
    if attributes.get("mode", b"DCR") == b"CRD":
        return F.pixel_shuffle(x, size)
    return F.pixel_shuffle(x.unflatten(1, (size * size, -1)).transpose(1, 2).flatten(1, 2), size)


def space_to_depth(inputs: list[Any], attributes: Attributes) -> Tensor:
    """Depth first, unlike PixelUnshuffle."""
    size = attributes["blocksize"]
    blocks: Tensor = F.pixel_unshuffle(inputs[0], size).unflatten(1, (-1, size * size))
    return blocks.transpose(1, 2).flatten(1, 2)
