"""Plans for a budget of time, made by a timetable and run."""

import contextlib
import copy
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gdws
from gdws.core.errors import GdwsError
from gdws.deploy.benchmark import Timing
from gdws.deploy.engines import Engine
from gdws.planning import cost
from gdws.planning.latency import search
from gdws.planning.latency.search import Correction, closest_within, search_plans
from gdws.planning.latency.table import Latencies, LatencyTable
from gdws.planning.latency.target import Target
from gdws.planning.plan import Measured

ENGINES = ("onnxruntime", "openvino")


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_plans_are_within_their_time_as_predicted_and_say_what_was_measured(residual, table, share, monkeypatch):
    monkeypatch.setattr(search, "ROUNDS", 1)
    latencies = []
    for _ in range(3):  # others may use the machine while it is measured
        ((choices, measured),) = search_plans(*residual, gdws.Latency(share), table)
        assert choices or share == 1
        assert measured.engine in table.engines
        assert measured.predicted <= share * (1 + 1e-9)
        latencies.append(measured.latency)
        if measured.latency < 1.5:
            break
    assert 0 < min(latencies) < 1.5


def clocked(monkeypatch, seconds):
    """Networks take what `seconds` says of them, whatever the engine; returns what was run."""
    seen = []

    def bench(runs, *_):
        seen.append(runs["plan"])
        return {name: Timing(1, 1.0, seconds(network), (1.0, 1.0), False) for name, network in runs.items()}

    monkeypatch.setattr(search, "bench", bench)
    monkeypatch.setattr(search, "build_engine", lambda network, *_: network)
    return seen


def weights(network):
    return sum(parameter.numel() for parameter in network.parameters())


def made_up(residual, factor=1.0):
    """A timetable by multiply-adds, the same on every machine; what layers may become is so many times as dear."""
    _, sites, structures, statistics = residual
    points = {}
    for site in sites:
        points[site.name] = {}
        for structure in structures:
            sizes = [size for size in structure.sizes(statistics.curves[site.name][structure.name][0]) if size]
            share = structure.macs(site, 1) / cost.dense_macs(site)
            filled = {size: 8 * math.ceil(size / 8) for size in (sizes[0], sizes[-1])}
            points[site.name][structure.name] = [(size, 0.25 * factor * share * whole) for size, whole in filled.items()]
    engines = {name: Latencies(1.0, {site.name: 0.25 for site in sites}, points, 8) for name in ENGINES}
    return LatencyTable("cpu", Target(threads=1), ("onnxruntime", 1.0), engines)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_plans_close_in_where_the_truth_is_another_than_the_timetable(residual, monkeypatch, share, factor):
    """Networks that take their weights' time, planned by their multiply-adds, which are also wrong by a factor."""
    whole = weights(residual[0])
    seen = clocked(monkeypatch, lambda network: 0.2 + 0.8 * weights(network) / whole)
    tried = list(search_plans(*residual, gdws.Latency(share), made_up(residual, factor)))
    assert len(seen) <= 1.5 * search.ROUNDS + 1  # the smallest may be timed twice
    plans = [(measured.engine, choices) for choices, measured in tried]
    assert all(one != other for one, other in itertools.combinations(plans, 2))
    assert all(measured.predicted > 0 for _, measured in tried)
    assert 0.9 * share <= closest_within(tried, gdws.Latency(share))[1].latency <= share


@pytest.mark.parametrize("share", [0.45, 0.6, 0.65, 0.75, 0.8])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_an_answer_is_within_the_budget_where_there_is_one(residual, monkeypatch, share, factor):
    """Bug: six plans, each a little too slow, and the last of them was the answer. Plans of few layers leave gaps below."""
    whole = weights(residual[0])
    clocked(monkeypatch, lambda network: 0.2 + 0.8 * weights(network) / whole)
    tried = list(search_plans(*residual, gdws.Latency(share), made_up(residual, factor)))
    assert 0.75 * share <= closest_within(tried, gdws.Latency(share))[1].latency <= share


@pytest.mark.parametrize("seed", range(12))
def test_planning_ends_whatever_is_measured(residual, monkeypatch, seed):
    """Times at random: corrections of all kinds, also such that lead below zero, and plans that repeat."""
    random = np.random.default_rng(seed)
    seen = clocked(monkeypatch, lambda network: random.choice([0.5, 0.7, 0.75, 0.8, 1.3]))
    share = random.choice([0.4, 0.6, 0.9])
    tried = []
    with contextlib.suppress(GdwsError):  # out of reach
        tried.extend(search_plans(*residual, gdws.Latency(share), made_up(residual)))
    assert all(measured.predicted > 0 for _, measured in tried)
    assert 1 <= len(seen) <= 1.5 * search.ROUNDS + 1


def test_a_network_that_is_fast_without_any_loss_is_the_answer(residual, monkeypatch):
    """Bug: convolutions that are exactly what they may become, of which no larger plan is another one."""
    model, sites, structures, statistics = copy.deepcopy(residual)
    for curves in statistics.curves.values():
        for own in curves.values():
            for curve in own:
                curve.losses.zero_()
    clocked(monkeypatch, lambda network: 1.0 if weights(network) == weights(model) else 0.3)
    (*_, (choices, measured)) = search_plans(model, sites, structures, statistics, gdws.Latency(0.9), made_up(residual))
    assert choices
    assert measured.latency == 0.3


def test_a_budget_that_only_the_timetable_holds_for_out_of_reach_is_met(residual, monkeypatch):
    table = made_up(residual)
    share = 0.9 * min(search._Search(*residual[1:], table, 0.5).least.values())
    clocked(monkeypatch, lambda network: 1.0 if weights(network) == weights(residual[0]) else share / 2)
    assert closest_within(search_plans(*residual, gdws.Latency(share), table), gdws.Latency(share))[1].latency <= share


def test_a_budget_that_the_timetable_only_holds_for_within_reach_is_refused(residual, monkeypatch):
    """After the smallest ran, twice."""
    seen = clocked(monkeypatch, lambda network: 1.0 if weights(network) == weights(residual[0]) else 0.95)
    with pytest.raises(
        GdwsError, match=r"Latency\(0.5\) is out of reach: expected at most 1.05x, as the network with all layers"
    ):
        list(search_plans(*residual, gdws.Latency(0.5), made_up(residual)))
    assert 2 < len(seen) <= search.ROUNDS + 1
    assert weights(seen[-1]) == weights(seen[-2]) == min(map(weights, seen))


@pytest.mark.parametrize(
    ("latencies", "best"),
    [
        ([0.52], 0.52),
        ([0.52, 0.3], 0.3),  # within the budget before beyond it
        ([0.4, 0.49, 0.501], 0.49),  # then the nearest
        ([0.9, 0.52, 0.6], 0.52),
        ([0.7, 0.5, 0.5], 0.5),  # the budget itself is within
    ],
)
def test_the_nearest_plan_is_the_answer(latencies, best):
    fields = {"device": "cpu", "engine": "onnxruntime", "precision": "float32", "threads": 1, "batch": 1}
    dense = {"dense_engine": "torch", "dense_seconds": 1.0, "predicted": 0.5}
    tried = [({}, Measured(**fields, **dense, latency=latency)) for latency in latencies]
    for budget in (gdws.Latency(0.5), gdws.Speedup(2)):
        assert closest_within(iter(tried), budget)[1].latency == best


@given(st.lists(st.tuples(st.floats(0.05, 2), st.floats(0.05, 2)), max_size=5), st.floats(0.1, 1), st.floats(0.05, 1))
def test_a_correction_rises_and_is_its_inverse_and_is_right_for_a_single_plan(tried, share, wanted):
    found = Correction.through(tried, share)
    assert found.slope > 0
    assert found(0.7) > 0
    table = found.inverse(wanted)
    if table > 0 and found(table) > found.slope * table / search.FAR:
        assert found(table) == pytest.approx(wanted, rel=1e-6)
    if len(tried) == 1:
        assert found(tried[0][0]) == pytest.approx(tried[0][1], rel=1e-9)


def test_noise_between_plans_that_are_nearly_one_is_no_slope():
    """Half a per cent apart, and as slow: the budget is 2 % away, not half of the network."""
    found = Correction.through([(0.600, 0.665), (0.597, 0.6645)], 0.65)
    assert 0.56 < found.inverse(0.65) < 0.6
    found = Correction.through([(0.600, 0.665), (0.597, 0.6645), (0.3, 0.35)], 0.65)  # between two sides it is one
    assert 0.56 < found.inverse(0.65) < 0.6


def test_a_speed_beyond_reach_names_the_best(residual, table):
    with pytest.raises(GdwsError, match=r"Speedup\(1000\) is out of reach: expected at most \d+\.\d\dx"):
        closest_within(search_plans(*residual, gdws.Speedup(1000), table), gdws.Speedup(1000))


def test_a_plan_by_the_time_of_a_gpu_is_run_as_it_will_be(residual, gpu_table, monkeypatch):
    monkeypatch.setattr(search, "ROUNDS", 1)
    monkeypatch.setattr(Engine, "runs_on", lambda *_: True)  # CUDA graphs of nothing, on a CPU
    ((choices, measured),) = search_plans(*residual, gdws.Latency(0.9), gpu_table)
    assert choices
    assert (measured.engine, measured.dense_engine, measured.batch) == ("cuda", "cuda", 2)
    assert measured.predicted <= 0.9
    assert 0 < measured.latency < 1.5
