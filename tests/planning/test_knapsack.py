"""The exact allocation against brute force, a Lagrangian bound by plain scanning, greedy, and HiGHS."""

import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdws.core.errors import GdwsError
from gdws.planning import knapsack as module
from gdws.planning.knapsack import allocate

NUMBERS = {
    "integers with ties": st.integers(0, 6).map(float),
    "multiply-adds": st.integers(0, 40).map(lambda n: n * 8336.0 * 1009),
    "tenths, whose sums round": st.integers(0, 12).map(lambda n: n / 10),
    "milliseconds": st.floats(0, 20).map(lambda x: round(x, 4)),
    "all magnitudes": st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 7.0, 1e4, 1e9]),
}


@st.composite
def problems(draw):
    """1 to 4 layers of 1 to 6 options, and a budget: anything, the cost of a solution, or all there is to buy."""
    costs, losses = (NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))] for _ in range(2))
    options = []
    for _ in range(draw(st.integers(1, 4))):
        pairs = draw(st.lists(st.tuples(costs, losses), min_size=1, max_size=6))
        options.append(tuple(np.array(column) for column in zip(*pairs, strict=True)))
    return options, draw_budget(draw, options)


@st.composite
def convex_and_dense(draw):
    """Layers as GDWS has them: falling gains, one unit cost, and a dense option that costs more or less than all."""
    options = []
    for _ in range(draw(st.integers(1, 4))):
        unit = draw(st.sampled_from([16.0, 21.0, 34.0, 74752.0]))
        gains = sorted(draw(st.lists(st.integers(0, 50).map(float), min_size=0, max_size=5)), reverse=True)
        losses = [sum(gains[kept:]) for kept in range(len(gains) + 1)]
        dense = unit * draw(st.integers(0, 14)) / 2
        options.append((np.append(unit * np.arange(len(losses)), dense), np.append(losses, 0.0)))
    return options, draw_budget(draw, options)


def draw_budget(draw, options):
    least, most = (sum(float(pick(costs)) for costs, _ in options) for pick in (np.min, np.max))
    chosen = sum(float(draw(st.sampled_from(costs.tolist()))) for costs, _ in options)
    share = draw(st.floats(-0.1, 1.1))
    return draw(st.sampled_from([chosen, least + share * (most - least), least, most]))


def totals(options, choice):
    cost = math.fsum(costs[k] for (costs, _), k in zip(options, choice, strict=True))
    return math.fsum(losses[k] for (_, losses), k in zip(options, choice, strict=True)), cost


def brute_force(options, budget):
    """(loss, cost) of the best solution, or None: least cost among those of least loss, in exact arithmetic."""
    exact = [[int(Fraction(loss) * 2**1074) for loss in losses] for _, losses in options]
    best = None
    for choice in itertools.product(*(range(len(costs)) for costs, _ in options)):
        loss, cost = totals(options, choice)
        rank = sum(losses[k] for losses, k in zip(exact, choice, strict=True)), cost
        if cost <= budget * (1 + 1e-12) and (best is None or rank < best[0]):
            best = rank, (loss, cost)
    return best and best[1]


def check(options, budget, longest):
    expected = brute_force(options, budget)
    with pytest.MonkeyPatch.context() as patch:
        # Small instances never have long lists: with low limits they go through longer lists and the splitting of nodes.
        patch.setattr(module, "_SHORT", longest)
        patch.setattr(module, "_LONG", 20 * longest)
        if expected is None:
            with pytest.raises(GdwsError, match="budget"):
                allocate(options, budget)
            return
        choice = allocate(options, budget)
    loss, cost = totals(options, choice)
    assert all(isinstance(k, int) for k in choice)
    assert cost <= budget * (1 + 2e-12)
    assert loss == pytest.approx(expected[0], rel=1e-11, abs=0)
    # Cheaper it may be, where losses differ by less than their rounding.
    assert cost <= expected[1] * (1 + 1e-11)


LONGEST = st.sampled_from([1, 4, 12, 400_000])


@settings(max_examples=1200, deadline=None)
@given(problems(), LONGEST)
def test_equals_brute_force(problem, longest):
    check(*problem, longest)


@settings(max_examples=500, deadline=None)
@given(convex_and_dense(), LONGEST)
def test_equals_brute_force_on_convex_curves_with_a_dense_option(problem, longest):
    check(*problem, longest)


def layers_like_a_network(seed, layers, kernels, units=(74752.0, 35072.0, 16960.0, 8336.0)):
    """Curves of `kernels` gains that decay geometrically in each channel, and a dense option between 30 and 110 %."""
    random = np.random.default_rng(seed)
    options = []
    for layer in range(layers):
        decay = random.uniform(0.3, 0.9, kernels // 9)[:, None] ** np.arange(9)
        gains = np.sort((random.lognormal(0, 1, kernels // 9)[:, None] * decay).ravel())[::-1] * random.lognormal()
        costs = units[layer % len(units)] * np.arange(len(gains) + 1)
        losses = np.append(gains[::-1].cumsum()[::-1], 0)
        dense = np.floor(costs[-1] * random.uniform(0.3, 1.1))
        options.append((np.append(costs, dense), np.append(losses, 0)))
    return options


def lagrangian_bound(options, budget):
    """The best of many bounds min sum(loss + t cost) - t budget: t over a grid, then over ever finer ones."""
    low, high = 1e-12, 1e3
    for _ in range(12):
        grid = np.geomspace(low, high, 30)
        bounds = [sum((loss + t * cost).min() for cost, loss in options) - t * budget for t in grid]
        top = int(np.argmax(bounds))
        low, high = grid[max(top - 1, 0)], grid[min(top + 1, 29)]
    return max(bounds)


def greedy(options, budget):
    """Kernels by gain per cost while they fit, no dense layers: a plain way to spend the budget."""
    steps = [(-g / c[1], i, c[1]) for i, (c, loss) in enumerate(options) for g in -np.diff(loss[:-1])]
    choice, left = [0] * len(options), budget
    for _, i, unit in sorted(steps):
        if unit > left:
            break
        choice[i], left = choice[i] + 1, left - unit
    return totals(options, choice)[0]


@pytest.mark.parametrize(("layers", "share"), [(20, 0.2), (20, 0.5), (20, 0.9), (60, 0.3), (60, 0.7)])
def test_a_network_is_solved_exactly_and_fast(layers, share):
    options = layers_like_a_network(layers, layers, 4608)
    budget = np.floor(share * sum(costs[-1] for costs, _ in options))
    start = time.perf_counter()
    choice = allocate(options, budget)
    seconds = time.perf_counter() - start
    loss, cost = totals(options, choice)
    bound = lagrangian_bound(options, budget)
    assert cost <= budget
    assert bound * (1 - 1e-9) <= loss < greedy(options, budget)
    # Near full budget few layers are still undecided, and their jumps to dense leave a gap to the bound.
    assert loss <= bound * (1 + (1e-2 if share > 0.8 else 1e-5))
    assert seconds < 10


@pytest.mark.parametrize("longest", [2000, 400_000])
@pytest.mark.parametrize("units", [(73.0, 34.0, 17.0, 8.0), (64.0, 31.0), (40.0,)])
def test_equals_a_table_over_all_costs(units, longest, monkeypatch):
    monkeypatch.setattr(module, "_SHORT", longest)
    options = layers_like_a_network(len(units), 9, 270, units)
    most = int(sum(costs[-1] for costs, _ in options))
    table = np.zeros(most + 1)  # least loss of the layers so far, for every whole budget
    for costs, losses in options:
        new = np.full(most + 1, np.inf)
        for cost, loss in zip(costs.astype(int), losses, strict=True):
            if cost <= most:
                np.minimum(new[cost:], table[: most + 1 - cost] + loss, out=new[cost:])
        table = new
    for share in (0.01, 0.1, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99):
        budget = np.floor(share * most)
        loss, cost = totals(options, allocate(options, budget))
        assert cost <= budget
        assert loss == pytest.approx(table[int(budget)], rel=1e-10)


def test_greedy_is_optimal_at_the_budgets_that_it_exhausts():
    options = [(costs[:-1], losses[:-1]) for costs, losses in layers_like_a_network(1, 12, 900)]
    steps = sorted((-g / c[1], i, c[1]) for i, (c, loss) in enumerate(options) for g in -np.diff(loss))
    for count in (1, 500, 4000, 10_000):
        choice = np.bincount([i for _, i, _ in steps[:count]], minlength=len(options)).tolist()
        loss, budget = totals(options, choice)
        assert totals(options, allocate(options, budget))[0] == pytest.approx(loss, rel=1e-11)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.25, 0.6])
def test_equals_highs(seed, share):
    optimize = pytest.importorskip("scipy.optimize")
    options = layers_like_a_network(seed, 8, 63, units=(73.0, 34.0, 17.0, 8.0))
    budget = np.floor(share * sum(costs[-1] for costs, _ in options))
    sizes = [len(costs) for costs, _ in options]
    one_each = np.repeat(np.eye(len(sizes)), sizes, axis=1)
    cost, loss = (np.concatenate(rows) for rows in zip(*options, strict=True))
    result = optimize.milp(
        loss,
        integrality=np.ones(len(loss)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(one_each, 1, 1),
            optimize.LinearConstraint(cost[None], -np.inf, budget),
        ],
        options={"mip_rel_gap": 0.0},
    )
    assert result.success
    assert totals(options, allocate(options, budget))[0] == pytest.approx(result.fun, rel=1e-7)


def test_infeasible_budget_names_the_budget_and_the_least_cost():
    options = [(np.array([3.0, 5.0]), np.array([1.0, 0.0])), (np.array([9.0, 4.5]), np.array([0.0, 1.0]))]
    with pytest.raises(GdwsError, match=r"budget is 7\.0: expected at least 7\.5"):
        allocate(options, 7.0)
    assert allocate(options, 7.5) == [0, 1]


def test_unlimited_budget_and_no_layers():
    options = [(np.array([3.0, 5.0, 4.0]), np.array([1.0, 0.0, 0.0]))] * 2
    assert allocate(options, math.inf) == [2, 2]
    assert allocate([], 0.0) == []


def test_sums_that_round_above_the_budget_are_within_it():
    # 0.1 added up ten times is below 1, three times above 0.3.
    tenth = (np.array([0.0, 0.1]), np.array([1.0, 0.0]))
    assert allocate([tenth] * 10, 1.0) == [1] * 10
    assert allocate([tenth] * 10, sum([0.1] * 10)) == [1] * 10
    assert allocate([tenth] * 3, 0.3) == [1] * 3


@pytest.mark.parametrize(
    ("costs", "losses", "message"),
    [
        ([1.0, math.nan], [1.0, 0.0], "layer 1 has an option of cost nan and loss 0.0"),
        ([1.0, 2.0], [math.inf, 0.0], "layer 1 has an option of cost 1.0 and loss inf"),
        ([1.0, 2.0], [1.0, -3.0], "layer 1 has an option of cost 2.0 and loss -3.0"),
        ([-1.0, 2.0], [1.0, 0.0], "layer 1 has an option of cost -1.0 and loss 1.0"),
        ([1.0], [1.0, 0.0], r"layer 1 has \(1,\) costs and \(2,\) losses"),
        ([], [], r"layer 1 has \(0,\) costs"),
        ([[1.0]], [[1.0]], r"layer 1 has \(1, 1\) costs"),
    ],
)
def test_bad_options_are_named(costs, losses, message):
    good = (np.array([0.0]), np.array([0.0]))
    with pytest.raises(GdwsError, match=message):
        allocate([good, (np.array(costs), np.array(losses))], 10.0)


def test_bad_budget_is_named():
    with pytest.raises(GdwsError, match="budget is nan"):
        allocate([(np.array([0.0]), np.array([0.0]))], math.nan)
