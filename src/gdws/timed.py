"""Choose under a budget of time: allocate by a timetable, run the network so planned, and correct what the timetable missed.

Times do not depend on weights, so a plan is run before anything is fitted: with noise for weights, taking turns with the dense
network in its fastest engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from gdws.bench import bench
from gdws.budgets import Latency, Speedup
from gdws.choices import Choice, least_loss
from gdws.contract import placement
from gdws.engines import Compiled, compile
from gdws.errors import GdwsError
from gdws.latency import Latencies, Target, Timetable, mock
from gdws.plans import Measured
from gdws.progress import note, track
from gdws.recorded import Recorded, recorded
from gdws.statistics import Statistics
from gdws.structures import Structure
from gdws.surgery import Site

ROUNDS, CLOSE = 3, 0.02
"""Corrections at most, and how near below the budget is near enough."""

Tried = tuple[dict[str, Choice], Measured]
"""A plan, and what it took."""


def nearest(tried: Iterable[Tried], budget: Latency | Speedup) -> Tried:
    """The best answer: within the budget before beyond it, then the one whose measured latency is nearest to it."""
    share = budget.share
    return min(tried, key=lambda each: (each[1].latency > share, abs(each[1].latency - share)))


def rounds(
    model: nn.Module,
    sites: list[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    budget: Latency | Speedup,
    table: Timetable,
) -> Iterator[Tried]:
    """Plans of least predicted loss under a Latency or Speedup budget, until one is near enough.

    Each is measured, and the next made with what it took.
    """
    dense_engine, dense_seconds = table.reference
    limit = budget.share * dense_seconds
    example = statistics.images[:1].float().repeat(table.target.batch, 1, 1, 1)
    calibration = statistics.images[:25].float()
    device = placement(model)[0] if table.target.engine == "cuda" else torch.device("cpu")
    threads, precision = table.target.threads or torch.get_num_threads(), table.target.precision

    least = {engine: _least(sites, structures, statistics, latencies) for engine, latencies in table.engines.items()}
    factors = dict.fromkeys(table.engines, 1.0)  # measured / as the timetable has it
    dense = ready(mock(model, {}).to(device), dense_engine, table.target, example, calibration)
    for tried in track(range(ROUNDS), f"planning {budget}"):
        found = {
            engine: least_loss(sites, structures, statistics, latencies, limit / factors[engine] - latencies.rest)
            for engine, latencies in table.engines.items()
            if least[engine] * factors[engine] <= limit
        }
        if not found and tried:
            return
        if not found:
            engine = min(least, key=lambda name: least[name])
            outside = table.engines[engine].rest / least[engine]
            raise GdwsError(
                f"{budget} is out of reach: expected at most {dense_seconds / least[engine]:.2f}x, with all layers smallest, "
                f"in {engine} {precision} ({outside:.0%} of that time is outside the layers)"
            )
        engine = min(found, key=lambda name: sum(choice.weight for choice in found[name].values()))
        expected = _time_of(found[engine], sites, table.engines[engine]) / dense_seconds
        planned = ready(mock(model, found[engine]).to(device), engine, table.target, example, calibration)
        timings = bench({"dense": dense, "plan": planned}, example, 10, 60)
        taken, latency = timings["dense"].quartile, timings["plan"].quartile / timings["dense"].quartile
        note(f"{1 / latency:.2f}x in {engine}")
        where = table.device, engine, precision, threads, table.target.batch
        yield found[engine], Measured(*where, dense_engine, taken, factors[engine] * expected, latency)
        factors[engine] = latency / expected
        if budget.share * (1 - CLOSE) <= latency <= budget.share:
            return


def ready(network: nn.Module, engine: str, target: Target, example: Tensor, calibration: Tensor) -> Compiled | Recorded:
    """A network as it will run in an engine of the target. calibration: for int8."""
    if engine == "cuda":
        return recorded(network, example, target.precision)
    return compile(
        network, engine, example=example, threads=target.threads, precision=target.precision, calibration=calibration
    )


def _least(sites: list[Site], structures: Sequence[Structure], statistics: Statistics, latencies: Latencies) -> float:
    """The time of the network with every layer at its cheapest."""
    total = latencies.rest
    for site in sites:
        prices = [latencies.dense(site)]
        for structure in structures:
            if structure.fits(site.conv):
                smallest = structure.sizes(statistics.curves[site.name][structure.name][0])[0]
                prices.append(latencies.of(structure, site, smallest))
        total += min(prices)
    return total


def _time_of(choices: dict[str, Choice], sites: list[Site], latencies: Latencies) -> float:
    """The time of a planned network, as the timetable has it."""
    layers = [(site, choices.get(site.name)) for site in sites]
    prices = [latencies.dense(site) if made is None else latencies.of(made.structure, site, made.size) for site, made in layers]
    return latencies.rest + sum(prices)
