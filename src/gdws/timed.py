"""Choose under a budget of time: allocate by a timetable, run the network so planned, and correct what the timetable missed.

Times do not depend on weights, so a plan is run before anything is fitted: with noise for weights, taking turns with the dense
network in its fastest engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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

ROUNDS, CLOSE = 6, 0.02
"""Plans that are run at most, and how near below the budget is near enough."""

Tried = tuple[dict[str, Choice], Measured]
"""A plan, and what it took."""


@dataclass(frozen=True)
class Line:
    """What a plan takes = start + slope * what the timetable has for it, both as fractions of the dense network's time."""

    start: float = 0.0
    slope: float = 1.0

    @classmethod
    def through(cls, tried: Sequence[tuple[float, float]], share: float) -> Line:
        """From (timetable's, measured) of earlier plans: through the nearest on both sides of `share`, or the two nearest, or
        one and zero.

        One factor would do if the timetable were wrong by one factor. Where single layers are priced wrongly, plans on both
        sides close in on what is asked for all the same.
        """
        nearest = sorted(tried, key=lambda pair: abs(pair[1] - share))
        fast = [pair for pair in nearest if pair[1] <= share]
        slow = [pair for pair in nearest if pair[1] > share]
        for pairs in ([*fast[:1], *slow[:1]], nearest[:2]):
            (low, quick), (high, long) = min(pairs, default=(0, 0)), max(pairs, default=(0, 0))
            if low < high and quick < long:
                slope = (long - quick) / (high - low)
                return cls(quick - slope * low, slope)
        return cls(0.0, nearest[0][1] / nearest[0][0]) if nearest else cls()

    def __call__(self, table: float) -> float:
        return self.start + self.slope * table

    def inverse(self, taken: float) -> float:
        return (taken - self.start) / self.slope


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

    Each is measured, and the next made with what all took. A budget that the timetable holds for out of reach is refused only
    after the plan that it holds for the fastest ran, and was too slow.
    """
    dense_engine, dense_seconds = table.reference
    share, aim = budget.share, budget.share * (1 - CLOSE / 2)
    example = statistics.images[:1].float().repeat(table.target.batch, 1, 1, 1)
    calibration = statistics.images[:25].float()
    device = placement(model)[0] if table.target.engine == "cuda" else torch.device("cpu")
    threads, precision = table.target.threads or torch.get_num_threads(), table.target.precision

    least = {name: _least(sites, structures, statistics, own) / dense_seconds for name, own in table.engines.items()}
    ran: dict[str, list[tuple[float, float]]] = {engine: [] for engine in table.engines}
    earlier: list[tuple[str, dict[str, Choice]]] = []
    dense = ready(mock(model, {}).to(device), dense_engine, table.target, example, calibration)
    for _ in track(range(ROUNDS), f"planning {budget}"):
        lines = {engine: Line.through(pairs, share) for engine, pairs in ran.items()}
        within = [engine for engine in least if lines[engine](least[engine]) <= aim]
        fastest = min(least, key=lambda engine: lines[engine](least[engine]))
        found = {}
        for engine in within or [fastest]:
            wanted = max(lines[engine].inverse(aim), least[engine] * (1 + 1e-9)) * dense_seconds
            latencies = table.engines[engine]
            found[engine] = least_loss(sites, structures, statistics, latencies, wanted - latencies.rest)
        engine = min(found, key=lambda name: sum(choice.weight for choice in found[name].values()))
        if (engine, found[engine]) in earlier:
            if any(latency <= share for pairs in ran.values() for _, latency in pairs):
                return
            aim *= 1 - CLOSE  # not fast enough, and the line leads back to it
            continue
        earlier.append((engine, found[engine]))
        expected = _time_of(found[engine], sites, table.engines[engine]) / dense_seconds
        planned = ready(mock(model, found[engine]).to(device), engine, table.target, example, calibration)
        timings = bench({"dense": dense, "plan": planned}, example, 10, 60)
        taken, latency = timings["dense"].quartile, timings["plan"].quartile / timings["dense"].quartile
        if not within and latency > share and len(earlier) == 1:
            outside = table.engines[engine].rest / dense_seconds / least[engine]
            raise GdwsError(
                f"{budget} is out of reach: expected at most {1 / latency:.2f}x, as the network with all layers smallest "
                f"ran in {engine} {precision} (by the timetable {outside:.0%} of its time is outside the layers)"
            )
        predicted = lines[engine](expected)
        note(f"{1 / latency:.2f}x in {engine}, planned for {1 / predicted:.2f}x")
        where = table.device, engine, precision, threads, table.target.batch
        yield found[engine], Measured(*where, dense_engine, taken, predicted, latency)
        ran[engine].append((expected, latency))
        if share * (1 - CLOSE) <= latency <= share:
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
