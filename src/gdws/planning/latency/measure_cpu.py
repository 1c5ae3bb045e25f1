"""Times on a CPU: whole networks, node by node, by the engine that will run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from gdws.calibration.statistics import Statistics
from gdws.core.errors import GdwsError
from gdws.core.files import scratch_folder
from gdws.core.inputs import Inputs, place, repeat_first
from gdws.core.progress import track
from gdws.core.sites import Site
from gdws.deploy.benchmark import interval
from gdws.deploy.engines import installed_engines, open_session, prepare_for_engine
from gdws.deploy.fx.pack_weights import PackedModel
from gdws.deploy.interface import Outputs
from gdws.deploy.runtimes import NodeTime, OnnxRuntime, OpenVino
from gdws.deploy.tracing import trace_model
from gdws.planning.choose import Choice
from gdws.planning.knapsack import Floats
from gdws.planning.latency.node_times import layer_seconds, owners
from gdws.planning.latency.table import Latencies, LatencyTable
from gdws.planning.latency.target import Target, device_name, vector_width
from gdws.planning.latency.variant_files import VariantFiles
from gdws.planning.latency.variants import SHARES, TURNS, WARMUP, reconcile, variants_to_time, with_noise_weights
from gdws.structures.base import Structure

KNOWN, CHECKED = 0.03, (WARMUP + TURNS // 4, WARMUP + TURNS // 2)
"""The width of the 95 % intervals, as a share, at which the rest of the turns is saved, and the turns after which that is
looked at."""


def measure_on_cpu(
    model: nn.Module, sites: Sequence[Site], structures: Sequence[Structure], statistics: Statistics, target: Target
) -> LatencyTable:
    grid = variants_to_time(sites, structures, statistics, SHARES, vector_width(target))
    example = repeat_first(statistics.images, target.batch)
    calibration = place(statistics.images[:25], "cpu", torch.float32) if target.precision == "int8" else None
    candidates = installed_engines("cpu", target.precision)
    wanted = [engine.name for engine in candidates]
    engines = [engine.name for engine in candidates if engine.times_layers and target.engine in ("auto", engine.name)]
    if not engines:
        raise GdwsError(f"the engine {target.engine} is not installed: expected it (pip install 'gdws[engines]')")
    assert target.threads is not None
    plain: dict[tuple[str, int], Callable[[Inputs], Outputs]] = {}
    profiled: dict[tuple[str, int], OnnxRuntime | OpenVino] = {}
    names = []
    files = VariantFiles(model, example)
    with scratch_folder() as folder:
        file = folder / "model.onnx"
        for index, chosen in track(list(enumerate([{}, *grid])), "building networks to time"):
            network = with_noise_weights(model, chosen)
            names.append(owners(files.write(network, file).graph))
            for engine in wanted if index == 0 else engines:
                if engine == "torch":
                    plain[engine, index] = PackedModel(trace_model(network, example), target.threads)
                    continue
                ready = prepare_for_engine(engine, file, calibration, folder)
                plain[engine, index] = open_session(engine, ready, example, target.threads)
                if engine in engines:
                    profiled[engine, index] = open_session(engine, ready, example, target.threads, profiled=True)
    totals: dict[tuple[str, int], list[float]] = {key: [] for key in plain}
    for turn in track(range(WARMUP + TURNS), "timing"):
        for watched in profiled.values():
            watched(example), watched(example)  # the first finds the caches full of another network's weights
        for key, run in plain.items():
            run(example)
            start = time.perf_counter()
            run(example)
            if turn >= WARMUP:
                totals[key].append(time.perf_counter() - start)
        if turn + 1 in CHECKED and all(_is_known(totals[engine, 0], taken) for (engine, _), taken in totals.items()):
            break
    seconds = {engine: float(np.quantile(taken, 0.25)) for (engine, index), taken in totals.items() if index == 0}
    fastest = min(seconds, key=lambda name: seconds[name])
    tables = {}
    for engine in engines:
        own = range(1 + len(grid))
        passes = [profiled[engine, index].passes()[2 * WARMUP + 1 :: 2] for index in own]
        whole = np.array([totals[engine, index] for index in own])
        total, layers = seconds[engine], [site.name for site in sites]
        tables[engine] = latencies_of_passes(total, whole, passes, names, grid, layers, vector_width(target))
    return LatencyTable(device_name(), target, (fastest, seconds[fastest]), tables)


def _is_known(dense: list[float], taken: list[float]) -> bool:
    """Whether the share of the dense network's time that a network takes, in the same turns, is known to KNOWN."""
    low, high = interval([time / base for time, base in zip(taken, dense, strict=True)])
    return high - low <= KNOWN * low


def latencies_of_passes(
    total: float,
    whole: Floats,
    passes: list[list[list[NodeTime]]],
    names: Sequence[dict[str, set[str]]],
    grid: Sequence[Mapping[str, Choice]],
    layers: Sequence[str],
    filled: int,
) -> Latencies:
    """From the seconds of whole passes (networks, turns) and profiles [network][turn][node], the dense network first.

    A machine that others use too is slow for seconds and then fast again. Within a turn it is much the same, so every time
    counts as a fraction of what the dense network took in that turn; the median over the turns is given in seconds again.
    """
    dense_pass = np.array([sum(node.seconds for node in nodes) for nodes in passes[0]])

    def typical(taken: list[float]) -> float:
        return total * float(np.median(np.array(taken) / dense_pass))

    found = [
        {layer: typical(taken) for layer, taken in layer_seconds(own, owners, layers).items()}
        for own, owners in zip(passes, names, strict=True)
    ]
    return reconcile(total, [float(np.median(taken / whole[0])) for taken in whole[1:]], found, grid, filled)
