"""Times by layer, from real engines; and plans made with them, run."""

import contextlib
import copy
import dataclasses
import itertools
import math

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import nn

import gdws
from gdws.calibration.collect import collect_statistics
from gdws.core import cost
from gdws.core.sites import find_convolutions
from gdws.deploy.benchmark import Timing
from gdws.deploy.onnx import to_onnx
from gdws.deploy.runtimes import NodeTime
from gdws.errors import GdwsError
from gdws.planning.choose import Choice, allocate_layers
from gdws.planning.latency import search, table
from gdws.planning.latency.measure import measure_latencies
from gdws.planning.latency.node_times import layer_seconds, owners
from gdws.planning.latency.search import Correction, closest_within, search_plans
from gdws.planning.latency.table import Latencies, LatencyTable
from gdws.planning.latency.target import Target
from gdws.planning.latency.variants import with_noise_weights
from gdws.planning.plan import Measured
from gdws.structures import STRUCTURES, select_structures

ENGINES = ("onnxruntime", "openvino")


class Residual(nn.Module):
    """Convolutions that are fused with a BatchNorm, a ReLU and a sum; one is used twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.conv1, self.norm1 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.shortcut = nn.Conv2d(32, 64, 1, stride=2, bias=False)
        self.norm2, self.twice = nn.BatchNorm2d(64), nn.Conv2d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))) + self.shortcut(x)))
        x = torch.relu(self.twice(torch.relu(self.twice(x))))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def residual():
    """A network, its convolutions, two structures, and statistics for these and one more."""
    torch.manual_seed(0)
    model = Residual().eval()
    images = torch.rand(24, 3, 32, 32)
    sites = [site for site in find_convolutions(model, images[:1]) if site.reason is None]
    structures = select_structures(["gdws", "vertical"])
    statistics = collect_statistics(model, [images], sites, select_structures(["gdws", "separable"]), attack=None, seed=0)
    return model, sites, structures, statistics


@pytest.fixture(scope="module")
def table(residual):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "SHARES", (0.1, 0.4))
        return measure_latencies(*residual, Target(threads=1))


def test_nodes_are_given_to_the_layers_they_were_fused_from():
    """Two convolutions are added: the sum's name stands for the one that does not appear under its own."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "block.conv1"),
        helper.make_node("Relu", ["a"], ["b"], "r"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "block.conv2"),
        helper.make_node("Conv", ["x", "w3"], ["d"], "short"),
        helper.make_node("Add", ["c", "d"], ["e"], "sum"),
        helper.make_node("Gather", ["e", "i"], ["f"], "block.conv3.gather"),
        helper.make_node("Conv", ["f", "w4"], ["g"], "block.conv3.depthwise"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "g")]
    names = owners(helper.make_graph(nodes, "graph", values[:1], values[1:]))
    one_pass = [
        NodeTime("ReorderInput", "ReorderInput", 100.0),
        NodeTime("b_nchwc", "Conv", 1.0),
        NodeTime("d_nchwc", "Conv", 2.0),
        NodeTime("e_token_7", "Conv", 4.0),
        NodeTime("Transpose_token_9", "Transpose", 8.0),
        NodeTime("block.conv3.gather", "Gather", 16.0),
        NodeTime("e_acdb_abcd", "Reorder", 32.0),
        NodeTime("block.conv3.depthwise/WithoutBiases", "GroupConvolution", 64.0),
        NodeTime("Transpose", "Transpose", 1000.0),
        NodeTime("head", "Gemm", 2000.0),
    ]
    layers = ["block.conv1", "block.conv2", "block.conv3"]
    found = layer_seconds([one_pass] * 2, names, layers)
    assert found == {"block.conv1": [101, 101], "block.conv2": [4, 4], "block.conv3": [120, 120]}


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_every_layer_of_a_real_network_has_its_time(residual, table, precision, monkeypatch):
    """In both engines, all structures: nothing is zero, and the layers of the dense network are a part of its time."""
    model, sites, structures, statistics = residual
    if precision == "int8":
        monkeypatch.setattr(latency, "SHARES", (0.2,))
        table = measure_latencies(model, sites, structures[:1], statistics, Target(precision="int8", threads=1))
    assert set(table.engines) == set(ENGINES)
    for latencies in table.engines.values():
        assert min(latencies.layers.values()) > 0
        assert 0.3 * latencies.total < sum(latencies.layers.values()) < 1.3 * latencies.total
        for site in sites:
            for structure in structures if precision == "float32" else structures[:1]:
                points = latencies.points[site.name][structure.name]
                assert all(size > 0 and seconds > 0 for size, seconds in points)
                assert [size for size, _ in points] == sorted({size for size, _ in points})
    assert table.reference[1] == min(table.reference[1], *(found.total for found in table.engines.values()))


def test_a_layer_that_is_used_twice_counts_twice(residual, tmp_path):
    to_onnx(residual[0], tmp_path / "model.onnx", torch.zeros(1, 3, 32, 32))
    names = owners(onnx.load(tmp_path / "model.onnx").graph)
    passes = [[NodeTime("twice", "Conv", 1.0), NodeTime("twice.use2", "Conv", 2.0)]]
    assert names["twice.use2"] == {"twice.use2"}
    assert layer_seconds(passes, names, ["twice"]) == {"twice": [3]}


def test_times_between_sizes_are_linear_and_vectors_are_filled():
    model = Residual()
    site = next(site for site in find_convolutions(model, torch.zeros(1, 3, 32, 32)) if site.reason is None)
    gdws_structure = STRUCTURES["gdws"]
    points = {site.name: {"gdws": [(16, 2.0), (32, 4.0), (64, 6.0)]}}
    found = Latencies(100.0, {site.name: 10.0}, points, 8)
    assert found.rest == 90
    wanted = {0: 2, 8: 2, 16: 2, 17: 3, 24: 3, 32: 4, 48: 5, 64: 6, 80: 7, 96: 8}
    assert {size: found.of(gdws_structure, site, size) for size in wanted} == pytest.approx(wanted)


def test_a_mock_has_the_shape_of_the_compressed_network_and_runs(residual):
    model, sites, _, statistics = residual
    structure, site = STRUCTURES["vertical"], sites[0]
    kept = structure.ranks(statistics.curves[site.name]["vertical"], 8)
    before = torch.get_rng_state()
    made = with_noise_weights(model, {site.name: Choice(structure, 8, kept, math.nan)})
    assert torch.equal(torch.get_rng_state(), before)  # a plan may be made in the middle of a training
    assert structure.is_layer(made.get_submodule(site.name))
    assert model.get_submodule(site.name) is site.conv
    assert made(statistics.images[:2].float()).isfinite().all()


def test_a_timetable_is_kept_and_a_damaged_one_is_taken_again(residual, table, tmp_path, monkeypatch):
    measured = [table, dataclasses.replace(table, reference=("torch", 1.0))]
    monkeypatch.setattr(latency, "_measured", lambda *_: measured.pop(0))
    target = Target(threads=1)
    assert measure_latencies(*residual, target, tmp_path) == table
    (file,) = tmp_path.iterdir()
    assert measure_latencies(*residual, target, tmp_path) == table
    assert len(measured) == 1
    file.write_text(file.read_text()[:100])
    again = measure_latencies(*residual, target, tmp_path)
    assert again.reference == ("torch", 1.0)
    assert LatencyTable.from_json(file.read_text()) == again
    with pytest.raises(GdwsError, match="not a timetable"):
        LatencyTable.from_json("[]")


def test_a_timetable_that_cannot_be_kept_says_so_before_it_is_measured(residual, tmp_path, monkeypatch):
    monkeypatch.setattr(latency, "_measured", None)
    (tmp_path / "file").touch()
    with pytest.raises(GdwsError, match=r"cannot make the folder .*file/cache: Not a directory"):
        measure_latencies(*residual, Target(threads=1), tmp_path / "file" / "cache")


def test_a_timetable_of_other_versions_is_not_used(residual, monkeypatch):
    """By the module's version: the distribution may have another name, as onnxruntime-gpu has."""
    keys = {table._key(*residual, Target())}
    for package in ("torch", "onnxruntime", "openvino"):
        monkeypatch.setattr(f"{package}.__version__", "0.0")
        keys.add(table._key(*residual, Target()))
    assert len(keys) == 4


def test_the_allocation_by_time_is_the_best_there_is(residual, table):
    """Against all combinations of three layers' options."""
    _, sites, structures, statistics = residual
    few, latencies = sites, table.engines["onnxruntime"]
    options = []
    for site in few:
        own = [(latencies.dense(site), 0.0)]
        for structure in structures:
            curves = statistics.curves[site.name][structure.name]
            for size in structure.sizes(curves[0]):
                price = latencies.of(structure, site, size)
                loss = float(sum(curve.losses[size] for curve in curves)) * structure.brittleness
                own += [(price, loss)] if price < latencies.dense(site) else []
        options.append(own)
    dense = sum(latencies.dense(site) for site in few)
    for share in (0.5, 0.7, 0.95, 1.0):
        combined = [np.sum(choice, 0) for choice in itertools.product(*options)]
        best = min((loss for price, loss in combined if price <= share * dense * (1 + 1e-9)), default=None)
        if best is None:
            continue
        choices = allocate_layers(few, structures, statistics, latencies, share * dense)
        assert sum(choice.weight for choice in choices.values()) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_plans_are_within_their_time_as_predicted_and_say_what_was_measured(residual, table, share, monkeypatch):
    monkeypatch.setattr(timed, "ROUNDS", 1)
    ((choices, measured),) = search_plans(*residual, gdws.Latency(share), table)
    assert choices or share == 1
    assert measured.engine in table.engines
    assert measured.predicted <= share * (1 + 1e-9)
    assert 0 < measured.latency < 1.5


def clocked(monkeypatch, seconds):
    """Networks take what `seconds` says of them, whatever the engine; returns what was run."""
    seen = []

    def bench(runs, *_):
        seen.append(runs["plan"])
        return {name: Timing(1, 1.0, seconds(network), (1.0, 1.0), False) for name, network in runs.items()}

    monkeypatch.setattr(timed, "bench", bench)
    monkeypatch.setattr(timed, "ready", lambda network, *_: network)
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
            points[site.name][structure.name] = [(size, 0.25 * factor * share * size) for size in (sizes[0], sizes[-1])]
    engines = {name: Latencies(1.0, {site.name: 0.25 for site in sites}, points, 8) for name in ENGINES}
    return LatencyTable("cpu", Target(threads=1), ("onnxruntime", 1.0), engines)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_plans_close_in_where_the_truth_is_another_than_the_timetable(residual, monkeypatch, share, factor):
    """Networks that take their weights' time, planned by their multiply-adds, which are also wrong by a factor."""
    whole = weights(residual[0])
    seen = clocked(monkeypatch, lambda network: 0.2 + 0.8 * weights(network) / whole)
    tried = list(search_plans(*residual, gdws.Latency(share), made_up(residual, factor)))
    assert len(seen) <= search.ROUNDS + 1  # the smallest may be timed twice
    plans = [(measured.engine, choices) for choices, measured in tried]
    assert all(one != other for one, other in itertools.combinations(plans, 2))
    assert all(measured.predicted > 0 for _, measured in tried)
    assert 0.9 * share <= closest_within(tried, gdws.Latency(share))[1].latency <= share


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
    assert 1 <= len(seen) <= search.ROUNDS + 1


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
    tried = [({}, Measured("cpu", "onnxruntime", "float32", 1, 1, "torch", 1.0, 0.5, latency)) for latency in latencies]
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


def test_a_speed_beyond_reach_names_the_best(residual, table):
    with pytest.raises(GdwsError, match=r"Speedup\(1000\) is out of reach: expected at most \d+\.\d\dx"):
        closest_within(search_plans(*residual, gdws.Speedup(1000), table), gdws.Speedup(1000))


@pytest.fixture(scope="module")
def gpu_table(residual):
    """What a GPU's timetable would be, taken on the CPU, where the same code records nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "SHARES", (0.1, 0.4))
        patch.setattr(latency, "TURNS", 10)
        return table._measured_on_gpu(*residual, Target("cuda", threads=1, batch=2))


def test_the_timetable_of_a_gpu_is_right_for_the_networks_it_was_taken_from(residual, gpu_table):
    """Every layer has its time, each use of it counted, at one size more; and they are not more than the network's."""
    _, sites, structures, _ = residual
    found = gpu_table.engines["cuda"]
    assert gpu_table.reference == ("cuda", found.total)
    assert 0.3 * found.total < sum(found.layers.values()) <= found.total * (1 + 1e-9)
    for site in sites:
        assert set(found.points[site.name]) == {structure.name for structure in structures}
        assert all(seconds > 0 for own in found.points[site.name].values() for _, seconds in own)
    assert max(len(own) for kinds in found.points.values() for own in kinds.values()) == 3
    assert LatencyTable.from_json(gpu_table.to_json()) == gpu_table


@given(rest=st.floats(0.1, 5), dense=st.floats(0.6, 1.8), made=st.floats(0.6, 1.8), seed=st.integers(0, 999))
def test_what_layers_take_in_their_networks_is_found_from_what_they_take_alone(rest, dense, made, seed):
    """Networks in which layers take so many times as long as alone; some keep a layer dense."""
    random = np.random.default_rng(seed)
    names = [f"layer{number}" for number in range(4)]
    alone = [{name: random.uniform(1, 5) for name in names}]
    for share in (0.1, 0.3, 0.6, 0.9):
        alone += [
            {name: share * random.uniform(1, 5) for name in names},
            {name: share * random.uniform(1, 5) for name in names[1:]},
        ]
    totals = []
    for times in alone:
        kept = alone[0] if times is alone[0] else {name: taken for name, taken in alone[0].items() if name not in times}
        replaced = {} if times is alone[0] else times
        totals.append(rest + dense * sum(kept.values()) + made * sum(replaced.values()))
    found = table._in_place(totals, alone)
    for times, own, factor in zip(alone, found, [dense] + 8 * [made], strict=True):
        assert own == pytest.approx({name: factor * taken for name, taken in times.items()}, rel=1e-6)
    impossible = table._in_place([sum(alone[0].values()) / 3, *totals[1:]], alone)
    assert sum(impossible[0].values()) <= sum(alone[0].values()) / 3 * (1 + 1e-9)  # there is never less than no rest


def test_a_plan_by_the_time_of_a_gpu_is_run_as_it_will_be(residual, gpu_table, monkeypatch):
    monkeypatch.setattr(timed, "ROUNDS", 1)
    ((choices, measured),) = search_plans(*residual, gdws.Latency(0.9), gpu_table)
    assert choices
    assert (measured.engine, measured.dense_engine, measured.batch) == ("cuda", "cuda", 2)
    assert measured.predicted <= 0.9
    assert 0 < measured.latency < 1.5


def test_a_target_without_its_gpu_is_refused_before_anything_is_done(residual, gpu_table):
    model, _, _, statistics = residual
    for calibration, target in ((None, Target("cuda")), (statistics, gpu_table)):
        with pytest.raises(GdwsError, match="the target is cuda and the model on cpu: expected"):
            gdws.plan(model, calibration, gdws.Speedup(2), target=target)
    with pytest.raises(GdwsError, match="the target is cuda and the model on cpu: expected"):
        measure_latencies(*residual, Target("cuda"))


def test_plan_takes_other_targets_for_budgets_of_time_only(residual, table, monkeypatch):
    model, _, _, statistics = residual
    monkeypatch.setattr(timed, "ROUNDS", 1)
    made = gdws.plan(model, statistics, gdws.Speedup(1.1), structures=["gdws", "vertical"], target=table)
    assert made.measured is not None
    assert all((layer.seconds is None) == (not layer.replaceable) for layer in made.layers)
    assert gdws.Plan.from_json(made.to_json()) == made
    with pytest.raises(GdwsError, match=r"got Target\(engine='auto'.*\): expected Latency or Speedup"):
        gdws.plan(model, statistics, gdws.Macs(0.5), structures="gdws", target=Target())
    with pytest.raises(GdwsError, match="got a timetable: expected Latency or Speedup"):
        gdws.plan(model, statistics, gdws.Macs(0.5), structures="gdws", target=table)
    with pytest.raises(GdwsError, match="'paper' got a target: expected"):
        gdws.plan(model, statistics, gdws.Macs(0.5), "paper", target=Target())
    with pytest.raises(GdwsError, match="expected the method 'calibrated'"):
        gdws.plan(model, [statistics.images], gdws.Latency(0.5), "paper")


@pytest.mark.parametrize("kind", [gdws.Macs, gdws.Params])
def test_counted_budgets_for_tensor_cores_take_plain_convolutions_in_their_sizes(residual, kind):
    """Against all combinations of ranks of 64, 128, ... and horizontally 16 and 32 too; no GPU is needed to plan for one."""
    model, sites, _, statistics = residual
    target = Target("cuda", "float16", batch=256)
    smallest = {"horizontal": 16, "vertical": 64}
    options = []
    for site in sites:
        own = [(cost.dense_macs(site) if kind is gdws.Macs else cost.dense_parameters(site), 0.0)]
        for name, least in smallest.items():
            structure, losses = STRUCTURES[name], statistics.curves[site.name][name][0].losses.tolist()
            for rank in (rank for rank in (16, 32, 64, 128, 192, 256) if least <= rank < len(losses)):
                price = structure.macs(site, rank) if kind is gdws.Macs else structure.parameters(site.conv, rank)
                own.append((price, losses[rank]))
        assert len(own) > 2
        options.append(own)
    limit = 0.5 * sum(own[0][0] for own in options)
    within = [pick for pick in itertools.product(*options) if sum(costs for costs, _ in pick) <= limit]
    best = min(sum(loss for _, loss in pick) for pick in within)

    made = gdws.plan(model, statistics, kind(0.5), structures=["gdws", "separable"], target=target)
    layers = [layer for layer in made.layers if layer.replaceable]
    assert (made.macs if kind is gdws.Macs else made.parameters) <= 0.5
    assert sum(layer.loss for layer in layers) == pytest.approx(best)
    assert {layer.structure for layer in layers} <= {"dense", *smallest}
    assert all(layer.kept[0] in (16, 32, 64, 128, 192) for layer in layers if layer.kept)
    assert made.tensor_cores
    assert gdws.Plan.from_json(made.to_json()).tensor_cores
    assert gdws.Plan.from_json(made.to_json().replace('"tensor cores": true', '"tile": 16')).tensor_cores  # as it was written
    free = gdws.plan(model, statistics, kind(0.5), structures="vertical")
    assert not free.tensor_cores
    assert any(layer.kept[0] % 16 for layer in free.layers if layer.kept)
    with pytest.raises(GdwsError, match="structures are gdws: expected plain convolutions"):
        gdws.plan(model, statistics, kind(0.5), structures="gdws", target=target)
    with pytest.raises(GdwsError, match=r"Target\(engine='cuda', precision='float32'.*\): expected .* cuda in float16"):
        gdws.plan(model, statistics, kind(0.5), target=Target("cuda"))
    with pytest.raises(
        GdwsError, match=r"\(0.01\) is out of reach in sizes for tensor cores: expected at least 0\.\d+, all layers smallest"
    ):
        gdws.plan(model, statistics, kind(0.01), structures="separable", target=target)


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": "tpu"},
        {"engine": "torch"},
        {"precision": "int4"},
        {"precision": "float16"},
        {"engine": "cuda", "precision": "int8"},
        {"batch": 0},
        {"threads": 0},
    ],
)
def test_targets_that_cannot_be_are_refused(wrong):
    with pytest.raises(GdwsError, match=r"the target .* expected"):
        Target(**wrong)


def test_budgets_of_time_are_checked():
    for wrong in (0.5, math.inf, math.nan):
        with pytest.raises(GdwsError, match="at least 1"):
            gdws.Speedup(wrong)
    with pytest.raises(GdwsError, match="fraction"):
        gdws.Latency(1.5)
