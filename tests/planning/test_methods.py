"""The allocation over layers against all combinations."""

import itertools

import numpy as np
import pytest

from gdws.planning.methods import allocate_layers


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
