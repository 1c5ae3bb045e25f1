"""The calibrated maths against plain formulas in float64: losses recomputed from their definition, least squares by lstsq."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdws.structures import kernel_elimination, metric


def random_metric(generator, size, rank):
    samples = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    return samples @ samples.T / rank


@st.composite
def problems(draw):
    outputs, channels, taps = draw(st.integers(2, 8)), draw(st.integers(1, 6)), draw(st.sampled_from([2, 4, 9]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = torch.randn(outputs, channels, taps, generator=generator, dtype=torch.float64)
    size = channels * taps
    # Fewer samples than dimensions, dead channels and dead outputs must all be survived.
    moment = random_metric(generator, size, draw(st.sampled_from([2, size, 4 * size])))
    if draw(st.booleans()):
        moment[:taps] = moment[:, :taps] = 0
    gradient = random_metric(generator, outputs, draw(st.sampled_from([1, 3 * outputs])))
    moment = metric.add_ridge(moment, metric.MOMENT_RIDGE)
    gradient = metric.add_ridge(gradient, metric.GRADIENT_RIDGE)
    return weight, moment, gradient


def features(weight, channels, kernels):
    """V (G, CK) written out."""
    _, count, taps = weight.shape
    rows = torch.zeros(len(channels), count * taps, dtype=torch.float64)
    for row, (channel, kernel) in enumerate(zip(channels.tolist(), kernels, strict=True)):
        rows[row, channel * taps : (channel + 1) * taps] = kernel
    return rows


def best_loss(weight, moment, gradient, channels, kernels):
    """The loss with the best pointwise weights, by least squares on a square root of the moment."""
    rows = features(weight, channels, kernels)
    root = torch.linalg.cholesky(moment)
    flat = weight.flatten(1)
    mix = torch.linalg.lstsq((rows @ root).T, (flat @ root).T, driver="gelsd").solution.T
    return metric.loss(weight, (mix @ rows).view_as(weight), moment, gradient), mix


@settings(max_examples=60, deadline=None)
@given(problems(), st.floats(0, 1))
def test_a_curve_tells_the_loss_after_refitting_what_is_kept(problem, share):
    weight, moment, gradient = problem
    curve = kernel_elimination.curve(weight, moment, gradient)
    total = metric.loss(weight, torch.zeros_like(weight), moment, gradient)
    size = weight.shape[1] * weight.shape[2]
    assert sorted(curve.order.tolist()) == list(range(size))
    assert bool((curve.losses.diff() <= 0).all())
    assert float(curve.losses[-1]) == pytest.approx(0, abs=1e-6 * total)
    assert float(curve.losses[0]) == pytest.approx(total, rel=1e-4)
    kept = round(share * size)
    if 0 < kept < size:
        channels, kernels = curve.leading(curve.distribution(kept))
        assert len(channels) == kept
        true, _ = best_loss(weight, moment, gradient, channels, kernels)
        pool, slack = math.ceil(kernel_elimination.POOL * size), 1e-6 * total
        # Below some dozen kernels a round removes one, and the curve is exact at every size; but what goes before the first
        # round goes at once, and shares its loss.
        if size <= 50 and (kept <= pool or pool == size - 1):
            assert float(curve.losses[kept]) == pytest.approx(true, rel=1e-4, abs=slack)
        elif size <= 50:
            assert true <= float(curve.losses[pool]) * (1 + 1e-4) + slack


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 20))
def test_mix_is_least_squares(problem, kept):
    weight, moment, gradient = problem
    curve = kernel_elimination.curve(weight, moment, gradient)
    kept = min(kept, weight.shape[1] * weight.shape[2] - 1)
    channels, kernels = curve.leading(curve.distribution(kept))
    _, mix = best_loss(weight, moment, gradient, channels, kernels)
    found = kernel_elimination.best_mix(weight, moment, channels, kernels)
    assert torch.allclose(found, mix, rtol=1e-3, atol=1e-5 * float(mix.abs().max()))


def test_elimination_beats_choosing_channels_by_themselves():
    """Two channels that always carry the same values need the kernels of one: only a full moment can tell."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 2, 4, generator=generator, dtype=torch.float64)
    one = random_metric(generator, 4, 40)
    moment = metric.add_ridge(torch.cat([torch.cat([one, one], 1)] * 2), 1e-9)
    gradient = torch.eye(6, dtype=torch.float64)
    curve = kernel_elimination.curve(weight, moment, gradient)
    total = metric.loss(weight, torch.zeros_like(weight), moment, gradient)
    assert float(curve.losses[4]) < 1e-6 * total


def test_a_silent_layer_is_free_to_drop():
    weight = torch.randn(3, 2, 4, dtype=torch.float64)
    zero_moment = metric.add_ridge(torch.zeros(8, 8), metric.MOMENT_RIDGE)
    zero_gradient = metric.add_ridge(torch.zeros(3, 3), metric.GRADIENT_RIDGE)
    curve = kernel_elimination.curve(weight, zero_moment, zero_gradient)
    assert float(curve.losses[0]) < 1e-30
    assert bool(curve.kernels.isfinite().all())
