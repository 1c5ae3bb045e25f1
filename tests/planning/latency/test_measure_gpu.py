"""What a GPU's timetable would be, on the CPU; and layers in their networks from layers alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdws.planning.latency import measure_gpu
from gdws.planning.latency.table import LatencyTable


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
    found = measure_gpu._in_place(totals, alone)
    for times, own, factor in zip(alone, found, [dense] + 8 * [made], strict=True):
        assert own == pytest.approx({name: factor * taken for name, taken in times.items()}, rel=1e-6)
    impossible = measure_gpu._in_place([sum(alone[0].values()) / 3, *totals[1:]], alone)
    assert sum(impossible[0].values()) <= sum(alone[0].values()) / 3 * (1 + 1e-9)  # there is never less than no rest
