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
from gdws.planning.knapsack import Floats
from gdws.planning.latency.node_times import layer_seconds, owners
from gdws.planning.latency.table import Latencies, LatencyTable
from gdws.planning.latency.target import Target, device_name, vector_width
from gdws.planning.latency.variant_files import VariantFiles
from gdws.planning.latency.variants import SHARES, TURNS, WARMUP, reconcile, variants_to_time, with_noise_weights
from gdws.planning.methods import Choice
from gdws.structures.base import Structure

KNOWN, FEWEST, EVERY = 0.03, TURNS // 4, 5
"""The width of the 95 % interval, as a share, at which a network leaves the rest of the turns to others; the timed turns after
which that is looked at first, and those between one look and the next."""

Network = tuple[str, int]
"""An engine, and the number of a network in it: 0 is the dense one."""


def measure_on_cpu(
    model: nn.Module,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    target: Target,
    files: VariantFiles,
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
    plain: dict[Network, Callable[[Inputs], Outputs]] = {}
    profiled: dict[Network, OnnxRuntime | OpenVino] = {}
    names = []
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
    totals: dict[Network, list[float]] = {key: [] for key in plain}
    left = list(plain)
    for turn in track(range(WARMUP + TURNS), "timing"):
        for key in left:
            if key in profiled:
                # The first of two finds the caches full of another network's weights.
                profiled[key](example), profiled[key](example)
        for key in left:
            plain[key](example)
            start = time.perf_counter()
            plain[key](example)
            if turn >= WARMUP:
                totals[key].append(time.perf_counter() - start)
        timed = turn + 1 - WARMUP
        if timed >= FEWEST and timed % EVERY == 0:
            left = _unknown(left, totals)
            if not left:
                break
    seconds = {engine: float(np.quantile(taken, 0.25)) for (engine, index), taken in totals.items() if index == 0}
    fastest = min(seconds, key=lambda name: seconds[name])
    tables = {}
    for engine in engines:
        own = range(1 + len(grid))
        passes = [profiled[engine, index].passes()[2 * WARMUP + 1 :: 2] for index in own]
        whole = [np.array(totals[engine, index]) for index in own]
        total, layers = seconds[engine], [site.name for site in sites]
        tables[engine] = latencies_of_passes(total, whole, passes, names, grid, layers, vector_width(target))
    return LatencyTable(device_name(), target, (fastest, seconds[fastest]), tables)


def _unknown(left: Sequence[Network], totals: Mapping[Network, list[float]]) -> list[Network]:
    """The networks whose share of the dense one's time is not known to KNOWN, and the dense one of each of their engines."""

    def is_known(key: Network) -> bool:
        engine, _ = key
        low, high = interval([time / base for time, base in zip(totals[key], totals[engine, 0], strict=True)])
        return high - low <= KNOWN * low

    unknown = [key for key in left if not is_known(key)]
    engines = {engine for engine, _ in unknown}
    return [key for key in left if key in unknown or (key[1] == 0 and key[0] in engines)]


def latencies_of_passes(
    total: float,
    whole: Sequence[Floats],
    passes: list[list[list[NodeTime]]],
    names: Sequence[dict[str, set[str]]],
    grid: Sequence[Mapping[str, Choice]],
    layers: Sequence[str],
    filled: int,
) -> Latencies:
    """From the seconds of whole passes [network][turn] and profiles [network][turn][node], the dense network first.

    Other networks may have fewer turns than the dense one, the first ones.

    A machine that others use too is slow for seconds and then fast again. Within a turn it is much the same, so every time
    counts as a fraction of what the dense network took in that turn; the median over the turns is given in seconds again.
    """
    dense_pass = np.array([sum(node.seconds for node in nodes) for nodes in passes[0]])

    def typical(taken: list[float]) -> float:
        return total * float(np.median(np.array(taken) / dense_pass[: len(taken)]))

    found = [
        {layer: typical(taken) for layer, taken in layer_seconds(own, owned, layers).items()}
        for own, owned in zip(passes, names, strict=True)
    ]
    return reconcile(total, [float(np.median(taken / whole[0][: len(taken)])) for taken in whole[1:]], found, grid, filled)
