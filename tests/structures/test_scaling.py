"""Weights of every scale that their type can hold, beside the truth in float64."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers import ATTACK, network
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gdws
from gdws.compression.refit import NormalEquations, solve_mix
from gdws.core.errors import GdwsError
from gdws.structures.base import set_factors
from gdws.structures.layers import GDWSConv2d, TwoStageConv2d
from gdws.structures.mego_lego import spectrum_of, truncate
from gdws.structures.scaling import exponent_of, times_two_to, within_range

TYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64


def log2_range(dtype):
    """Of powers of two, from the smallest normal number to the largest that a sum of 36 squares of float64 can hold."""
    limits = torch.finfo(dtype)
    low, high = torch.tensor([limits.smallest_normal, limits.max], dtype=torch.float64).log2().tolist()
    return max(low, -500), min(high, 500)


def drawn(dtype, share, spread, seed, shape=(8, 4, 3, 3)):
    """Weights up to a power of two within the type's range, their channels 2^spread apart."""
    generator = torch.Generator().manual_seed(seed)
    low, high = log2_range(dtype)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    weight = weight * 2.0 ** (-spread * torch.arange(shape[1], dtype=torch.float64))[None, :, None, None]
    return (weight / weight.abs().max() * 2 ** (low + share * (high - low))).to(dtype)


def true(factors):
    """The weight that these factors stand for, in float64."""
    return replace(factors, depthwise=factors.depthwise.double(), pointwise=factors.pointwise.double()).dense()


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from(TYPES),
    share=st.floats(0, 1),
    spread=st.integers(0, 4),
    seed=st.integers(0, 99),
    groups=st.sampled_from([1, 2]),
)
def test_factors_of_any_scale_are_finite_and_as_good_as_they_say(dtype, share, spread, seed, groups):
    """Bugs: near 65,000 float16 factors were infinite; of denormal weights the error was larger than beta."""
    weight = drawn(dtype, share, spread, seed)
    exact, eps = weight.double(), torch.finfo(dtype).eps
    largest, energy = float(exact.abs().max()), float(exact.square().sum())
    # Rounding both factors moves an entry by 2 eps of its row of nine, whose norm is at most 3 largest. Factors of float64 are
    # made in float64: there, nine eigenvectors are orthogonal to 9 eps or so, and an entry moves by that of its row.
    tolerance = (27 if dtype == torch.float64 else 6) * eps * largest
    found = [gdws.mego(weight, None, 36 * groups, groups), gdws.lego(weight, None, 0.0, groups)]
    found += [truncate(weight, torch.full((4 * groups,), 9), groups)]
    for factors in found:
        assert factors.depthwise.isfinite().all()
        assert factors.pointwise.isfinite().all()
        assert float((exact - true(factors)).abs().max()) <= tolerance
    for beta in (0.3 * energy, 1e-2 * energy):
        factors = gdws.lego(weight, None, beta, groups)
        real = float((exact - true(factors)).square().sum())
        assert real <= factors.error + 100 * eps * eps * energy + 20 * eps * factors.error**0.5 * energy**0.5
        assert factors.error <= beta * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(power=st.integers(-400, 400), other=st.integers(-200, 200), seed=st.integers(0, 99))
def test_what_is_chosen_does_not_depend_on_the_scale(power, other, seed):
    weight = drawn(torch.float64, 0.5, 2, seed)
    alpha = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    plain = spectrum_of(weight, alpha)
    scaled = spectrum_of(times_two_to(weight, power), times_two_to(alpha, other))
    assert torch.equal(plain.order, scaled.order)
    assert torch.equal(plain.scaled, scaled.scaled)
    assert scaled.exponent - plain.exponent == 2 * power + other


@pytest.mark.parametrize(
    ("dtype", "lowest", "highest"),
    [(torch.float16, -24, 9), (torch.bfloat16, -133, 120), (torch.float32, -149, 120), (torch.float64, -1000, 500)],
)
@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (6, 4, 3, 3), (4, 64, 3, 3)])
def test_kernels_are_the_same_from_the_smallest_weights_to_the_largest(dtype, lowest, highest, shape):
    """Short types are not scaled at all: their squares are numbers in float64."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-99, 100, shape, generator=generator).double()  # exact in every type, times these powers of two
    kernels = shape[1] * 4
    plain = gdws.mego(weight.to(dtype), None, kernels)
    plain_energy = float(weight.square().sum())
    for power in (lowest, lowest // 2, highest // 2, highest):
        scaled = times_two_to(weight, power)
        given = scaled.to(dtype)
        assert torch.equal(given.double(), scaled)
        assert torch.equal(gdws.mego(given, None, kernels).g, plain.g)
        if 2 * power > -1000:
            beta = float(times_two_to(torch.tensor(0.1 * plain_energy, dtype=torch.float64), 2 * power))
            assert torch.equal(gdws.lego(given, None, beta).g, gdws.lego(weight.to(dtype), None, 0.1 * plain_energy).g)
        exact = times_two_to(true(gdws.mego(given, None, weight.numel())), -power)
        assert float((exact - weight).abs().max()) <= 27 * torch.finfo(dtype).eps * 99


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_of_nothing_but_zeros_get_no_kernel(dtype):
    weight = torch.zeros(8, 4, 3, 3, dtype=dtype)
    for factors in (gdws.mego(weight, None, 36), gdws.lego(weight, None, 0.0), truncate(weight, torch.full((4,), 9))):
        assert factors.g.sum() == 0
        assert not factors.dense().any()


def test_weights_whose_squares_are_no_numbers_are_called_what_they_are():
    """Bug: weights of 1e200 were called NaN; those of 1e-200 lost every kernel, whatever was asked."""
    weight = torch.randn(4, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(GdwsError, match=r"weights reach 2\^\d+: expected smaller ones, of which squares can be added up"):
        gdws.mego(1e200 * weight, None, 4)
    with pytest.raises(GdwsError, match="weight holds NaN or infinite values"):
        gdws.mego(weight * torch.inf, None, 4)
    for scale in (1e-200, 1e-300):
        tiny = scale * weight
        factors = gdws.mego(tiny, None, 36)
        torch.testing.assert_close(factors.dense() / scale, weight, rtol=1e-12, atol=1e-12)
    assert gdws.mego(0 * weight, None, 36).g.sum() == 0


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), power=st.integers(-2000, 2000))
def test_powers_of_two_are_exact(values, power):
    import math

    found = times_two_to(torch.tensor(values, dtype=torch.float64), power)
    for one, made in zip(values, found.tolist(), strict=True):
        try:
            wanted = math.ldexp(one, power)
        except OverflowError:
            wanted = math.copysign(math.inf, one)
        assert made == pytest.approx(wanted, abs=1e-323)  # rounded twice where it is denormal
    largest = max(map(abs, values))
    assert largest == 0 or 2.0 ** (exponent_of(torch.tensor(values, dtype=torch.float64)) - 1) <= largest


def test_factors_that_their_type_holds_are_left_alone():
    filters, mixing = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        assert all(map(torch.equal, within_range(filters, mixing, dtype), (filters, mixing)))
    assert [part.shape for part in within_range(filters[:0], mixing[:0], torch.float16)] == [(0, 4), (0, 5)]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1.0, 1e6, 1e8])
def test_factors_go_to_a_layer_of_float16_as_it_can_hold_them(groups, scale):
    conv = nn.Conv2d(4, 8, 3, groups=groups).half()
    for layer in (GDWSConv2d.like(conv, torch.arange(4).repeat_interleave(3)), TwoStageConv2d.like(conv, 4, (0,))):
        generator = torch.Generator().manual_seed(0)
        filters, mixing = (
            torch.randn(shape, dtype=torch.float64, generator=generator) for shape in (layer.filters.shape, layer.mixing.shape)
        )
        set_factors(layer, filters, scale * mixing)
        exact = copy.deepcopy(layer).double()
        exact.filters.data, exact.mixing.data = filters, scale * mixing
        x = torch.rand(1, 4, 6, 6, dtype=torch.float64)
        torch.testing.assert_close(copy.deepcopy(layer).double()(x) / scale, exact(x) / scale, rtol=5e-3, atol=5e-3)


def test_a_refit_that_half_precision_cannot_hold_is_left_out():
    """Bug: its mix was infinite."""
    conv = nn.Conv2d(4, 8, 3).half()
    layer = TwoStageConv2d.like(conv, 2, (0,))
    n = layer.mixing[0].numel()
    gram, energy = torch.eye(n, dtype=torch.float64)[None], torch.ones((), dtype=torch.float64)
    for scale, taken in ((1.0, True), (1e6, False), (torch.nan, False)):
        layer.mixing.data.fill_(0.5)
        wanted = scale * torch.ones(1, 8, n, dtype=torch.float64)
        solve_mix(layer, [NormalEquations(gram, wanted, energy)])
        assert bool((layer.mixing == 0.5).all()) != taken


def scaled_network(dtype, power, inputs):
    """A network that is the same function at every scale of its second convolution, or of what that sees."""
    model = network().double()
    model[1] = model[4] = nn.Identity()
    scale = 10.0**power
    with torch.no_grad():
        first, second = (model[0], model[3]) if inputs else (model[3], model[8])
        first.weight.mul_(scale), first.bias.mul_(scale), second.weight.div_(scale)
    return model.to(dtype)


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize(("dtype", "powers"), [(torch.float16, 3), (torch.float32, 12), (torch.float64, 12)])
@pytest.mark.parametrize("method", [gdws.Calibrated(attack=ATTACK, structures=["gdws", "vertical"]), gdws.Paper(attack=None)])
def test_networks_of_any_scale_are_compressed_alike(dtype, powers, inputs, method):
    """Bug: the paper's alpha was infinite or zero in float16."""
    images = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    losses = []
    for power in (0, -powers, powers):
        model = scaled_network(dtype, power, inputs)
        compressed = gdws.compress(model, [images], gdws.Macs(0.6), method)
        with torch.no_grad():
            wanted, found = (made(images.to(dtype)).double() for made in (model, compressed))
        assert found.isfinite().all()
        losses.append(float((found - wanted).norm() / (wanted - wanted.mean(0)).norm()))
    assert max(losses) < 1.5 * losses[0] + 0.05


@pytest.mark.parametrize("power", [-30, 30])
@pytest.mark.parametrize("method", ["calibrated", "paper"])
def test_scales_at_which_statistics_would_vanish_are_refused(power, method):
    """Bug: sums of squares were zero in float32, and the plan was arbitrary."""
    images = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(GdwsError, match=r"has inputs up to .* and gradients up to .*, whose squares float32 can hold"):
        gdws.plan(scaled_network(torch.float64, power, False), [images], gdws.Macs(0.6), method)
