"""Intervals and paired tests against scipy and against brute force."""

import itertools
import math

import pytest
import torch
from scipy import stats

from gdws.errors import GdwsError
from gdws.evaluation.significance import PairedChange, binomial_tail, clopper_pearson, paired_change, wilson

SHARES = [(0, 1), (1, 1), (0, 40), (3, 40), (40, 40), (511, 1000), (9999, 10000)]


@pytest.mark.parametrize(("right", "total"), SHARES)
def test_intervals_of_a_share_are_scipys(right, total):
    reference = stats.binomtest(right, total)
    for ours, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
        expected = reference.proportion_ci(0.95, method)
        assert ours(right, total) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("p", [0.0, 0.02, 0.5, 0.9, 1.0])
def test_the_tail_is_the_sum_over_all_outcomes(p):
    for successes in range(-1, 8):
        outcomes = (draws for draws in itertools.product((0, 1), repeat=6) if sum(draws) >= successes)
        expected = sum(math.prod(p if draw else 1 - p for draw in draws) for draws in outcomes)
        assert binomial_tail(successes, 6, p) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (0, 6), (21, 14), (5, 5), (400, 300)])
def test_mcnemar_is_the_binomial_test_of_the_changed_images(lost, gained):
    result = PairedChange(both=500, lost=lost, gained=gained, neither=300)
    changed, total = lost + gained, 800 + lost + gained
    assert result.points == pytest.approx(100 * (gained - lost) / total)
    low, high = result.interval
    assert low <= result.points <= high
    if changed:
        assert result.p_value == pytest.approx(stats.binomtest(gained, changed).pvalue)
        share = stats.binomtest(gained, changed).proportion_ci(0.95, "exact")
        expected = [100 * (2 * bound - 1) * changed / total for bound in (share.low, share.high)]
        assert (low, high) == pytest.approx(expected)
        assert (low > 0 or high < 0) == (result.p_value < 0.05)
    else:
        assert result.p_value == 1
        assert high == -low == pytest.approx(100 * (1 - 0.025 ** (1 / total)))


def test_pairs_are_counted():
    before = torch.tensor([1, 1, 1, 0, 0, 0, 0], dtype=torch.bool)
    after = torch.tensor([1, 0, 0, 1, 0, 0, 0], dtype=torch.bool)
    assert paired_change(before, after) == PairedChange(both=1, lost=2, gained=1, neither=3)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(GdwsError, match=r"\(3,\) and \(4,\)"):
        paired_change(torch.ones(3, dtype=torch.bool), torch.ones(4, dtype=torch.bool))
    with pytest.raises(GdwsError, match="2 of 1"):
        wilson(2, 1)
