"""MEGO and LEGO against brute force over all channel distributions, torch.linalg.svd, and the paper's own example."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdws
from gdws.core.errors import GdwsError
from gdws.structures.mego_lego import channel_svd, spectrum_of, truncate


@st.composite
def layers(draw, max_channels=3):
    """A small layer: any shape, ranks from zero to full, repeated (tied) channels, alphas with zeros."""
    outputs = draw(st.integers(1, 6))
    inputs = draw(st.integers(1, max_channels))
    kh, kw = draw(st.sampled_from([(1, 2), (2, 2), (1, 3), (3, 1), (2, 1)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = torch.zeros(outputs, inputs, kh, kw, dtype=torch.float64)
    for channel in range(inputs):
        rank = draw(st.integers(0, min(outputs, kh * kw)))
        left = torch.randn(outputs, rank, generator=generator, dtype=torch.float64)
        right = torch.randn(rank, kh * kw, generator=generator, dtype=torch.float64)
        weight[:, channel] = (left @ right).view(outputs, kh, kw)
    if inputs > 1 and draw(st.booleans()):
        weight[:, 1] = weight[:, 0]
    alpha = torch.tensor(draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]), min_size=inputs, max_size=inputs)))
    return weight, alpha.double()


def spectra(weight):
    """sigma^2 of every channel by torch.linalg.svd, the independent truth."""
    blocks = weight.double().flatten(2).transpose(0, 1)
    return torch.linalg.svdvals(blocks).square()


def all_distributions(weight, alpha):
    """(G, error) of every channel distribution."""
    energy = spectra(weight)
    for g in itertools.product(range(energy.shape[1] + 1), repeat=energy.shape[0]):
        error = sum(float(alpha[c] * energy[c, kept:].sum()) for c, kept in enumerate(g))
        yield sum(g), error


def weighted_error(weight, dense, alpha):
    return float((alpha * (weight - dense).square().sum((0, 2, 3))).sum())


@settings(max_examples=150, deadline=None)
@given(layers(), st.integers(0, 12))
def test_mego_has_the_least_error_of_all_distributions(layer, kernels):
    weight, alpha = layer
    factors = gdws.mego(weight, alpha, kernels)
    scale = float(weight.square().sum()) + 1e-30
    best = min(error for total, error in all_distributions(weight, alpha) if total <= kernels)
    assert int(factors.g.sum()) <= kernels
    assert factors.error == pytest.approx(best, abs=1e-9 * scale)
    assert weighted_error(weight, factors.dense(), alpha) == pytest.approx(best, abs=1e-9 * scale)


@settings(max_examples=150, deadline=None)
@given(layers(), st.floats(0, 1))
def test_lego_has_the_fewest_kernels_of_all_distributions(layer, share):
    weight, alpha = layer
    beta = share * float((alpha * spectra(weight).sum(1)).sum())
    factors = gdws.lego(weight, alpha, beta)
    slack = 1e-9 * (float(weight.square().sum()) + 1e-30)
    assert weighted_error(weight, factors.dense(), alpha) <= beta + slack
    # Within rounding of beta brute force may count one kernel more or less; both bounds must hold around it.
    fewest = min(total for total, error in all_distributions(weight, alpha) if error <= beta + slack)
    most = min((t for t, error in all_distributions(weight, alpha) if error <= beta - slack), default=10**9)
    assert fewest <= int(factors.g.sum()) <= most


@settings(max_examples=100, deadline=None)
@given(layers(max_channels=4), st.integers(0, 16))
def test_mego_and_lego_are_each_others_inverse(layer, kernels):
    weight, alpha = layer
    least = gdws.mego(weight, alpha, kernels)
    assert torch.equal(gdws.lego(weight, alpha, least.error).g.sum(), spectrum_fewest(weight, alpha, least.error))
    fewest = gdws.lego(weight, alpha, least.error)
    assert int(fewest.g.sum()) <= kernels
    assert gdws.mego(weight, alpha, int(fewest.g.sum())).error <= least.error * (1 + 1e-9) + 1e-300


def spectrum_fewest(weight, alpha, error):
    errors = spectrum_of(weight, alpha).errors
    return torch.tensor(int((errors <= error * (1 + 1e-12)).nonzero()[0]))


def test_ties_keep_the_prefix_property():
    weight = torch.zeros(4, 3, 2, 2)
    for channel in range(3):
        weight[range(4), channel, [0, 0, 1, 1], [0, 1, 0, 1]] = 1.0  # four equal singular values in each channel
    for kernels in range(13):
        factors = gdws.mego(weight, None, kernels)
        assert factors.error == pytest.approx(12 - kernels)
        assert weighted_error(weight, factors.dense(), torch.ones(3)) == pytest.approx(12 - kernels, abs=1e-6)


def test_the_papers_sparse_example():
    weight = torch.zeros(4, 3, 2, 2)
    weight[0, 0, 0, 0], weight[3, 0, 1, 0], weight[1, 1, 0, 0], weight[2, 2, 0, 0] = 1.7, -0.3, 2.0, 5.0
    factors = gdws.lego(weight, None, 0.0)
    assert factors.g.tolist() == [2, 1, 1]
    assert torch.equal(factors.dense(), weight)
    assert int((factors.depthwise != 0).sum() + (factors.pointwise != 0).sum()) == 8


def test_a_sparse_channel_gets_sparse_factors_even_with_equal_weights_and_when_cut():
    weight = torch.zeros(6, 1, 3, 3)
    for row, tap in enumerate((0, 4, 8)):
        weight[row, 0, tap // 3, tap % 3] = 2.0
    assert int((gdws.mego(weight, None, 2).depthwise != 0).sum()) == 2
    few_rows = torch.zeros(64, 1, 3, 3)
    few_rows[5, 0], few_rows[9, 0] = torch.randn(3, 3), torch.randn(3, 3)
    factors = gdws.lego(few_rows, None, 0.0)
    assert factors.g.tolist() == [2]
    assert torch.equal(factors.dense(), few_rows)
    assert int((factors.pointwise != 0).sum()) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 8),
    st.sampled_from([(3, 3), (1, 5), (5, 1), (2, 3), (5, 5), (1, 1)]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_full_rank_reconstructs(outputs, inputs, kernel, groups, dtype):
    torch.manual_seed(outputs * 1000 + inputs)
    weight = torch.randn(outputs * groups, inputs, *kernel).to(dtype)
    limit = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, torch.finfo(dtype).eps * 4)
    for factors in (
        gdws.lego(weight, None, 0.0, groups),
        gdws.mego(weight, None, 10**6, groups),
    ):
        assert factors.pointwise.dtype == factors.depthwise.dtype == dtype
        assert int(factors.g.max()) <= min(outputs, kernel[0] * kernel[1])
        difference = (factors.dense().double() - weight.double()).norm() / weight.double().norm()
        assert float(difference) <= limit


def test_singular_vectors_reconstruct_to_float32_rounding_without_the_sparse_shortcut():
    weight = torch.randn(64, 16, 3, 3)
    energy, left, right = channel_svd(weight.double().flatten(2).transpose(0, 1), 1e-7)
    rebuilt = (left.float() @ right.float()).transpose(0, 1).view_as(weight)
    assert float((rebuilt - weight).norm() / weight.norm()) < 1e-6
    assert torch.allclose(energy, spectra(weight), rtol=1e-9)


def test_grouped_factors_are_the_factors_of_each_group():
    torch.manual_seed(1)
    weight = torch.randn(12, 4, 3, 3)  # two groups of (6, 4)
    weight[6:, 1:] = 0  # the second group has one channel of rank 6: fewer kernels than the first may use
    factors = gdws.mego(weight, None, 24, groups=2)
    for group in range(2):
        part = slice(6 * group, 6 * group + 6)
        alone = gdws.mego(weight[part], None, 12)
        assert torch.allclose(factors.dense()[part], alone.dense(), atol=1e-5)
    assert factors.pointwise.shape == (12, 12)
    assert factors.channels.tolist() == sorted(factors.channels.tolist())


def test_rank_deficient_zero_and_unweighted_channels_get_what_they_need():
    weight = torch.zeros(32, 4, 3, 3)
    weight[:, 0] = torch.outer(torch.randn(32), torch.randn(9)).view(32, 3, 3)
    weight[:, 2:] = torch.randn(32, 2, 3, 3)
    factors = gdws.lego(weight, torch.tensor([1.0, 1.0, 1.0, 0.0]), 0.0)
    assert factors.g.tolist() == [1, 0, 9, 0]
    assert gdws.lego(torch.zeros(8, 2, 3, 3), None, 0.0).g.tolist() == [0, 0]
    assert gdws.lego(weight, None, 1e9).g.tolist() == [0, 0, 0, 0]
    assert gdws.lego(weight, None, 1e9).dense().abs().max() == 0


def test_truncate_caps_a_distribution_at_the_rank():
    weight = torch.randn(4, 2, 3, 3)
    assert truncate(weight, torch.tensor([9, 1])).g.tolist() == [4, 1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w: gdws.lego(w, None, -1.0), "beta is -1.0"),
        (lambda w: gdws.lego(w, None, float("nan")), "beta is nan"),
        (lambda w: gdws.mego(w, None, -1), "-1 depthwise kernels"),
        (lambda w: gdws.lego(w[0], None, 0.0), r"expected floats \(out, in, kh, kw\)"),
        (lambda w: gdws.lego(w * float("nan"), None, 0.0), "NaN"),
        (lambda w: gdws.lego(w, torch.ones(3), 0.0), r"alpha is torch.float32 \(3,\): expected \(2,\) finite numbers"),
        (lambda w: gdws.lego(w, -torch.ones(2), 0.0), "alpha"),
        (lambda w: gdws.lego(w.long(), None, 0.0), "int64"),
        (lambda w: gdws.mego(w, None, 3, groups=3), "multiple of groups"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(GdwsError, match=words):
        call(torch.randn(4, 2, 3, 3))
