"""The whole reproduction at scale smoke: every table and figure, cut and resumed, by one process and by several."""

import json
import multiprocessing
import os
import random
import shutil
import time
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from filelock import FileLock

from gdws.core.errors import GdwsError
from gdws.reproduce import runner
from gdws.reproduce.paper import MAIN, paper
from gdws.reproduce.records import read_records
from gdws.reproduce.run import reproduce
from gdws.reproduce.runner import TimeIsUp
from gdws.reproduce.tables import printed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Everything, once for all processes of the tests."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "reproduction"
    seen = []
    with FileLock(f"{out}.lock"):
        made = reproduce(["all", "leaderboard"], out, scale_name="smoke", resume=True, outlook=seen.append)
    return out, made, seen[0]


def certain(record):
    """What a record says that is no time: of networks that were planned by time nothing is certain."""
    if record["match"] == "speed":
        return {"name": record["name"]}
    judged = {name: {key: found[key] for key in found if key != "seconds"} for name, found in record["judged"].items()}
    return {"judged": judged, **{name: record[name] for name in ("network", "paired", "paper", "layers") if name in record}}


def test_all_tables_and_figures_are_made(whole):
    out, made, outlook = whole
    assert made.failed == {}
    assert outlook.missing == ()
    records = read_records(out / "rows")
    assert set(records) == set(made.rows)
    for table in (*MAIN, "leaderboard"):
        for row in printed(table):
            assert records[row.name]["paper"] == row.numbers
            assert table in records[row.name]["tables"]
    page = (out / "index.md").read_text()
    assert "Not measured" not in page
    for number in range(1, 12):
        assert f"## Table {number}: " in page
    for name in ("figure1", "figure4", "figure5"):
        assert f"({name}.svg)" in page
        assert ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
    assert (out / "index.html").read_text().count("<table>") == 12


def test_records_have_the_evidence(whole):
    out, _, _ = whole
    records = read_records(out / "rows")
    reached = [record for record in records.values() if "out of reach" not in record]
    assert all(record["match"] == "speed" for record in records.values() if record not in reached)
    for record in reached:
        assert record["missing"] == []
        assert {"seed", "machine", "torch", "commit", "command", "date"} <= record.keys()
        for found in record["judged"].values():
            for column in found["columns"].values():
                low, high = column["interval"]
                assert low <= column["percent"] <= high
    row = records["cifar10-vgg16.paper-size-28.7"]
    assert row["network"]["beta"] > 0
    assert set(row["judged"]) == {"pgd", "classic"}
    assert set(row["judged"]["classic"]["columns"]) == {"natural", "fgsm", "bim", "deepfool"}
    assert row["compared with"] == "cifar10-vgg16"
    union = records["cifar10-msd-preactresnet18"]["judged"]["union"]["columns"]
    assert union["union"]["percent"] <= min(union[name]["percent"] for name in ("linf", "l1", "l2"))
    top = records["imagenet-hydra-resnet50"]["judged"]["imagenet"]["columns"]
    assert top["natural"]["percent"] <= top["top-5 natural"]["percent"]


def test_beside_a_row_stands_the_calibrated_method(whole):
    out, _, _ = whole
    records = read_records(out / "rows")
    row = "cifar10-vgg16.paper-size-16.3"
    beside = {record["name"]: record for record in records.values() if record["beside"] == row}
    kinds = {(record["method"], record["match"], record["tuned"]) for record in beside.values()}
    autos = {("auto", match, tuned) for match in ("parameters", "macs", "speed") for tuned in (False, True)}
    assert kinds == {*autos, ("paper", "", True), ("uniform", "macs", False)}
    own, same_size = records[row]["network"], records["cifar10-vgg16.auto-parameters-16.3"]["network"]
    assert same_size["fraction of parameters"] <= own["fraction of parameters"] + 1e-6
    same_macs = records["cifar10-vgg16.auto-macs-16.3"]["network"]
    assert same_macs["fraction of macs"] <= own["fraction of macs"] + 1e-6


def test_bases_are_shared_between_tables(whole):
    out, _, _ = whole
    made = [path.name for path in (out / "steps").iterdir() if path.name.startswith("base-")]
    assert len(made) == len(paper().base) + 2  # by our recipe a VGG-16, and a ResNet-18 for the leaderboard
    assert not list((out / "steps").glob("*/run"))  # checkpoints of what is done are gone


def test_killed_at_ten_random_moments_it_ends_with_the_same_records(whole, tmp_path, monkeypatch):
    """Real processes, kill -9; the moments are lines of the log, or a little later."""
    out, log = tmp_path / "out", tmp_path / "out" / "logs" / "worker-0.log"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gdws.reproduce.run"])  # imported once
    given = {"scale_name": "smoke", "resume": True}

    def begin():
        process = context.Process(target=reproduce, args=(["table3", "leaderboard"], out), kwargs=given)
        process.start()
        return process

    moments, lines = random.Random(time.time_ns()), 0
    for _ in range(10):
        process = begin()
        lines += moments.randrange(1, 15)
        while process.is_alive() and (not log.exists() or log.read_text().count("\n") < lines):
            time.sleep(0.005)
        time.sleep(moments.random() / 5)
        process.kill()
        process.join()
    process = begin()
    process.join()
    assert process.exitcode == 0
    records, reference = read_records(out / "rows"), read_records(whole[0] / "rows")
    assert len(records) > 20
    for name, record in records.items():
        assert certain(record) == certain(trimmed(reference[name], record)), name


def trimmed(record, to):
    """A record with the evaluations that another one has."""
    return record | {kind: {name: record[kind][name] for name in to[kind]} for kind in ("judged", "paired")}


def test_two_workers_make_the_same_records(whole, tmp_path):
    out = tmp_path / "out"
    made = reproduce(["table3"], out, scale_name="smoke", workers=2)
    assert made.failed == {}
    reference = read_records(whole[0] / "rows")
    for name, record in read_records(out / "rows").items():
        assert certain(record) == certain(trimmed(reference[name], record)), name
    logs = [path.read_text() for path in sorted((out / "logs").iterdir())]
    assert len(logs) == 2
    assert all("done in" in text for text in logs)


def test_minutes_end_the_work_and_resume_goes_on(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(TimeIsUp, match="steps are left"):
        reproduce(["table5"], out, scale_name="smoke", minutes=1e-6)
    assert "Not measured yet" in (out / "index.md").read_text()
    with pytest.raises(GdwsError, match="holds a reproduction: expected another folder"):
        reproduce(["table5"], out, scale_name="smoke")
    with pytest.raises(GdwsError, match="scale smoke, seed 0: expected that again"):
        reproduce(["table5"], out, scale_name="smoke", resume=True, seed=1)
    assert len(reproduce(["table5"], out, scale_name="smoke", resume=True).rows) == 6


def test_the_command_says_what_it_will_take(run, tmp_path):
    status, text = run("reproduce", "figure5", "--scale", "smoke", "--out", "o", "--json", "o.json")
    assert status == 0, text
    assert "about" in text
    assert "pruned" in text
    assert json.loads((tmp_path / "o.json").read_text())["failed"] == {}
    status, text = run("reproduce", "table12", "--out", "p")
    assert (status, "there is no 'table12' to reproduce" in text) == (2, True)
    status, text = run("reproduce", "--scale", "huge", "--out", "p")
    assert (status, "the scale is 'huge'" in text) == (2, True)
    status, text = run("reproduce", "--data", "cifar10", "--out", "p")
    assert (status, "expected cifar10:DIR" in text) == (2, True)
    status, text = run("reproduce", "--weights", "none", "--out", "p")
    assert (status, "there is no folder none" in text) == (2, True)
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "mine").touch()
    status, text = run("reproduce", "--scale", "smoke", "--out", "q")
    assert (status, "holds mine, which is no reproduction's" in text) == (2, True)


def test_without_data_rows_are_left_out_with_a_reason(tmp_path):
    seen = []
    made = reproduce(["table1"], tmp_path / "out", outlook=seen.append)
    assert made.rows == ()
    assert len(seen[0].missing) == 5
    assert "needs cifar10: expected --data with it" in seen[0].missing[0]


def test_a_step_that_fails_is_told_and_tried_again(tmp_path, monkeypatch):
    from gdws.reproduce.steps import base

    def fails(*_, **__):
        raise RuntimeError("no such luck")

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(base, "train", fails)
        made = reproduce(["table5"], out, scale_name="smoke")
    assert list(made.failed.values()) == ["RuntimeError: no such luck"]
    assert made.rows == ()
    made = reproduce(["table5"], out, scale_name="smoke", resume=True)
    assert made.failed == {}


def test_a_step_that_is_cut_when_tried_alone_ends_as_any_other(tmp_path, monkeypatch):
    """Bug: the end of the time was an error of the worker where the step had run out of memory before."""
    outcomes = iter([torch.OutOfMemoryError(), TimeIsUp("the time is up")])

    def do(*_, **__):
        raise next(outcomes)

    monkeypatch.setattr(runner, "_do", do)
    (tmp_path / "locks").mkdir()
    place = SimpleNamespace(out=tmp_path, folder=lambda step: tmp_path / step.key)
    assert runner._take(place, SimpleNamespace(key="it", measures_time=False), 0, 1, None)
    assert next(outcomes, None) is None


def test_decisions_are_those_of_the_network_that_is_kept(whole):
    """Natural accuracy once more, from the weights on the disk."""
    from gdws import data
    from gdws.core.reading.weights import read_weights
    from gdws.reproduce.scales import small_network

    out, _, _ = whole
    (folder,) = (out / "steps").glob("base-cifar10-vgg16-[0-9a-f]*")
    model = small_network(10).eval()
    model.load_state_dict({name: value.float() for name, value in read_weights(folder / "model.safetensors").items()})
    test = data.load("demo", "test").take(10)
    with torch.no_grad():
        right = (model(test.images / 255).argmax(1) == test.labels).float().mean()
    found = read_records(out / "rows")["cifar10-vgg16"]["judged"]["pgd"]["columns"]["natural"]["percent"]
    assert found == pytest.approx(100 * float(right))


def test_records_that_were_carried_home_without_networks_are_enough(whole, tmp_path):
    """What is still needed of the networks is made again; what is done stays done."""
    out = tmp_path / "out"
    reproduce(["table6"], out, scale_name="smoke")
    for folder in (out / "steps").glob("compressed-*/model"):
        shutil.rmtree(folder)
    before = {path: path.stat().st_mtime_ns for path in (out / "steps").glob("*/record.json")}
    reproduce(["table6"], out, scale_name="smoke", resume=True)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (judged,) = (out / "steps").glob("judged-*paper-size-30.union-*")
    shutil.rmtree(judged)
    made = reproduce(["table6"], out, scale_name="smoke", resume=True)
    assert made.failed == {}
    assert (judged / "record.json").exists()
    assert len(list((out / "steps").glob("compressed-*/model"))) == 1
