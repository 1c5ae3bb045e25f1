"""Times on a GPU: networks as CUDA graphs, and layers that are repeated within one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gdws.calibration.statistics import Statistics
from gdws.core.errors import GdwsError
from gdws.core.execution import placement
from gdws.core.inputs import repeat_first
from gdws.core.progress import track
from gdws.core.sites import Site
from gdws.deploy.benchmark import bench
from gdws.deploy.graphed_model import CALLS, TYPES, GraphedModel, RepeatedLayer, check_graphed, graph_model
from gdws.planning.latency.table import LatencyTable
from gdws.planning.latency.target import Target, device_name, vector_width
from gdws.planning.latency.variants import LARGE, SHARES, SLOWER, TURNS, WARMUP, reconcile, variants_to_time, with_noise_weights
from gdws.structures.base import Structure


def measure_on_gpu(
    model: nn.Module, sites: Sequence[Site], structures: Sequence[Structure], statistics: Statistics, target: Target
) -> LatencyTable:
    """Networks as CUDA graphs, and layers that are repeated within one."""
    device, _ = placement(model)
    grid = variants_to_time(sites, structures, statistics, (*SHARES, LARGE), vector_width(target))
    example = repeat_first(statistics.images, target.batch)
    if not isinstance(example, Tensor):
        raise GdwsError("the target is cuda and the network has several inputs: expected one tensor, or an engine of the CPU")
    dense = graph_model(with_noise_weights(model, {}).to(device), example, target.precision)
    layout = dense.layout
    random, inputs = torch.Generator(device).manual_seed(0), dict[tuple[int, ...], Tensor]()
    runs: dict[Hashable, GraphedModel | RepeatedLayer] = {}
    owned: list[dict[str, Hashable]] = []
    for index, chosen in track(list(enumerate([{}, *grid])), "building networks to time"):
        network = (
            dense if index == 0 else GraphedModel(with_noise_weights(model, chosen).to(device, TYPES[target.precision]), layout)
        )
        runs[index] = network
        owned.append({})
        for site in sites if index == 0 else (site for site in sites if site.name in chosen):
            choice = chosen.get(site.name)
            alike = (str(site.conv), site.maps, choice and (choice.structure.name, choice.ranks))
            owned[-1][site.name] = alike
            if alike not in runs:
                shapes = [(target.batch, site.conv.in_channels, height, width) for height, width, _, _ in site.maps]
                for shape in set(shapes) - set(inputs):
                    values = torch.rand(shape, device=device, generator=random).to(TYPES[target.precision])
                    inputs[shape] = values.to(memory_format=layout)
                runs[alike] = RepeatedLayer(network.model.get_submodule(site.name), [inputs[shape] for shape in shapes])
    names = {str(number): key for number, key in enumerate(runs)}
    timings = bench({name: runs[key] for name, key in names.items()}, example, WARMUP, TURNS)
    check_graphed(runs.values())
    seconds = {key: timings[name].quartile for name, key in names.items()}
    totals = [seconds[index] for index in range(1 + len(grid))]
    found = _in_place(totals, [{layer: seconds[alike] / CALLS for layer, alike in own.items()} for own in owned])
    total, shares = totals[0], [taken / totals[0] for taken in totals[1:]]
    latencies = reconcile(total, shares, found, grid, vector_width(target))
    return LatencyTable(device_name(device), target, ("cuda", total), {"cuda": latencies})


def _in_place(totals: Sequence[float], alone: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The seconds of layers in their networks, the dense one first, from those of the networks and of the layers alone.

    alone: all layers of the dense network, and those that were replaced in each of the others. In a network a layer may find
    other things in the caches than alone. With one factor for dense layers, another for replaced ones, and what is not in the
    layers the same in all networks, T = rest + a dense + b replaced: a and b by least squares of relative errors.
    """
    dense = alone[0]
    rows = [[1.0, sum(dense.values()), 0.0]]
    for times in alone[1:]:
        rows.append([1.0, sum(taken for layer, taken in dense.items() if layer not in times), sum(times.values())])
    _, *factors = np.linalg.lstsq(np.array(rows) / np.array(totals)[:, None], np.ones(len(totals)), rcond=None)[0]
    first, others = np.clip(factors, 1 / SLOWER, SLOWER)
    first = min(first, totals[0] / sum(dense.values()))
    scaled = [(times, first if times is dense else others) for times in alone]
    return [{layer: float(factor * taken) for layer, taken in times.items()} for times, factor in scaled]
