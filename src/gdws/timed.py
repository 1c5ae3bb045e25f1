"""Choose under a budget of time: allocate by a timetable, run the network so planned, and correct what the timetable missed.

Times do not depend on weights, so a plan is run before anything is fitted: with noise for weights, taking turns with the dense
network in its fastest engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gdws.bench import bench
from gdws.budgets import Budget, Speedup
from gdws.choices import Choice, least_loss
from gdws.engines import Compiled, compile
from gdws.errors import GdwsError
from gdws.latency import Latencies, Timetable, mock
from gdws.plans import Measured
from gdws.progress import note, track
from gdws.statistics import Statistics
from gdws.structures import Structure
from gdws.surgery import Site

ROUNDS, CLOSE = 3, 0.02
"""Corrections at most, and how near below the budget is near enough."""


def within_time(
    model: nn.Module,
    sites: list[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    budget: Budget,
    table: Timetable,
) -> tuple[dict[str, Choice], Measured]:
    """The least predicted loss within a Latency or Speedup budget, measured; and what was measured."""
    share = 1 / budget.value if isinstance(budget, Speedup) else budget.value
    dense_engine, dense_seconds = table.reference
    limit = share * dense_seconds
    example = statistics.images[:1].float().repeat(table.target.batch, 1, 1, 1)
    calibration = statistics.images[:25].float()
    threads, precision = table.target.threads, table.target.precision

    def compiled(network: nn.Module, engine: str) -> Compiled:
        return compile(network, engine, example=example, threads=threads, precision=precision, calibration=calibration)

    def time_of(choices: dict[str, Choice], latencies: Latencies) -> float:
        layers = [(site, choices.get(site.name)) for site in sites]
        prices = [
            latencies.dense(site) if made is None else latencies.of(made.structure, site, made.size) for site, made in layers
        ]
        return latencies.rest + sum(prices)

    least = {engine: _least(sites, structures, statistics, latencies) for engine, latencies in table.engines.items()}
    dense = compiled(mock(model, {}), dense_engine)
    factors = dict.fromkeys(table.engines, 1.0)  # measured / predicted
    best: tuple[dict[str, Choice], Measured] | None = None
    for _ in track(range(ROUNDS), f"planning {budget}"):
        found = {
            engine: least_loss(sites, structures, statistics, latencies, limit / factors[engine] - latencies.rest)
            for engine, latencies in table.engines.items()
            if least[engine] <= limit / factors[engine]
        }
        if not found:
            break
        engine = min(found, key=lambda name: sum(choice.weight for choice in found[name].values()))
        predicted = time_of(found[engine], table.engines[engine]) / dense_seconds
        timings = bench({"dense": dense, "plan": compiled(mock(model, found[engine]), engine)}, example, 10, 60)
        taken, latency = timings["dense"].quartile, timings["plan"].quartile / timings["dense"].quartile
        note(f"{1 / latency:.2f}x in {engine}")
        factors[engine] = latency / predicted
        if best is None or _nearer(latency, best[1].latency, share):
            where = table.device, engine, precision, threads or 1, table.target.batch
            best = found[engine], Measured(*where, dense_engine, taken, predicted, latency)
        if share * (1 - CLOSE) <= latency <= share:
            break
    if best is None:
        engine = min(least, key=lambda name: least[name])
        outside = table.engines[engine].rest / least[engine]
        raise GdwsError(
            f"{budget} is out of reach: expected at most {dense_seconds / least[engine]:.2f}x, with all layers smallest, "
            f"in {engine} {precision} ({outside:.0%} of that time is outside the layers)"
        )
    return best


def _nearer(latency: float, other: float, share: float) -> bool:
    """Whether a measured latency is the better answer: within the budget before beyond it, then the one nearest to it."""
    return (latency > share, abs(latency - share)) < (other > share, abs(other - share))


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
