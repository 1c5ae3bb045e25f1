"""The networks that are timed."""

import math

import torch

from gdws.planning.latency.variants import with_noise_weights
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
