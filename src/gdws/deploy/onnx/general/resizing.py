"""Resize: an image of another size, by PyTorch's own interpolation where it is the same, else from the definition."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gdws.core.errors import GdwsError

Attributes = dict[str, Any]
LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
HALF = ("half_pixel", "pytorch_half_pixel")


def resize(inputs: list[Any], attributes: Attributes) -> Tensor:
    """inputs: the images (B, C, ...), a region that is not used, scales, and sizes; the last two as numbers, one of them."""
    x: Tensor = inputs[0]
    mode = _word(attributes, "mode", "nearest")
    frame = _word(attributes, "coordinate_transformation_mode", "half_pixel")
    rounding = _word(attributes, "nearest_mode", "round_prefer_floor")
    wanted, factors = _target(x, [*inputs, None, None, None][2:4], attributes.get("axes"))
    exact = len(inputs) > 3 and bool(inputs[3])  # factors that are those of the sizes, as PyTorch's are
    if (own := _of_pytorch(mode, frame, rounding, factors, x.ndim, exact)) is not None:
        corners = None if own == "nearest" else frame == "align_corners"
        if own == "bicubic" and attributes.get("cubic_coeff_a", -0.75) != -0.75:
            raise GdwsError("a Resize is cubic with other coefficients: expected -0.75")
        return F.interpolate(x, size=wanted[2:], mode=own, align_corners=corners)
    if mode == "cubic":
        raise GdwsError(f"a Resize is cubic with {frame}: expected images, and half_pixel or align_corners")
    for axis in range(2, x.ndim):
        if not (isinstance(factors[axis], int | float) and factors[axis] == 1):
            places = _places(x, axis, wanted[axis], factors[axis], frame)
            x = _nearest(x, axis, places, rounding) if mode == "nearest" else _linear(x, axis, places)
    return x


def _target(x: Tensor, given: list[Any], axes: list[int] | None) -> tuple[list[Any], list[Any]]:
    """The new size of each axis, and how many times the old one it is."""
    scales, sizes = given
    named = [axis % x.ndim for axis in axes or range(x.ndim)]
    wanted, factors = list(x.shape), [1.0] * x.ndim
    if sizes:
        for axis, size in zip(named, sizes, strict=True):
            if axis > 1:
                wanted[axis], factors[axis] = size, size / x.shape[axis]
    elif scales:
        for axis, scale in zip(named, scales, strict=True):
            wanted[axis], factors[axis] = _scaled(x.shape[axis], scale), scale
        if any(factor != 1 for factor in factors[:2]):
            raise GdwsError(f"a Resize scales by {factors}: expected only the axes of the image")
    else:
        raise GdwsError("a Resize has neither scales nor sizes: expected one of them")
    return wanted, factors


def _of_pytorch(mode: str, frame: str, rounding: str, factors: list[Any], rank: int, exact: bool) -> str | None:
    """PyTorch's word for an interpolation, if it has this one."""
    whole = all(_is_whole(factor) for factor in factors[2:])
    if mode == "nearest":
        if frame == "asymmetric":
            half_way = rounding == "round_prefer_floor" and whole and max(factors) <= 2  # of which the lower is taken
            return "nearest" if rounding == "floor" or half_way else None
        return "nearest" if frame in HALF and rounding.startswith("round") and whole else None
    if frame != "align_corners" and not (frame in HALF and (whole or exact)):
        return None
    return LINEAR.get(rank) if mode == "linear" else "bicubic" if rank == 4 else None


def _word(attributes: Attributes, name: str, usual: str) -> str:
    return str(attributes.get(name, usual.encode()).decode())


def _is_whole(factor: Any) -> bool:
    return isinstance(factor, int | float) and factor == int(factor)


def _scaled(size: Any, scale: Any) -> Any:
    """floor(size * scale), without a float in it where there need not be one: a trace then knows it."""
    return size * int(scale) if _is_whole(scale) else math.floor(size * scale)


def _places(x: Tensor, axis: int, count: Any, factor: Any, frame: str) -> Tensor:
    """Where in the old axis each place of the new one is."""
    places: Tensor = torch.arange(count, device=x.device, dtype=torch.float32)
    if frame in HALF:
        places = (places + 0.5).div(factor) - 0.5
    elif frame == "asymmetric":
        places = places.div(factor)
    elif frame == "align_corners":
        places = places.mul((x.shape[axis] - 1) / max(count - 1, 1))
    else:
        raise GdwsError(f"a Resize has the coordinates {frame}: expected half_pixel, align_corners or asymmetric")
    return places


def _nearest(x: Tensor, axis: int, places: Tensor, rounding: str) -> Tensor:
    ways = {
        "round_prefer_floor": lambda: torch.ceil(places - 0.5),
        "round_prefer_ceil": lambda: torch.floor(places + 0.5),
        "floor": places.floor,
        "ceil": places.ceil,
    }
    return x.index_select(axis, ways[rounding]().clamp(0, x.shape[axis] - 1).long())


def _linear(x: Tensor, axis: int, places: Tensor) -> Tensor:
    places = places.clamp(0, x.shape[axis] - 1)
    low = places.floor()
    share = (places - low).to(x.dtype).view(-1, *(1 for _ in range(x.ndim - axis - 1)))
    high = (low + 1).clamp(max=x.shape[axis] - 1)
    return x.index_select(axis, low.long()) * (1 - share) + x.index_select(axis, high.long()) * share


READ = {"Resize": "axes coordinate_transformation_mode cubic_coeff_a mode nearest_mode"}
