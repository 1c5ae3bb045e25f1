"""A naturally trained network that nobody of this project made, with default settings: the example of pyautoattack."""

import pytest

import gdws

pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")


def test_an_ordinary_network_is_calibrated_clean_and_softened():
    """Bug: its images were attacked, and decisions that it is sure of told nothing, at the cost of points of accuracy."""
    from natural_network import natural_resnet18

    model, test = natural_resnet18(), gdws.data.load("demo", "test").take(100, 25)
    method = gdws.Calibrated(structures="vertical", exclude=["layer[34]*"])  # the wide layers take longest
    statistics = gdws.calibrate(model, gdws.data.load("demo", "train").take(24), method)
    assert statistics.attack is None
    assert 2 < float(statistics.objective.tensors()["temperature"]) < 8
    dense = gdws.evaluate(model, test).natural_percent
    assert dense > 90
    fast = gdws.apply(model, gdws.plan(model, statistics, gdws.Macs(0.5)), statistics)
    assert gdws.evaluate(fast, test).natural_percent >= dense - 4
