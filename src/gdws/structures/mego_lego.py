"""Optimal GDWS approximation of one convolution: MEGO and LEGO of the paper. Tensors in, tensors out.

A convolution with weight (M, C, kh, kw) is C matrices W_c (M x K, K = kh*kw), one for each input channel. A GDWS
convolution with channel distribution g stands for matrices Q_c of rank at most g_c, so by Eckart and Young the best one
truncates the singular value decomposition of every W_c, and its weighted squared error is

    e^2 = sum_c alpha_c ||W_c - Q_c||_F^2 = sum_c alpha_c sum_{i > g_c} sigma_{i,c}^2.

The error is a sum of one term for each kernel left out, and the terms of a channel fall with i. Keeping the largest terms
therefore gives the least error for a number of kernels (MEGO) and the fewest kernels for an error (LEGO).

`beta` bounds e^2, the *squared* error, everywhere in this project, as in the paper's algorithms and tables.

A grouped convolution is `groups` convolutions side by side. They all get the same number of kernels, so that their
pointwise stages run as one grouped convolution; the total is then what both algorithms are optimal in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.structures.scaling import are_held, exponent_of, times_two_to, within_range

Triplets = tuple[Tensor, Tensor, Tensor, Tensor, int]
"""Of the weights over 2^e, whose squares are numbers in float64: the blocks W_c, and their singular value decompositions
sigma^2, U sigma, V^T (`channel_svd`); and e."""


@dataclass(frozen=True)
class Factors:
    """A GDWS convolution as tensors: G depthwise kernels and a pointwise mix of what they give.

    g          (C,)            kernels of each input channel
    channels   (G,)            the input channel that each kernel reads, ascending
    depthwise  (G, kh, kw)     the kernels
    pointwise  (M, G / groups) the mix
    error      the weighted squared error that was left, where the factors came from `mego` or `lego`; else NaN
    groups     of the convolution

    >>> import gdws, torch
    >>> factors = gdws.mego(torch.rand(8, 4, 3, 3), None, kernels=6)
    >>> tuple(factors.depthwise.shape), tuple(factors.pointwise.shape)
    ((6, 3, 3), (8, 6))
    """

    g: Tensor
    channels: Tensor
    depthwise: Tensor
    pointwise: Tensor
    error: float = math.nan
    groups: int = 1

    def dense(self) -> Tensor:
        """The weight of the dense convolution that these factors stand for: (M, C / groups, kh, kw)."""
        outputs, inputs = len(self.pointwise), len(self.g)
        kernel = self.depthwise.shape[1:]
        weight = self.pointwise.new_zeros(self.groups, outputs // self.groups, inputs // self.groups, *kernel)
        mix = self.pointwise.view(self.groups, outputs // self.groups, -1)
        per_group = mix.shape[2]
        level = torch.arange(len(self.channels), device=self.channels.device) - torch.searchsorted(self.channels, self.channels)
        for index in range(int(level.max()) + 1 if len(level) else 0):
            # Kernels of one level read different channels, so each level is added without collisions.
            kernels = (level == index).nonzero()[:, 0]
            group, local = kernels // per_group, self.channels[kernels] % (inputs // self.groups)
            columns = mix[group, :, kernels % per_group]
            weight[group, :, local] += columns[:, :, None, None] * self.depthwise[kernels][:, None]
        return weight.reshape(outputs, inputs // self.groups, *kernel)


@dataclass(frozen=True)
class Spectrum:
    """Everything that MEGO and LEGO need to know of a layer, for any number of kernels.

    order   (groups, n)  kernels (channel within the group) from the most to the least worth keeping
    scaled  (n + 1,)     the weighted squared error with the first q kernels of every group kept, q = 0..n, over 2^exponent
    """

    order: Tensor
    scaled: Tensor
    channels_per_group: int
    exponent: int = 0

    @property
    def errors(self) -> Tensor:
        """The weighted squared error with the first q kernels of every group kept: (n + 1,)."""
        return times_two_to(self.scaled, self.exponent)

    def kernels_for(self, beta: float) -> int:
        """LEGO's answer: the least q (kernels in each group) whose error is at most beta."""
        if not 0 <= beta <= torch.finfo(torch.float64).max and beta != math.inf:
            raise GdwsError(f"beta is {beta!s:.40}: expected a number >= 0 (it bounds the squared error)")
        # The slack makes LEGO the inverse of MEGO when beta is an error that another summation order rounded.
        bound = times_two_to(torch.tensor(beta, dtype=torch.float64), -self.exponent).to(self.scaled.device)
        return int((self.scaled <= bound * (1 + 1e-12)).int().argmax())

    def distribution(self, per_group: int) -> Tensor:
        """g (C,) with the first `per_group` kernels of every group kept."""
        kept = self.order[:, :per_group]
        counts = [torch.bincount(row[row >= 0], minlength=self.channels_per_group) for row in kept]
        return torch.cat(counts)


def mego(weight: Tensor, alpha: Tensor | None, kernels: int, groups: int = 1) -> Factors:
    """The GDWS approximation of least weighted error with at most `kernels` depthwise kernels (Algorithm 1).

    weight   (M, C / groups, kh, kw), of any floating type.
    alpha    (C,) >= 0, the weight of each channel in the error; None for ones. Channels with alpha = 0 do not count and get no
             kernel.
    kernels  depthwise kernels in all, rounded down to a multiple of groups.
    groups   of the convolution.

    Returns Factors, in the weight's type and on its device. Raises GdwsError when kernels is below 0, or weight or alpha are
    not as above or not finite.

    >>> import gdws, torch
    >>> gdws.mego(torch.eye(4)[:, :, None, None].expand(4, 4, 3, 3), None, 2).g.sum().item()
    2
    """
    if kernels < 0:
        raise GdwsError(f"{kernels} depthwise kernels were asked for: expected at least 0")
    triplets = _triplets(weight, groups)
    spectrum = _spectrum(triplets, alpha, groups)
    kept = min(kernels // groups, spectrum.order.shape[1])
    return _cut(triplets, spectrum.distribution(kept), float(spectrum.errors[kept]), weight, groups)


def lego(weight: Tensor, alpha: Tensor | None, beta: float, groups: int = 1) -> Factors:
    """The GDWS approximation of fewest kernels with weighted squared error at most `beta` (Algorithm 2).

    weight  (M, C / groups, kh, kw), of any floating type.
    alpha   (C,) >= 0, the weight of each channel in the error; None for ones. Channels with alpha = 0 do not count and get no
            kernel.
    beta    bound on the squared error sum_c alpha_c ||W_c - Q_c||^2, at least 0.
    groups  of the convolution.

    Returns Factors, in the weight's type and on its device. Raises GdwsError when beta is below 0, or weight or alpha are not
    as above or not finite.

    >>> import gdws, torch
    >>> weight = torch.rand(8, 4, 3, 3)
    >>> energy = float(weight.square().sum())
    >>> factors = gdws.lego(weight, None, beta=0.1 * energy)
    >>> float((weight - factors.dense()).square().sum()) <= 0.1001 * energy
    True
    """
    triplets = _triplets(weight, groups)
    spectrum = _spectrum(triplets, alpha, groups)
    kept = spectrum.kernels_for(beta)
    return _cut(triplets, spectrum.distribution(kept), float(spectrum.errors[kept]), weight, groups)


def spectrum_of(weight: Tensor, alpha: Tensor | None, groups: int = 1) -> Spectrum:
    """The order in which a layer's kernels are kept, and the error left after each."""
    return _spectrum(_triplets(weight, groups), alpha, groups)


def rank_kernels(gains: Tensor, groups: int = 1) -> Spectrum:
    """Sort kernels by what each is worth. gains (C, R): of the i-th kernel of channel c, not increasing along i."""
    channels = len(gains) // groups
    # Rounding may not break the prefix rule (kernel i only after 1..i-1): neither within a channel (cummin) nor between
    # equal gains (kernel-major order and a stable sort).
    gains = gains.cummin(dim=1).values.view(groups, channels, -1).transpose(1, 2).flatten(1)
    gains, order = gains.sort(dim=1, descending=True, stable=True)
    order = torch.where(gains > 0, order % channels, -1)
    useful = int((order >= 0).sum(1).max()) if order.numel() else 0
    by_size = gains[:, :useful].sum(0)
    errors = torch.cat([by_size.flip(0).cumsum(0).flip(0), by_size.new_zeros(1)])
    return Spectrum(order[:, :useful], errors, channels)


def truncate(weight: Tensor, g: Tensor, groups: int = 1) -> Factors:
    """The best factors with channel distribution g (Lemma 2): each W_c cut to its g_c leading singular triplets.

    Where a channel loses nothing and its matrix has no more non-zero columns (or rows) than its rank, the unit vectors of
    those taps (or outputs) are used instead of singular vectors: the same kernels, no rounding, sparse factors.
    """
    return _cut(_triplets(weight, groups), g, math.nan, weight, groups)


def _cut(triplets: Triplets, g: Tensor, error: float, weight: Tensor, groups: int) -> Factors:
    blocks, energy, left, right, exponent = triplets
    if g.shape != (len(blocks),) or bool((g < 0).any()):
        raise GdwsError(f"g has shape {tuple(g.shape)}: expected ({len(blocks)},) integers >= 0")
    rank = (energy > 0).sum(1)
    g = torch.minimum(g.to(rank), rank)
    left, right = _sparse_where_free(blocks, (g == rank) & (g > 0), rank, left, right)
    # Kernels and columns have norm 1 or that of a product. Of ordinary weights they are left alone, without a pass over them.
    norms = torch.cat([energy[energy > 0].sqrt(), energy.new_ones(1)])
    largest = torch.cat([norms, norms / max(blocks.shape[1:]) ** 0.5])
    if exponent or not bool(are_held(largest, weight.dtype).all()):
        right, columns = within_range(right, left.mT, weight.dtype, exponent)
        left = columns.mT
    kernel = (weight.shape[2], weight.shape[3])
    return assemble(g, left, right, kernel, groups, weight.dtype, error)


def assemble(
    g: Tensor, left: Tensor, right: Tensor, kernel: tuple[int, int], groups: int, dtype: torch.dtype, error: float
) -> Factors:
    """Factors from the leading g_c columns of left (C, M / groups, R) and rows of right (C, R, K), channel by channel.

    Groups with fewer kernels than the largest are filled with zero kernels of their first channel.
    """
    channels_per_group = len(g) // groups
    kept = torch.arange(right.shape[1], device=g.device) < g[:, None]
    depthwise, columns = right[kept], left.mT[kept]
    channels = torch.arange(len(g), device=g.device).repeat_interleave(g)
    if groups > 1:
        sizes = g.view(groups, -1).sum(1)
        largest = int(sizes.max())
        slots = torch.arange(largest, device=g.device) < sizes[:, None]
        first = torch.arange(groups, device=g.device)[:, None] * channels_per_group
        # A zero kernel goes in front of its group's own, so that the channels stay in ascending order.
        slots = slots.flip(1)

        def fill(values: Tensor, empty: Tensor) -> Tensor:
            full = empty.expand(groups, largest, *values.shape[1:]).clone()
            full[slots] = values
            return full.flatten(0, 1)

        depthwise = fill(depthwise, depthwise.new_zeros(()))
        columns = fill(columns, columns.new_zeros(()))
        channels = fill(channels, first)
    mix = columns.view(groups, -1, left.shape[1]).transpose(1, 2)
    return Factors(
        g=torch.bincount(channels, minlength=len(g)),
        channels=channels,
        depthwise=depthwise.view(-1, *kernel).to(dtype),
        pointwise=mix.reshape(groups * left.shape[1], -1).to(dtype),
        error=error,
        groups=groups,
    )


def _triplets(weight: Tensor, groups: int) -> Triplets:
    blocks = channel_blocks(weight, groups)
    exponent = 0
    if weight.dtype == torch.float64:  # the squares of shorter types are numbers as they are: no pass over the weights
        exponent = exponent_of(weight)
        blocks = times_two_to(blocks, -exponent)
    return (blocks, *channel_svd(blocks, _tolerance(weight.dtype)), exponent)


def _spectrum(triplets: Triplets, alpha: Tensor | None, groups: int) -> Spectrum:
    """Of alpha_c sigma_{i,c}^2, what each kernel is worth."""
    blocks, energy, _, _, exponent = triplets
    scale = 0
    if alpha is not None:
        real = not alpha.is_complex() and not alpha.is_meta and alpha.layout == torch.strided
        if not real or alpha.shape != (len(energy),) or not bool((alpha >= 0).all()) or not bool(alpha.isfinite().all()):
            raise GdwsError(f"alpha is {alpha.dtype} {tuple(alpha.shape)}: expected ({len(energy)},) finite numbers >= 0")
        scale = exponent_of(alpha.double())
        energy = energy * times_two_to(alpha.to(energy), -scale)[:, None]
    spectrum = replace(rank_kernels(energy, groups), exponent=2 * exponent + scale)
    if not bool(spectrum.errors.isfinite().all()):
        reached = exponent + exponent_of(blocks)
        raise GdwsError(f"weights reach 2^{reached}: expected smaller ones, of which squares can be added up in float64")
    return spectrum


def channel_blocks(weight: Tensor, groups: int = 1) -> Tensor:
    """The matrices W_c as one float64 tensor (C, M / groups, kh * kw)."""
    if weight.ndim != 4 or not _holds_floats(weight) or 0 in weight.shape:
        raise GdwsError(f"weight is {weight.dtype} {tuple(weight.shape)}: expected floats (out, in, kh, kw)")
    if groups < 1 or len(weight) % groups:
        raise GdwsError(f"weight has {len(weight)} outputs: expected a multiple of groups = {groups}, at least 1")
    outputs, inputs, kh, kw = weight.shape
    blocks = weight.detach().double().reshape(groups, outputs // groups, inputs, kh * kw)
    return blocks.permute(0, 2, 3, 1).reshape(groups * inputs, kh * kw, outputs // groups).mT


def _holds_floats(weight: Tensor) -> bool:
    """Whether these are numbers to compute with, in memory."""
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return weight.dtype in kinds and weight.layout == torch.strided and not weight.is_meta


def channel_svd(blocks: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decompositions of all blocks (C, M, K) at once: sigma^2 (C, R), U sigma (C, M, R), V^T (C, R, K).

    R = min(M, K). Singular values at or below tolerance * the channel's largest count as zero. The eigenvectors of the
    small Gram matrices are much faster than a batched SVD; multiplying the block by them keeps the product exact and gives
    singular values that are good to rounding, where the eigenvalues would lose half the digits.
    """
    tall = blocks.shape[1] >= blocks.shape[2]
    gram = _grams(blocks.mT) if tall else blocks @ blocks.mT
    if not bool(gram.isfinite().all()):  # not the weights themselves, which would take four passes over them
        raise GdwsError("weight holds NaN or infinite values: expected finite numbers")
    basis = torch.linalg.eigh(gram).eigenvectors.flip(2)
    basis = torch.where(basis.abs() > 1e-12, basis, 0)
    if tall:
        left, right = (basis.mT @ blocks.mT).mT, basis.mT
        sigma = torch.linalg.vector_norm(left, dim=1)
    else:
        right = basis.mT @ blocks
        sigma = torch.linalg.vector_norm(right, dim=2)
        left = basis * sigma[:, None, :]
        right = right / torch.where(sigma > 0, sigma, 1)[:, :, None]
    energy = sigma.square()
    return torch.where(energy > tolerance**2 * energy.amax(1, keepdim=True), energy, 0), left, right


def _grams(rows: Tensor) -> Tensor:
    """A A^T of every A in rows (C, K, M). Four at a time: products between them are waste, but the larger size is faster."""
    count, taps, _ = rows.shape
    if count % 4:
        return rows @ rows.mT
    four = rows.reshape(count // 4, 4 * taps, -1)
    products = (four @ four.mT).view(-1, 4, taps, 4, taps)
    return products.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(count, taps, taps)


def _tolerance(dtype: torch.dtype) -> float:
    """Relative size of the singular values that storing the weights in this type makes out of nothing.

    Half precision weights are taken as exact, as they mostly come from cast float32 of full rank.
    """
    return 64 * torch.finfo(torch.float64).eps if dtype == torch.float64 else torch.finfo(torch.float32).eps


def _sparse_where_free(blocks: Tensor, lossless: Tensor, rank: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    chosen = lossless.nonzero()[:, 0]
    chosen = chosen[(blocks[chosen] == 0).flatten(1).any(1)]
    if len(chosen) == 0:
        return left, right
    whole, rank, size = blocks[chosen], rank[chosen], right.shape[1]
    taps, rows = (whole != 0).any(1), (whole != 0).any(2)
    by_taps = (taps.sum(1) == rank)[:, None, None]
    by_rows = (rows.sum(1) == rank)[:, None, None]
    tap_order = (~taps).int().argsort(dim=1, stable=True)[:, :size]
    row_order = (~rows).int().argsort(dim=1, stable=True)[:, :size]
    tap_units = torch.eye(whole.shape[2], dtype=whole.dtype, device=whole.device)[tap_order]
    row_units = torch.eye(whole.shape[1], dtype=whole.dtype, device=whole.device)[row_order].mT
    tap_columns = whole.gather(2, tap_order[:, None, :].expand(-1, whole.shape[1], -1))
    row_kernels = whole.gather(1, row_order[:, :, None].expand(-1, -1, whole.shape[2]))
    left, right = left.clone(), right.clone()
    left[chosen] = torch.where(by_taps, tap_columns, torch.where(by_rows, row_units, left[chosen]))
    right[chosen] = torch.where(by_taps, tap_units, torch.where(by_rows, row_kernels, right[chosen]))
    return left, right
