"""Split a convolution into two plain ones, in the metric of the data. Tensors in, tensors out; one group at a time.

The first stage applies R filters U over all channels and the taps along some of the kernel's `axes`; the second mixes what
they give at the taps along the other axes. axes (0,) is a vertical K x 1 convolution, then a horizontal 1 x K one; (1,) the
reverse; () projects the channels before the K x K convolution, (0, 1) after it.

In patches, the features are V = U (x) I: filter r at each of the k2 taps of the second stage. The best mix for given filters
is the least squares of gdws.structures.metric, P = W S V^T (V S V^T)^-1. The filters come from the nearest Kronecker product
S ~ S2 (x) S1 of the moment: in that metric the best R filters are the leading right singular vectors of
(F^1/2 (x) S2^1/2) W S1^1/2, W written as (M k2) x (C k1), for every R at once. They are then judged by the true S: with V in
this order and V S V^T = L L^T, the feature k takes the loss b_k^T F b_k away, b_k the columns of W S V^T L^-T.

Once the rank is known, `refine` improves on the first R filters in the true metric by combining more of them. With P the best
mix for U, the gradient of the loss by U is -2 sum_j P_j^T F ((W - P V) S)_j over the taps j of the second stage (P's own change
does not matter at its optimum), and all of it can be written in the features of the filters that are combined. The curvature
along filter r is w_r = sum_j P_jr^T F P_jr times the features' energy: it falls by orders of magnitude from the first filter to
the last, so the search is for sqrt(w_r) U_r (scaling a filter changes no loss), on features of unit energy.

Shapes: weight (M, C, kh, kw); moment S (C kh kw, C kh kw); gradient F (M, M); filters U (R, C k1); all float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gdws.structures import metric

Axes = tuple[int, ...]

WIDER, STEPS, DRAFT_STEPS = 3, 20, 4
"""`refine` looks among this many times the filters, by so many steps of L-BFGS; the last for drafts, which tell how large a
loss is, and take a quarter of the time."""

NEGLIGIBLE = 1e-10
"""The share of the first filter's energy below which a filter is rounding."""

KRONECKER_STEPS = 3
"""Alternations toward the nearest Kronecker product; it converges like a power iteration on an all but rank-one matrix."""


@dataclass(frozen=True)
class Equations:
    """Least squares for the mix of R filters: gram V S V^T (R k2, R k2) and cross W S V^T (M, R k2)."""

    gram: Tensor
    cross: Tensor

    def leading(self, features: int) -> Equations:
        """Those of the first features only."""
        return Equations(self.gram[:features, :features], self.cross[:, :features])

    def combined(self, combinations: Tensor, taps: int) -> Equations:
        """Those of combinations (R', R) of the filters."""
        count, outputs = combinations.shape[0] * taps, len(self.cross)
        half = combinations @ self.gram.reshape(combinations.shape[1], -1)
        gram = combinations @ half.view(count, -1).T.reshape(combinations.shape[1], -1)
        cross = combinations @ self.cross.reshape(outputs, -1, taps)
        return Equations(gram.view(count, count), cross.reshape(outputs, count))

    def solution(self) -> Tensor:
        """The best mix P (M, R k2)."""
        found: Tensor = torch.linalg.solve((self.gram + self.gram.T) / 2, self.cross.T)
        return found.T


@dataclass(frozen=True)
class SplitCurve:
    """Filters (R, C k1), the most useful first, and losses (R + 1,), not increasing: those with the first 0 ... R kept.

    equations: of all filters, while they are at hand to build layers from. They are large, and can be computed anew.
    """

    filters: Tensor
    losses: Tensor
    equations: Equations | None = field(default=None, repr=False, compare=False)

    def scaled(self, factors: Tensor) -> SplitCurve:
        return replace(self, losses=(self.losses * factors).cummin(0).values)

    def lasting(self) -> SplitCurve:
        return replace(self, equations=None)


def curve(weight: Tensor, moment: Tensor, gradient: Tensor, axes: Axes) -> SplitCurve:
    """Filters for every rank at which two stages have fewer weights than the convolution, and their exact losses."""
    parts, flat = _moment_by_tap(weight, moment, axes), weight.flatten(1)
    filters = _leading_filters(weight, parts, gradient, axes)
    seen = flat @ moment
    equations = _equations(_by_tap(seen.view_as(weight), axes), parts, filters)
    triangle = torch.linalg.cholesky(equations.gram)
    explained = torch.linalg.solve_triangular(triangle, equations.cross.T, upper=False).T
    gains = ((gradient @ explained) * explained).sum(0).view(len(filters), -1).sum(1)
    total = ((gradient @ flat) * seen).sum()
    losses = torch.cat([total[None], total - gains.cumsum(0)]).clamp_min(0)
    return SplitCurve(filters, losses.cummin(0).values.cpu(), equations)


def fit(
    weight: Tensor, moment: Tensor, gradient: Tensor, curve: SplitCurve, ranks: Sequence[int], axes: Axes, draft: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """For each rank, as many filters (rank, C k1) that lose less than the curve's first, and their best mix (M, rank, k2)."""
    filters, equations = curve.filters.double(), curve.equations
    if equations is None:
        filters = filters[: WIDER * max(ranks)]
        seen = (weight.flatten(1) @ moment).view_as(weight)
        equations = _equations(_by_tap(seen, axes), _moment_by_tap(weight, moment, axes), filters)
    taps = len(equations.gram) // len(filters)
    found = []
    for rank in ranks:
        basis = filters[: WIDER * rank]
        own = equations.leading(len(basis) * taps)
        combinations = refine(own, gradient, len(basis), rank, DRAFT_STEPS if draft else STEPS)
        mix = own.combined(combinations, taps).solution()
        found.append((combinations @ basis, mix.view(len(weight), rank, taps)))
    return found


def refine(equations: Equations, gradient: Tensor, size: int, rank: int, steps: int = STEPS) -> Tensor:
    """`rank` combinations of `size` filters that lose less in the true metric than the first ones: (rank, size)."""
    outputs, taps = len(equations.cross), len(equations.gram) // size
    # Of unit energy, the filters are all but orthonormal, and float32 does.
    parts = equations.gram.view(size, taps, size, taps).permute(1, 3, 0, 2)
    energy = parts.diagonal(dim1=0, dim2=1).sum(2).diagonal().rsqrt()
    parts = (parts * energy * energy[:, None]).float().contiguous()
    target = (equations.cross.view(outputs, size, taps).permute(2, 0, 1) * energy).float().contiguous()
    gradient = gradient.float()
    scale = float((target * (gradient @ target)).sum())

    def explain(current: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The share of the loss that filters (rank, size) take away, its slope by them, and w (rank,) over `scale`."""
        seen = metric.product(current, parts.view(-1, size))
        system = metric.product(seen.view(-1, size), current).view(rank, taps, taps, rank)
        system = system.permute(3, 1, 0, 2).reshape(rank * taps, -1)
        wanted = metric.product(target.view(-1, size), current).view(taps, outputs, rank)
        wanted = wanted.permute(1, 2, 0).reshape(outputs, -1)
        best = _solved((system + system.T) / 2, wanted.T).T
        felt = gradient @ best
        explained: Tensor = (felt * wanted).sum() / scale
        mixed = metric.product(felt.T.contiguous(), best.T.contiguous()).view(rank, taps, rank, taps)
        mixed = mixed.permute(0, 2, 1, 3).reshape(rank, -1)
        slope = felt.view(-1, rank, taps).permute(1, 2, 0).reshape(rank, -1) @ target.view(-1, size)
        slope -= mixed @ seen.view(-1, size)
        return explained, 2 * slope / scale, (felt * best).sum(0).view(rank, taps).sum(1) / scale

    first = torch.eye(rank, size, device=gradient.device)
    with torch.no_grad():
        *at_first, curvature = explain(first)
    lengths = curvature.clamp_min(1e-6 * float(curvature.max())).sqrt()[:, None]
    found = (lengths * first).requires_grad_(True)

    @torch.no_grad()
    def loss_and_gradient() -> Tensor:
        # The search asks first for what is known already: the start.
        explained, slope = (at_first.pop(0), at_first.pop(0)) if at_first else explain(found.detach() / lengths)[:2]
        found.grad = -slope / lengths
        return -explained

    search = torch.optim.LBFGS([found], max_iter=steps, history_size=steps, line_search_fn="strong_wolfe")
    search.step(loss_and_gradient)
    improved = (found.detach() / lengths).double() * energy
    return improved if bool(improved.isfinite().all()) else torch.eye(rank, size, dtype=energy.dtype, device=energy.device)


def _solved(system: Tensor, wanted: Tensor) -> Tensor:
    """A^-1 B for a symmetric A that is positive definite but, in float32, for rounding."""
    triangle, failed = torch.linalg.cholesky_ex(system)
    return torch.linalg.solve(system, wanted) if int(failed) else torch.cholesky_solve(wanted, triangle)


def most_filters(weight_shape: tuple[int, ...], axes: Axes) -> int:
    """The largest rank at which both stages together have fewer weights than a convolution (M, C, kh, kw) of one group."""
    outputs, channels, *kernel = weight_shape
    first, second = stage_taps((kernel[0], kernel[1]), axes)
    per_filter = channels * first + outputs * second
    return min((outputs * channels * first * second - 1) // per_filter, channels * first, outputs * second)


def stage_taps(kernel: tuple[int, int], axes: Axes) -> tuple[int, int]:
    """k1 and k2: the taps of the first and of the second stage."""
    counts = [1, 1]
    for axis in (0, 1):
        counts[0 if axis in axes else 1] *= kernel[axis]
    return counts[0], counts[1]


def _by_tap(weight: Tensor, axes: Axes) -> Tensor:
    """(k2, M, C k1)"""
    second = [2 + axis for axis in (0, 1) if axis not in axes]
    order = [*second, 0, 1, *(2 + axis for axis in axes)]
    taps = stage_taps((weight.shape[2], weight.shape[3]), axes)[1]
    return weight.permute(order).reshape(taps, len(weight), -1)


def _moment_by_tap(weight: Tensor, moment: Tensor, axes: Axes) -> Tensor:
    """(k2, k2, C k1, C k1): what the patches seen at two taps of the second stage have in common."""
    channels, *kernel = weight.shape[1:]
    second = [1 + axis for axis in (0, 1) if axis not in axes]
    first = [0, *(1 + axis for axis in axes)]
    order = [*second, *(3 + axis for axis in second), *first, *(3 + axis for axis in first)]
    taps = stage_taps((kernel[0], kernel[1]), axes)[1]
    size = moment.shape[0] // taps
    return moment.view(channels, *kernel, channels, *kernel).permute(order).reshape(taps, taps, size, size)


def _kronecker(parts: Tensor) -> tuple[Tensor, Tensor]:
    """S2 (k2, k2) and S1 (C k1, C k1), symmetric and positive definite, with S ~ S2 (x) S1."""
    rows = parts.flatten(0, 1).flatten(1)
    second = torch.eye(len(parts), dtype=parts.dtype, device=parts.device).flatten()
    for _ in range(KRONECKER_STEPS):
        first = (second / second.square().sum()) @ rows
        second = rows @ (first / first.square().sum())
    return second.view(parts.shape[:2]), first.view(parts.shape[2:])


def _leading_filters(weight: Tensor, parts: Tensor, gradient: Tensor, axes: Axes) -> Tensor:
    taps, limit = _by_tap(weight, axes), most_filters(tuple(weight.shape), axes)
    count, outputs, inputs = taps.shape
    second, first = _kronecker(parts)
    rooted = torch.einsum("ij,jmn->imn", metric.matrix_roots(second)[0], metric.matrix_roots(gradient)[0] @ taps)
    tall = rooted.reshape(count * outputs, inputs)
    if inputs <= count * outputs:
        triangle = torch.linalg.cholesky(first)
        seen = tall @ triangle
        vectors = torch.linalg.eigh(seen.T @ seen).eigenvectors.flip(1)[:, :limit]
        filters = torch.linalg.solve_triangular(triangle.T, vectors, upper=True).T
    else:
        values, vectors = torch.linalg.eigh(tall @ first @ tall.T)
        needed = values > NEGLIGIBLE * values[-1]  # the others are combinations of these, to rounding
        filters = vectors[:, needed].flip(1)[:, :limit].T @ tall
    unit: Tensor = filters / filters.norm(dim=1, keepdim=True).clamp_min(torch.finfo(filters.dtype).tiny)
    return unit


def _equations(seen: Tensor, parts: Tensor, filters: Tensor) -> Equations:
    """From W S (k2, M, C k1) and S (k2, k2, C k1, C k1), by taps. A pair of taps the other way round gives the transpose."""
    taps, count = len(parts), len(filters)
    gram = filters.new_empty(count, taps, count, taps)
    for i in range(taps):
        for j in range(i + 1):
            pair = filters @ parts[i, j] @ filters.T
            gram[:, i, :, j], gram[:, j, :, i] = pair, pair.T
    cross = (seen @ filters.T).permute(1, 2, 0)
    return Equations(gram.view(count * taps, count * taps), cross.reshape(cross.shape[0], -1))
