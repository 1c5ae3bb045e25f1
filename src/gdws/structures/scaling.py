"""Powers of two: multiplying by them rounds nothing, so that weights of any scale can be brought to where squares are numbers,
and a product's factors to where their type holds both.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def exponent_of(values: Tensor) -> int:
    """The least e with all magnitudes below 2^e; 0 where all values are zero."""
    return int(torch.frexp(values.abs().amax()).exponent) if values.numel() else 0


def times_two_to(values: Tensor, power: int | Tensor) -> Tensor:
    """values 2^power in float64, exactly where that is in its range."""
    power = torch.as_tensor(power, device=values.device, dtype=torch.int64)
    for part in (power // 2, power - power // 2):  # 2^power itself may be out of range
        values = values.double() * ((part.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)
    return values


def are_held(magnitudes: Tensor, dtype: torch.dtype, power: int = 0) -> Tensor:
    """Which magnitudes 2^power the type holds, with all their digits and room for a factor of two."""
    limits = torch.finfo(dtype)
    low, high = (math.frexp(limit)[1] for limit in (limits.smallest_normal / limits.eps, limits.max))
    exponents = torch.frexp(magnitudes).exponent.long() + power
    return (exponents >= low) & (exponents < high)


def within_range(filters: Tensor, mixing: Tensor, dtype: torch.dtype, power: int = 0) -> tuple[Tensor, Tensor]:
    """The factors filters (..., a) and mixing (..., b) 2^power of some products, in float64, as the type can hold them.

    Where one is too large for it, or so small that it would lose digits, powers of two move from one to the other.
    """
    first, second = (part.abs().amax(-1) for part in (filters, mixing))
    apart = torch.frexp(second).exponent.long() + power - torch.frexp(first).exponent
    fits = are_held(first, dtype) & are_held(second, dtype, power)
    moved = torch.where(fits | (first == 0) | (second == 0), 0, apart // 2)[..., None]
    return times_two_to(filters, moved), times_two_to(mixing, power - moved)
