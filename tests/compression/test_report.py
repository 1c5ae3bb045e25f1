"""What is said at the end of a compression: measured, of whole networks, and loud where it went wrong."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers import Net, flops
from torch import nn

import gdws
from gdws.compression import report as report_module
from gdws.core.errors import GdwsError
from gdws.planning.cost import Cost
from gdws.planning.plan import Measured, attach_plan, plan_of


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    network, images = Net().eval(), torch.rand(24, 3, 12, 12)
    return network, gdws.compress(network, [images], gdws.Macs(0.4), gdws.Calibrated(attack=None)), images


def test_both_networks_are_timed_as_they_would_run(networks, monkeypatch):
    network, fast, images = networks
    monkeypatch.setattr(report_module, "REPEATS", 3)
    network.train()
    found = gdws.report(network, fast, images[:2], threads=1)
    assert network.training
    network.eval()
    assert {found.speed.engine, found.speed.dense_engine} <= {"onnxruntime", "openvino", "torch"}
    assert (found.speed.batch, found.speed.threads, found.speed.precision) == (2, 1, "float32")
    assert found.speed.speedup == found.speed.dense_seconds / found.speed.seconds
    assert (found.before.macs, found.after.macs) == (flops(network, images), flops(fast, images))
    lines = str(found).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["speed", "cost", "MACs", "size"]
    assert lines[0].startswith(f"speed: {found.speed.speedup:.2f}x dense")
    assert "not known: give held-out images" in lines[1]
    assert f"{found.after.macs / found.before.macs:.2f} of the whole network" in lines[2]


@pytest.mark.parametrize("change", [lambda x: 255 * x, lambda x: x - 0.5])
def test_a_classifier_is_timed_on_images_of_any_range(networks, monkeypatch, change):
    """Bug: it was not timed, since engines take images in [0, 1], although it may be compressed with others."""
    network, fast, images = networks
    monkeypatch.setattr(report_module, "ENGINE", "eager")
    monkeypatch.setattr(report_module, "REPEATS", 1)
    assert gdws.report(network, fast, change(images[:2]), threads=1).speed.batch == 2


def test_images_that_are_given_tell_the_cost(networks, monkeypatch):
    network, fast, images = networks
    monkeypatch.setattr(report_module, "ENGINE", "eager")
    unseen = torch.rand(30, 3, 12, 12)
    found = gdws.report(network, fast, images[:1], check=[unseen])
    agreed = gdws.agreement(network, fast, unseen)
    assert found.record()["fidelity"]["agreement"] == found.fidelity.agreement == agreed
    assert f"{agreed:.1f} % of 30 held-out images are classified as by the original (95 % interval" in str(found)
    labelled = gdws.report(network, fast, images[:1], check=[(unseen, network(unseen).argmax(1))])
    assert "accuracy 100.0 % before" in str(labelled)
    assert not labelled.fidelity.warning  # held out: there is nothing to know by heart
    with pytest.raises(GdwsError, match="calibrated on 24 of these images"):
        gdws.report(network, fast, images[:1], check=[images])


def test_a_plan_for_a_speed_brings_its_own_time(networks, monkeypatch):
    network, fast, images = networks
    monkeypatch.setattr(report_module, "compile", None)
    measured = Measured(
        device="here", engine="onnxruntime", precision="int8", threads=1, batch=1, dense_engine="openvino", dense_seconds=2.0,
        predicted=0.4, latency=0.5,
    )  # fmt: skip
    planned = copy.deepcopy(fast)
    attach_plan(planned, replace(plan_of(fast), budget=gdws.Speedup(2), measured=measured))
    found = gdws.report(network, planned, images[:1])
    assert (found.speed.speedup, found.speed.seconds, found.speed.precision) == (2, 1, "int8")


def test_a_network_that_cannot_be_timed_says_why(networks):
    network, fast, images = networks
    found = gdws.report(network, fast, images[:1], precision="float16")
    assert found.speed is None
    assert "speed: not timed (no engine that runs this in float16 on cpu is installed" in str(found)
    assert found.record()["untimed"] == found.untimed

    class Branching(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x) if float(x.sum()) > 0 else -self.model(x)

    found = gdws.report(Branching(network), fast, images[:1])
    assert "not timed (the model cannot be traced" in str(found)


@pytest.mark.parametrize(("seconds", "slower"), [(0.5, False), (1.01, False), (1.06, True)])
def test_a_network_slower_than_dense_says_so(seconds, slower):
    """Bug: a denoiser with half of the MACs ran at 0.94x, and nobody was told."""
    cost = Cost(10, 10, 1.0, 10)
    speed = report_module.Speed(
        device="here", precision="float32", threads=2, batch=1, dense_engine="torch", dense_seconds=1.0, engine="torch",
        seconds=seconds,
    )  # fmt: skip
    found = gdws.compression.report.Report(before=cost, after=cost, fidelity=None, speed=speed)
    assert [("0.94x: this is slower than dense; try --speedup 1.5" in warning) for warning in found.warnings] == [True] * slower


def test_what_a_pruning_left_is_said():
    dense, zeros, after = Cost(10, 2_000_000, 8.0, 2_000_000), Cost(10, 2_000_000, 0.08, 20_000), Cost(5, 900_000, 0.1, 25_000)
    kind = gdws.compression.report.Report
    assert "pruned" not in str(kind(before=dense, after=after, fidelity=None, speed=None))
    told = str(kind(before=zeros, after=after, fidelity=None, speed=None)).splitlines()
    assert told[3] == "size: 0.08 MB before, 0.10 MB after: 1.25 of the whole network"
    assert told[4].startswith("pruned before: 1.0 % of its 2.00 M parameters are not zero")
    both = kind(before=zeros, after=after, fidelity=None, speed=None, smaller=7)
    assert both.pruned.endswith(", 7 of its layers were made smaller")
