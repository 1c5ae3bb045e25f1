"""The networks that are timed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gdws.planning.latency.variants import sizes_to_time, with_noise_weights
from gdws.planning.methods import Choice
from gdws.structures import STRUCTURES


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


@pytest.mark.parametrize(
    ("sizes", "wanted", "found"),
    [
        (range(193), [12, 38, 96], [16, 32, 96]),
        (range(145), [2, 7, 18], [16, 32, 48]),  # bug: 16 three times, and all other prices were guesses
        (range(25), [2, 7, 18], [16, 24]),
        (range(12), [1, 2, 5], [11]),
        ([8, 24, 40], [5, 20, 30], [8, 24, 40]),
        ([0], [1, 2], []),
    ],
)
def test_sizes_that_are_timed_take_different_numbers_of_vectors(sizes, wanted, found):
    assert sizes_to_time(list(sizes), wanted, 16) == found


@given(
    st.sets(st.integers(0, 300), min_size=1), st.lists(st.floats(0.1, 400), min_size=1, max_size=4), st.sampled_from([8, 16])
)
def test_as_many_sizes_are_timed_as_there_are_or_are_wanted(sizes, wanted, filled):
    found = sizes_to_time(sorted(sizes), sorted(wanted), filled)
    vectors = [-(-size // filled) for size in found]
    assert vectors == sorted(set(vectors))
    assert set(found) <= sizes
    assert bool(found) == bool(sizes - {0})
    assert len(found) <= len(wanted)
