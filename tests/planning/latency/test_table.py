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


def test_a_single_size_says_that_more_channels_take_longer(residual):
    """Bug: any size cost what the only one that was timed took: of 44 channels a third of the truth, in a detector."""
    _, (site, *_), *_ = residual
    found = Latencies(100.0, {site.name: 10.0}, {site.name: {"gdws": [(16, 2.0)]}}, 16)
    wanted = {1: 2, 16: 2, 17: 4, 32: 4, 44: 6}
    assert {size: found.of(STRUCTURES["gdws"], site, size) for size in wanted} == pytest.approx(wanted)


def test_two_sizes_of_as_many_vectors_are_one(residual):
    _, (site, *_), *_ = residual
    found = Latencies(100.0, {site.name: 10.0}, {site.name: {"gdws": [(20, 2.0), (24, 3.0)]}}, 16)
    assert [found.of(STRUCTURES["gdws"], site, size) for size in (8, 32, 48)] == pytest.approx([3, 3, 4.5])


def test_the_last_vector_need_not_be_full(residual):
    _, (site, *_), *_ = residual
    found = Latencies(100.0, {site.name: 10.0}, {site.name: {"gdws": [(16, 2.0), (24, 3.0)]}}, 16)
    assert [found.of(STRUCTURES["gdws"], site, size) for size in (16, 17, 24)] == pytest.approx([2, 3, 3])
