"""Times by layer, from real engines; and kept."""

import contextlib
import dataclasses
import json
import re

import numpy as np
import pytest

import gdws
from gdws.core.errors import GdwsError, OutOfReach
from gdws.deploy.runtimes import NodeTime
from gdws.planning.latency import measure, measure_cpu, variant_files
from gdws.planning.latency.measure import measure_latencies
from gdws.planning.latency.table import LatencyTable
from gdws.planning.latency.target import Target
from gdws.planning.methods import Choice
from gdws.structures import STRUCTURES

ENGINES = ("onnxruntime", "openvino")


@pytest.fixture
def exported(monkeypatch):
    """The networks that were exported, which takes seconds each."""
    found, plain = [], variant_files.to_onnx

    def export(network, *rest):
        found.append(network)
        plain(network, *rest)

    monkeypatch.setattr(variant_files, "to_onnx", export)
    return found


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_every_layer_of_a_real_network_has_its_time(residual, table, precision, monkeypatch):
    """In both engines, all structures: nothing is zero, and the layers of the dense network are a part of its time."""
    model, sites, structures, statistics = residual
    least = 0.3
    if precision == "int8":
        least = 0.05  # where int8 is fast, most of so small a network's time passes between its layers
        monkeypatch.setattr(measure_cpu, "SHARES", (0.2,))
        table = measure_latencies(model, sites, structures[:1], statistics, Target(precision="int8", threads=1))
    assert set(table.engines) == set(ENGINES)
    for latencies in table.engines.values():
        assert min(latencies.layers.values()) > 0
        assert least * latencies.total < sum(latencies.layers.values()) < 1.3 * latencies.total
        for site in sites:
            for structure in structures if precision == "float32" else structures[:1]:
                points = latencies.points[site.name][structure.name]
                assert all(size > 0 and seconds > 0 for size, seconds in points)
                assert [size for size, _ in points] == sorted({size for size, _ in points})
    assert table.reference[1] == min(table.reference[1], *(found.total for found in table.engines.values()))


def test_only_the_dense_network_is_exported(residual, exported, monkeypatch):
    """Bug: so was every network that is timed, at seconds each."""
    monkeypatch.setattr(measure_cpu, "SHARES", (0.1, 0.4))
    monkeypatch.setattr(measure_cpu, "TURNS", 8)
    measure_latencies(*residual, Target("onnxruntime", threads=1))
    assert len(exported) == 1


def test_a_timetable_is_kept_and_a_damaged_one_is_taken_again(residual, table, tmp_path, monkeypatch):
    measured = [table, dataclasses.replace(table, reference=("torch", 1.0))]
    monkeypatch.setattr(measure, "measure_on_cpu", lambda *_: measured.pop(0))
    target = Target(threads=1)
    assert measure_latencies(*residual, target, tmp_path) == table
    (file,) = tmp_path.iterdir()
    assert measure_latencies(*residual, target, tmp_path) == table
    assert len(measured) == 1
    file.write_text(file.read_text()[:100])
    again = measure_latencies(*residual, target, tmp_path)
    assert again.reference == ("torch", 1.0)
    assert LatencyTable.from_json(json.dumps(json.loads(file.read_text())["table"])) == again
    record = json.loads(table.to_json())
    for engine in record["engines"].values():
        del engine["layers"][residual[1][0].name], engine["points"][residual[1][0].name]
    file.write_text(json.dumps(record))
    measured.append(table)
    assert measure_latencies(*residual, target, tmp_path) == table  # a whole table, but not of these layers


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.update(engines=3), "engines is 3: expected an object"),
        (lambda record: record["engines"]["openvino"].update(total=0), r"total is 0: expected a number from 1e-09"),
        (lambda record: record["engines"]["openvino"].update(vector_width="x"), "vector_width is 'x': expected a whole number"),
        (lambda record: record["engines"]["openvino"]["layers"].update(x=-1), r"layers\['x'\] is -1: expected a number from 0"),
        (
            lambda record: record["engines"]["openvino"]["points"].update(X={"gdws": [[2, 1.0], [1, 1.0]]}),
            r"times of gdws for \[2, 1\]",
        ),
        (lambda record: record["target"].update(threads=0), "the target has batch 1 and 0 threads"),
        (lambda record: record.update(reference=["torch"]), "reference is .*: expected a list of 2"),
        (lambda record: record.update(more=1), "has 'more'"),
    ],
)
def test_other_json_is_no_table(table, change, words):
    record = json.loads(table.to_json())
    for engine in record["engines"].values():
        engine["lanes"] = engine.pop("vector_width")
    assert LatencyTable.from_json(json.dumps(record)) == table  # as it was written before
    record = json.loads(table.to_json())
    change(record)
    with pytest.raises(GdwsError, match=f"this is not a latency table: .*{words}"):
        LatencyTable.from_json(json.dumps(record))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"vector_width": ', '"vector_width": 1'),
        lambda text: re.sub(r'"total": [^,]+', '"total": NaN', text),
        lambda text: re.sub(r'"total": [^,]+', '"total": 1.0', text),
        lambda text: re.sub(r'"content": "[^"]+",', "", text),
        lambda text: "[" * 100_000,
        lambda text: "",
    ],
)
def test_a_timetable_that_is_not_as_it_was_written_is_taken_again(residual, table, tmp_path, monkeypatch, damage):
    """Bug: whatever could be read was used, so that plans were made with times of NaN."""
    monkeypatch.setattr(measure, "measure_on_cpu", lambda *_: table)
    assert measure_latencies(*residual, Target(threads=1), tmp_path) == table
    (file,) = tmp_path.iterdir()
    written = file.read_text()
    damaged = damage(written)
    assert damaged != written
    file.write_text(damaged)
    assert measure_latencies(*residual, Target(threads=1), tmp_path) == table
    assert file.read_text() == written


@pytest.mark.parametrize("value", ["NaN", "-1.0", "Infinity", '"fast"', "0.0"])
def test_a_table_of_impossible_times_is_refused(table, value):
    with pytest.raises(GdwsError, match="not a latency table"):
        LatencyTable.from_json(re.sub(r'"total": [^,]+', f'"total": {value}', table.to_json()))


def test_a_timetable_that_cannot_be_kept_is_measured_all_the_same(residual, table, tmp_path, monkeypatch):
    """Bug: a cache, which nobody needs, stopped the work."""
    monkeypatch.setattr(measure, "measure_on_cpu", lambda *_: table)
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match=r"nothing is kept .*: cannot make the folder .*file/cache: Not a directory"):
        assert measure_latencies(*residual, Target(threads=1), tmp_path / "file" / "cache") == table


def test_a_timetable_of_other_versions_is_not_used(residual, monkeypatch):
    """By the module's version: the distribution may have another name, as onnxruntime-gpu has."""
    keys = {measure._key(*residual, Target())}
    for package in ("torch", "onnxruntime", "openvino"):
        monkeypatch.setattr(f"{package}.__version__", "0.0")
        keys.add(measure._key(*residual, Target()))
    assert len(keys) == 4


def test_networks_whose_times_are_known_leave_the_turns_to_others():
    """And the dense network stays as long as it is compared with another one in its engine."""
    base = [1.0 + 0.3 * (turn % 3) for turn in range(10)]  # a machine that is slow now and then
    steady, noisy = [0.5 * seconds for seconds in base], [0.5 + 0.1 * (turn % 4) for turn in range(10)]
    totals = {("a", 0): base, ("a", 1): steady, ("a", 2): noisy, ("b", 0): base, ("b", 1): steady, ("torch", 0): base}
    assert measure_cpu._unknown(list(totals), totals) == [("a", 0), ("a", 2)]
    assert measure_cpu._unknown([("b", 0), ("b", 1)], totals) == []


def test_a_network_of_fewer_turns_is_compared_with_the_same_turns_of_the_dense_one():
    def passes(seconds):
        return [[NodeTime("layer", "Conv", taken)] for taken in seconds]

    dense, names = [1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0], [{"layer": {"layer"}}] * 2
    found = measure_cpu.latencies_of_passes(
        10.0,
        [np.array(dense), np.array([0.5, 0.5, 0.5])],
        [passes(dense), passes([0.5, 0.5, 0.5])],
        names,
        [{"layer": Choice(STRUCTURES["vertical"], 4, (4,), 0.0)}],
        ["layer"],
        1,
    )
    assert found.layers == {"layer": pytest.approx(10.0)}
    assert found.points["layer"]["vertical"] == [(4, pytest.approx(5.0))]


def test_a_plan_exports_the_dense_network_once(residual, exported, monkeypatch):
    """It was exported again for the plans that are run, after those of the latency table."""
    monkeypatch.setattr(measure_cpu, "SHARES", (0.2,))
    monkeypatch.setattr(measure_cpu, "TURNS", 8)
    model, _, _, statistics = residual
    with contextlib.suppress(OutOfReach):  # after plans ran, which is all that matters here
        gdws.plan(model, statistics, gdws.Latency(0.9), target=Target("onnxruntime", threads=1))
    assert len(exported) == 1
