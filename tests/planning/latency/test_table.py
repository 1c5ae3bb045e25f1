"""Prices between the sizes that were timed."""

import pytest

from gdws.planning.latency.table import Latencies
from gdws.structures import STRUCTURES


def test_times_between_sizes_are_linear_and_vectors_are_filled(residual):
    _, (site, *_), *_ = residual
    gdws_structure = STRUCTURES["gdws"]
    points = {site.name: {"gdws": [(16, 2.0), (32, 4.0), (64, 6.0)]}}
    found = Latencies(100.0, {site.name: 10.0}, points, 8)
    assert found.rest == 90
    wanted = {0: 2, 8: 2, 16: 2, 17: 3, 24: 3, 32: 4, 48: 5, 64: 6, 80: 7, 96: 8}
    assert {size: found.of(gdws_structure, site, size) for size in wanted} == pytest.approx(wanted)
