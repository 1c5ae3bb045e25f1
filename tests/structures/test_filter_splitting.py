"""Two-stage factors against plain formulas in float64: losses from their definition, least squares by lstsq, a theorem."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdws.structures import filter_splitting, metric

AXES = [(), (0,), (1,), (0, 1)]


def random_metric(generator, size, samples):
    values = torch.randn(size, samples, generator=generator, dtype=torch.float64)
    return values @ values.T / samples


@st.composite
def problems(draw):
    outputs, channels = draw(st.integers(2, 7)), draw(st.integers(1, 5))
    kernel = draw(st.sampled_from([(3, 3), (2, 3), (5, 2)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = torch.randn(outputs, channels, *kernel, generator=generator, dtype=torch.float64)
    size = weight[0].numel()
    moment = random_metric(generator, size, draw(st.sampled_from([2, size, 4 * size])))
    if draw(st.booleans()):  # a dead channel
        taps = kernel[0] * kernel[1]
        moment[:taps] = moment[:, :taps] = 0
    gradient = random_metric(generator, outputs, draw(st.sampled_from([1, 3 * outputs])))
    return (
        weight,
        metric.add_ridge(moment, metric.MOMENT_RIDGE),
        metric.add_ridge(gradient, metric.GRADIENT_RIDGE),
    )


def bank(weight, filters, axes):
    """V (R k2, C kh kw) written out: filter r at each tap of the second stage."""
    _, channels, height, width = weight.shape
    first = (height if 0 in axes else 1, width if 1 in axes else 1)
    rows = []
    for row in filters.view(len(filters), channels, *first):
        for tap in range(height * width // (first[0] * first[1])):
            patch = torch.zeros(channels, height, width, dtype=torch.float64)
            y, x = divmod(tap, 1 if 1 in axes else width)
            patch[:, slice(None) if 0 in axes else y, slice(None) if 1 in axes else x] = row[
                :, slice(None) if 0 in axes else 0, slice(None) if 1 in axes else 0
            ]
            rows.append(patch.flatten())
    return torch.stack(rows)


def best(weight, moment, gradient, filters, axes):
    """The loss with the best mix, and the mix, by least squares on a square root of the moment."""
    rows, root, flat = bank(weight, filters, axes), torch.linalg.cholesky(moment), weight.flatten(1)
    mix = torch.linalg.lstsq((rows @ root).T, (flat @ root).T, driver="gelsd").solution.T
    return metric.loss(weight, (mix @ rows).view_as(weight), moment, gradient), mix


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(AXES))
def test_a_curve_tells_the_loss_after_the_best_mix(problem, axes):
    weight, moment, gradient = problem
    total = metric.loss(weight, torch.zeros_like(weight), moment, gradient)
    if filter_splitting.most_filters(tuple(weight.shape), axes) == 0:
        return
    curve = filter_splitting.curve(weight, moment, gradient, axes)
    assert len(curve.filters) <= filter_splitting.most_filters(tuple(weight.shape), axes)
    assert float(curve.losses[0]) == pytest.approx(total, rel=1e-9)
    assert bool((curve.losses.diff() <= 0).all())
    rank = (len(curve.filters) + 1) // 2
    loss, mix = best(weight, moment, gradient, curve.filters[:rank], axes)
    assert float(curve.losses[rank]) == pytest.approx(loss, rel=1e-6, abs=1e-9 * total)
    assert curve.equations is not None
    found = curve.equations.leading(mix.shape[1]).solution()
    rows = bank(weight, curve.filters[:rank], axes)
    assert torch.allclose(found @ rows, mix @ rows, atol=1e-5 * float((mix @ rows).abs().max()))


@settings(max_examples=30, deadline=None)
@given(problems(), st.sampled_from(AXES))
def test_refined_filters_lose_no_more(problem, axes):
    weight, moment, gradient = problem
    if filter_splitting.most_filters(tuple(weight.shape), axes) == 0:
        return
    curve = filter_splitting.curve(weight, moment, gradient, axes)
    rank = (len(curve.filters) + 1) // 2
    ((better, mix),) = filter_splitting.fit(weight, moment, gradient, curve, [rank], axes)
    assert better.shape == curve.filters[:rank].shape
    after, expected = best(weight, moment, gradient, better, axes)
    assert after <= float(curve.losses[rank]) * (1 + 1e-3) + 1e-6 * float(curve.losses[0])
    rows = bank(weight, better, axes)
    assert torch.allclose(mix.flatten(1) @ rows, expected @ rows, atol=1e-5 * float((expected @ rows).abs().max()))


def test_several_ranks_are_fitted_as_one_by_one_and_without_what_the_curve_has_at_hand():
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(9, 6, 3, 3, generator=generator, dtype=torch.float64)
    moment = metric.add_ridge(random_metric(generator, 54, 108), metric.MOMENT_RIDGE)
    gradient = metric.add_ridge(random_metric(generator, 9, 30), metric.GRADIENT_RIDGE)
    curve = filter_splitting.curve(weight, moment, gradient, (1,))
    together = filter_splitting.fit(weight, moment, gradient, curve, [2, 5], (1,))
    for rank, parts in zip((2, 5), together, strict=True):
        (alone,) = filter_splitting.fit(weight, moment, gradient, curve.lasting(), [rank], (1,))
        for part, other in zip(parts, alone, strict=True):
            assert torch.allclose(part, other, atol=1e-4 * float(other.abs().max()))


def test_refining_helps_where_the_moment_is_no_kronecker_product():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 16, 3, 3, generator=generator, dtype=torch.float64)
    # Channels of very different smoothness: their spatial correlations differ.
    blocks = [random_metric(generator, 9, 2 + channel) * (1 + channel) for channel in range(16)]
    moment = metric.add_ridge(torch.block_diag(*blocks), metric.MOMENT_RIDGE)
    gradient = metric.add_ridge(random_metric(generator, 16, 64), metric.GRADIENT_RIDGE)
    curve = filter_splitting.curve(weight, moment, gradient, (0,))
    ((better, _),) = filter_splitting.fit(weight, moment, gradient, curve, [6], (0,))
    assert best(weight, moment, gradient, better, (0,))[0] < 0.9 * float(curve.losses[6])


@pytest.mark.parametrize("axes", [(), (0,), (0, 1)])
def test_filters_are_optimal_where_the_moment_is_a_kronecker_product(axes):
    """Eckart and Young: the loss of R filters is the sum of the squared singular values beyond the R-th."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(6, 5, 3, 3, generator=generator, dtype=torch.float64)
    gradient = random_metric(generator, 6, 30)
    channels, rows, columns = (random_metric(generator, size, 4 * size) for size in (5, 3, 3))
    moment = torch.kron(channels, torch.kron(rows, columns))
    curve = filter_splitting.curve(weight, moment, gradient, axes)
    first = {(): channels, (0,): torch.kron(channels, rows), (0, 1): moment}[axes]
    second = {(): torch.kron(rows, columns), (0,): columns, (0, 1): torch.ones(1, 1, dtype=torch.float64)}[axes]
    taps = filter_splitting._by_tap(weight, axes)
    left = torch.kron(metric.matrix_roots(second)[0], metric.matrix_roots(gradient)[0])
    sigma = torch.linalg.svdvals(left @ taps.reshape(-1, taps.shape[2]) @ metric.matrix_roots(first)[0])
    for rank in range(len(curve.filters) + 1):
        expected = float(sigma[rank:].square().sum())
        assert float(curve.losses[rank]) == pytest.approx(expected, rel=1e-6, abs=1e-9 * float(curve.losses[0]))


@pytest.mark.parametrize("axes", AXES)
def test_what_is_left_of_vanishing_filters_is_no_basis(axes):
    """Bug: of a network that is mostly zeros and whose other filters decayed, directions of rounding were taken for filters;
    two that were nearly one gave a Gram matrix of condition 2e10."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.zeros(24, 64, 3, 3, dtype=torch.float64)
    weight[::3] = torch.randn(8, 64, 3, 3, generator=generator, dtype=torch.float64)
    weight *= (10.0 ** (-torch.arange(24, dtype=torch.float64) / 1.5)).view(-1, 1, 1, 1)
    moment = metric.add_ridge(random_metric(generator, 576, 1000), metric.MOMENT_RIDGE)
    gradient = metric.add_ridge(random_metric(generator, 24, 100), metric.GRADIENT_RIDGE)
    curve = filter_splitting.curve(weight, moment, gradient, axes)
    assert float(curve.losses[-1]) <= 1e-9 * float(curve.losses[0])
    assert torch.linalg.cond(curve.equations.gram) < 1e6
