"""Factors of extreme weights, against singular values in float64."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import torch
from torch import Tensor

import gdws
from chaos.case import Wrong
from gdws.core.errors import GdwsError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _weight(random: Random, generator: torch.Generator, groups: int = 1) -> tuple[Tensor, str]:
    """Anywhere between the smallest and the largest numbers of a type; of full rank, low rank, with zeros or equal values."""
    dtype = random.choice(FLOATS)
    info = torch.finfo(dtype)
    outputs, inputs = groups * random.choice((1, 2, 3, 8)), random.choice((1, 2, 4, 5))
    shape = (outputs, inputs, *random.choice(((1, 1), (3, 3), (3, 3), (1, 5), (2, 3), (5, 5))))
    base = torch.randn(shape, generator=generator, dtype=torch.float64)
    kind = random.choice(("full", "full", "low", "zeros", "equal", "one", "spread"))
    if kind == "low":
        base = base[:, :, :1, :1] * base[:1, :, :, :]
    elif kind == "zeros":
        base *= torch.rand(shape, generator=generator) < 0.3
    elif kind == "equal":
        base = base.sign()
    elif kind == "one":
        base = base * 0
        base.view(-1)[random.randrange(base.numel())] = 1.0
    elif kind == "spread":
        base *= 10.0 ** torch.linspace(-8, 0, inputs, dtype=torch.float64)[:, None, None]
    low, high = math.log10(info.tiny * 2**-8 if dtype != torch.float16 else 6e-8), math.log10(info.max)
    exponent = random.choice((0.0, 0.0, low, high, random.uniform(low, high)))
    largest = float(base.abs().max()) or 1.0
    exponent = min(exponent, 308.25)
    weight = (base / largest * 10.0**exponent).clamp(-info.max, info.max).to(dtype)
    return weight, f"{kind} {dtype} {shape} of {10.0**exponent:.3g}"


def _alpha(random: Random, generator: torch.Generator, channels: int) -> tuple[Tensor | None, str]:
    """Importances of the channels."""
    kind = random.choice(("none", "none", "ones", "spread", "some zero", "all zero", "huge", "tiny"))
    values = torch.rand(channels, generator=generator, dtype=torch.float64) + 0.1
    made = {
        "none": None,
        "ones": values * 0 + 1,
        "spread": 10 ** (20 * values - 10),
        "some zero": values * (values > 0.6),
        "all zero": values * 0,
        "huge": values * 1e30,
        "tiny": values * 1e-30,
    }
    return made[kind], kind


def gains_of(weight: Tensor, alpha: Tensor | None, groups: int) -> tuple[np.ndarray, float]:
    """alpha_c sigma_ic^2 of the weight over its largest number, by group; and that number. By numpy, in float64."""
    largest = float(weight.double().abs().max())
    scaled = weight.double().numpy() / (largest or 1.0)
    outputs, inputs = weight.shape[:2]
    found = []
    for group, block in enumerate(scaled.reshape(groups, outputs // groups, inputs, -1)):
        for channel in range(inputs):
            sigma = np.linalg.svd(block[:, channel], compute_uv=False)
            own = 1.0 if alpha is None else float(alpha[group * inputs + channel])
            found.append(own * sigma**2)
    return np.stack(found).reshape(groups, inputs, -1), largest


def loss_of(weight: Tensor, factors: gdws.Factors, alpha: Tensor | None, largest: float) -> float:
    """The weighted squared error of factors, of the weight over its largest number."""
    parts = torch.float64
    whole = gdws.Factors(
        factors.g, factors.channels, factors.depthwise.to(parts), factors.pointwise.to(parts), groups=factors.groups
    )
    if not all(bool(part.isfinite().all()) for part in (factors.depthwise, factors.pointwise)):
        raise Wrong("the factors are not finite")
    # Half of the scale goes into each factor, so that a product of large ones stays a number.
    root = math.sqrt(largest) or 1.0
    whole = gdws.Factors(whole.g, whole.channels, whole.depthwise / root, whole.pointwise / root, groups=whole.groups)
    difference = whole.dense() - weight.double() / (largest or 1.0)
    by_channel = difference.view(factors.groups, -1, weight.shape[1], weight[0, 0].numel()).square().sum((1, 3)).flatten()
    return float((by_channel * (1.0 if alpha is None else alpha)).sum())


def mego(random: Random, generator: torch.Generator):
    groups = random.choice((1, 1, 1, 2))
    weight, told = _weight(random, generator, groups)
    alpha, kind = _alpha(random, generator, weight.shape[1] * groups)
    kernels = random.choice((0, 1, 2, 3, 5, 10, 50))

    def check() -> None:
        gains, largest = gains_of(weight, alpha, groups)
        factors = not_called_nan(lambda: gdws.mego(weight, alpha, kernels, groups))
        best = sum(np.sort(own.ravel())[::-1][kernels // groups :].sum() for own in gains)
        _compare_error(weight, factors, alpha, largest, best, gains)
        if int(factors.g.sum()) > kernels:
            raise Wrong(f"{int(factors.g.sum())} kernels: expected at most {kernels}")

    return f"mego {told}, alpha {kind}, {kernels} kernels, {groups} groups", check


def not_called_nan(work):
    """Finite weights may be refused as too large or small, but not as what they are not."""
    try:
        return work()
    except GdwsError as error:
        if "NaN" in str(error):
            raise Wrong(f"finite numbers were refused as others: {error}") from None
        raise


def _compare_error(
    weight: Tensor, factors: gdws.Factors, alpha: Tensor | None, largest: float, best: float, gains: np.ndarray
) -> None:
    found, total = loss_of(weight, factors, alpha, largest), float(gains.sum())
    rounding = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-9}[weight.dtype]
    if found > best + rounding * total + 1e-300:
        raise Wrong(f"the factors lose {found:.6g} of {total:.6g}: expected {best:.6g}")
    scale = largest * largest
    told = 0 < scale < math.inf and 1e-290 < best * scale < math.inf
    if told and not math.isclose(factors.error, best * scale, rel_tol=1e-5, abs_tol=1e-6 * total * scale):
        raise Wrong(f"the error is said to be {factors.error:.6g}: expected {best * scale:.6g}")


def lego(random: Random, generator: torch.Generator):
    groups = random.choice((1, 1, 2))
    weight, told = _weight(random, generator, groups)
    alpha, kind = _alpha(random, generator, weight.shape[1] * groups)
    share = random.choice((0.0, 1e-12, 0.01, 0.1, 0.5, 1.0, 2.0))

    def check() -> None:
        gains, largest = gains_of(weight, alpha, groups)
        total = float(gains.sum())
        beta = share * total * largest * largest
        if not math.isfinite(beta) or (share and total and beta < 1e-290):
            return  # what cannot be said in float64
        factors = not_called_nan(lambda: gdws.lego(weight, alpha, beta, groups))
        bound = beta / (largest * largest) if largest * largest > 0 else 0.0
        ordered = [np.sort(own.ravel())[::-1] for own in gains]
        per_group = next(q for q in range(len(ordered[0]) + 1) if sum(own[q:].sum() for own in ordered) <= bound + 1e-6 * total)
        rounding = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-9}[weight.dtype]
        if loss_of(weight, factors, alpha, largest) > bound + (rounding + 1e-9) * total + 1e-300 and share > 0:
            raise Wrong(f"the factors lose more than the bound, {share} of all")
        least, found = per_group * groups, len(factors.channels)
        if share >= 0.01 and found > least:
            raise Wrong(f"{found} kernels: {least} are enough")

    return f"lego {told}, alpha {kind}, beta {share} of all, {groups} groups", check
