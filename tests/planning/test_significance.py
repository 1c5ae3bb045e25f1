"""Intervals and paired tests against scipy and against brute force."""

import itertools
import math

import pytest
import torch
from scipy import stats

from gdws.core.errors import GdwsError
from gdws.planning.significance import PairedChange, binomial_tail, clopper_pearson, images_to_bound, paired_change, wilson

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


def change(lost, gained, total):
    return PairedChange(both=total - lost - gained, lost=lost, gained=gained, neither=0)


@pytest.mark.parametrize(("lost", "gained", "total"), [(0, 0, 50), (3, 0, 100), (7, 2, 40), (2, 9, 1000), (40, 0, 40)])
def test_the_score_interval_is_where_tangos_statistic_is_normal(lost, gained, total):
    """The statistic with the variance that maximizes the likelihood, found by a search."""

    def statistic(loss):
        q = torch.linspace(max(0.0, -loss), (1 - loss) / 2, 1_000_001, dtype=torch.float64)
        rest = total - lost - gained
        likelihood = torch.special.xlogy(lost, q + loss) + torch.special.xlogy(gained, q)
        likelihood += torch.special.xlogy(rest, 1 - 2 * q - loss)
        share = float(q[likelihood.nan_to_num(-torch.inf).argmax()])
        return (lost - gained - total * loss) / math.sqrt(total * (2 * share + loss * (1 - loss)))

    low, high = change(lost, gained, total).score_interval
    assert low <= 100 * (gained - lost) / total <= high
    expected = stats.norm.ppf(0.975)
    if low > -100:
        assert statistic(-low / 100) == pytest.approx(-expected, abs=0.01)
    assert statistic(-high / 100) == pytest.approx(expected, abs=0.01)
    mirrored = change(gained, lost, total).score_interval
    assert mirrored == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize(("lost", "gained"), [(0.01, 0.01), (0.03, 0.0), (0.05, 0.02), (0.2, 0.1)])
def test_the_score_interval_covers_the_truth_about_95_times_in_100(lost, gained):
    """The chance of every outcome with 200 images, added up where the upper end of the loss holds."""
    total, covered = 200, 0.0
    for b in range(int(200 * lost + 40)):
        for c in range(int(200 * gained + 40)):
            chance = stats.multinomial.pmf([b, c, total - b - c], total, [lost, gained, 1 - lost - gained])
            if chance > 1e-7 and -change(b, c, total).score_interval[0] >= 100 * (lost - gained):
                covered += chance
    assert 0.96 < covered <= 1  # one end of two


def test_a_changed_image_bounds_the_loss_no_lower_than_none():
    """As the interval that goes with McNemar's test does, which takes the number of changed images for given."""
    none, one = change(0, 0, 1000), change(1, 0, 1000)
    assert one.interval[0] > none.interval[0]
    assert one.score_interval[0] < none.score_interval[0]


@pytest.mark.parametrize("points", [0.3, 1, 5, 99])
def test_so_many_images_bound_a_loss(points):
    count = images_to_bound(points)
    assert 100 * clopper_pearson(0, count)[1] <= points
    assert count == 1 or 100 * clopper_pearson(0, count - 1)[1] > points


def test_pairs_are_counted():
    before = torch.tensor([1, 1, 1, 0, 0, 0, 0], dtype=torch.bool)
    after = torch.tensor([1, 0, 0, 1, 0, 0, 0], dtype=torch.bool)
    assert paired_change(before, after) == PairedChange(both=1, lost=2, gained=1, neither=3)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(GdwsError, match=r"\(3,\) and \(4,\)"):
        paired_change(torch.ones(3, dtype=torch.bool), torch.ones(4, dtype=torch.bool))
    with pytest.raises(GdwsError, match="2 of 1"):
        wilson(2, 1)
