"""Choose under a latency budget: allocate by a latency table, run that network, and correct what the table missed.

Times do not depend on weights, so a plan is run before anything is fitted: with noise for weights, taking turns with the dense
network in its fastest engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gdws.calibration.statistics import Statistics
from gdws.core.errors import OutOfReach
from gdws.core.execution import placement
from gdws.core.files import scratch_folder
from gdws.core.inputs import Inputs, place, repeat_first
from gdws.core.progress import note, track
from gdws.core.sites import Site
from gdws.deploy.benchmark import bench
from gdws.deploy.engines import ENGINES, Compiled, compile
from gdws.planning.budgets import Latency, Speedup
from gdws.planning.latency.table import Latencies, LatencyTable
from gdws.planning.latency.target import Target
from gdws.planning.latency.variant_files import VariantFiles
from gdws.planning.latency.variants import with_noise_weights
from gdws.planning.methods import Choice, allocate_layers
from gdws.planning.plan import Measured
from gdws.structures import Structure

ROUNDS, CLOSE = 6, 0.02
"""Plans that are run at most, and half as many more while none is within the budget; how near below it is near enough."""
FAR = 20.0
"""How many times off a latency table may be; what would correct it by more is noise."""

_TIE = 1e-9
"""Relative: sums of the same times in another order."""

Tried = tuple[dict[str, Choice], Measured]
"""A plan, and what it took."""


@dataclass(frozen=True)
class Correction:
    """What a plan takes = start + slope * what the latency table has for it, both as fractions of the dense network's time."""

    start: float = 0.0
    slope: float = 1.0

    @classmethod
    def through(cls, tried: Sequence[tuple[float, float]], share: float) -> Correction:
        """From (timetable's, measured) of earlier plans: through the nearest on both sides of `share`, or the two nearest, or
        zero and the one that went furthest.

        One factor would do if the latency table were wrong by one factor. Where single layers are priced wrongly, plans on both
        sides close in on what is asked for all the same. Two on the same side that are nearly one tell of the noise between
        them and not of a slope: followed beyond both, it leads anywhere.
        """
        if not tried:
            return cls()
        nearest = sorted(tried, key=lambda pair: abs(pair[1] - share))
        fast, slow = ([pair for pair in nearest if (pair[1] > share) == over] for over in (False, True))
        table, measured = nearest[0] if fast and slow else max(fast, default=None) or min(slow)
        factor = measured / table
        for pairs, apart in (([*fast[:1], *slow[:1]], 0.0), (nearest[:2], CLOSE)):
            (low, taken), (high, other) = min(pairs), max(pairs)
            if low * (1 + apart) < high and factor / FAR < (slope := (other - taken) / (high - low)) < factor * FAR:
                return cls(taken - slope * low, slope)
        return cls(0.0, factor)

    def __call__(self, table: float) -> float:
        return max(self.start + self.slope * table, self.slope * table / FAR)

    def inverse(self, taken: float) -> float:
        return (taken - self.start) / self.slope


def closest_within(tried: Iterable[Tried], budget: Latency | Speedup) -> Tried:
    """The best answer: within the budget before beyond it, then the one whose measured latency is nearest to it."""
    share = budget.share
    return min(tried, key=lambda each: (each[1].latency > share, abs(each[1].latency - share)))


def search_plans(
    model: nn.Module,
    sites: list[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    budget: Latency | Speedup,
    table: LatencyTable,
    files: VariantFiles | None = None,
) -> Iterator[Tried]:
    """Plans of least predicted loss under a Latency or Speedup budget, until one is near enough.

    Each is measured, and the next made with what all took. A budget is refused when the plan that should be the fastest ran,
    and was too slow. files: those that the latency table was measured with.
    """
    share, dense_engine = budget.share, table.reference[0]
    example = repeat_first(statistics.images, table.target.batch)
    calibration = place(statistics.images[:25], "cpu", torch.float32)
    device = placement(model)[0] if table.target.engine == "cuda" else torch.device("cpu")
    threads, precision = table.target.threads or torch.get_num_threads(), table.target.precision

    search = _Search(sites, structures, statistics, table, share)
    files = files or VariantFiles(model, example)

    def ready(choices: dict[str, Choice], engine: str) -> Compiled:
        network = with_noise_weights(model, choices).to(device)
        return build_engine(network, engine, table.target, example, calibration, files)

    dense = ready({}, dense_engine)
    rounds = track(range(ROUNDS), f"planning {budget}")
    more = itertools.takewhile(lambda _: not search.fast_enough(), range(ROUNDS // 2))
    for _ in itertools.chain(rounds, more):
        made = search.untried()
        if made is None:
            return
        engine, choices, expected = made
        planned = ready(choices, engine)
        predicted = search.corrections[engine](expected)
        smallest = expected <= search.least[engine] * (1 + _TIE)
        for _ in range(2 if smallest else 1):  # a refusal takes two measurements
            timings = bench({"dense": dense, "plan": planned}, example, 10, 60)
            taken, latency = timings["dense"].quartile, timings["plan"].quartile / timings["dense"].quartile
            if latency <= share:
                break
        search.ran.append((engine, choices, expected, latency))
        if smallest and not search.fast_enough():
            outside = table.engines[engine].rest / table.reference[1] / expected
            raise OutOfReach(
                f"{budget} is out of reach: expected at most {1 / latency:.2f}x, as the network with all layers smallest "
                f"ran in {engine} {precision} (by the latency table {outside:.0%} of its time is outside the layers)",
                latency,
            )
        note(f"{1 / latency:.2f}x in {engine}, planned for {1 / predicted:.2f}x")
        yield (
            choices,
            Measured(
                device=table.device,
                engine=engine,
                precision=precision,
                threads=threads,
                batch=table.target.batch,
                dense_engine=dense_engine,
                dense_seconds=taken,
                predicted=predicted,
                latency=latency,
            ),
        )
        if share * (1 - CLOSE) <= latency <= share:
            return


class _Search:
    """What ran so far, and what to run next.

    ran    (engine, plan, the latency table's share of the dense network's time, the measured one)
    least  the latency table's share with every layer at its cheapest, by engine
    """

    def __init__(
        self,
        sites: list[Site],
        structures: Sequence[Structure],
        statistics: Statistics,
        table: LatencyTable,
        share: float,
    ) -> None:
        self.sites, self.structures, self.statistics, self.engines = sites, structures, statistics, table.engines
        self.share, self.dense_seconds = share, table.reference[1]
        self.ran: list[tuple[str, dict[str, Choice], float, float]] = []
        self.least = {
            name: _least(sites, structures, statistics, own) / self.dense_seconds for name, own in table.engines.items()
        }

    @property
    def corrections(self) -> dict[str, Correction]:
        pairs = {
            name: [(expected, taken) for engine, _, expected, taken in self.ran if engine == name] for name in self.engines
        }
        return {name: Correction.through(own, self.share) for name, own in pairs.items()}

    def fast_enough(self) -> bool:
        return any(taken <= self.share for *_, taken in self.ran)

    def untried(self) -> tuple[str, dict[str, Choice], float] | None:
        """The engine, the plan and its expected share of the best that has not run yet: planned for a little less, or more,
        until it is another one than those that were too slow, or too fast. None if there is nothing between them.
        """
        stretch, leads = 1.0, set[bool]()
        while len(leads) < 2:
            engine, choices, expected = made = self._planned(stretch)
            taken = [taken for name, plan, _, taken in self.ran if (name, plan) == (engine, choices)]
            if not taken:
                return made
            slow = taken[0] > self.share
            leads.add(slow)
            if expected <= self.least[engine] * (1 + _TIE) if slow else not _loss(choices) > 0:
                break  # nothing is smaller, or loses less
            stretch *= 1 - CLOSE if slow else 1 + CLOSE
        return None

    def _planned(self, stretch: float) -> tuple[str, dict[str, Choice], float]:
        """The plan of least loss that should take a little less than the budget, or the fastest where that is out of reach.

        stretch: of the time that it may take by the latency table.
        """
        corrections, aim = self.corrections, self.share * (1 - CLOSE / 2)
        fastest = {name: corrections[name](least) for name, least in self.least.items()}
        within = [name for name in fastest if fastest[name] <= self.share]
        found = {}
        for name in within or [min(fastest, key=lambda name: fastest[name])]:
            least = self.least[name]
            wanted = max(stretch * max(corrections[name].inverse(aim), least), least)
            limit = wanted * self.dense_seconds - self.engines[name].rest
            found[name] = allocate_layers(self.sites, self.structures, self.statistics, self.engines[name], limit)
        engine = min(found, key=lambda name: _loss(found[name]))
        return engine, found[engine], _time_of(found[engine], self.sites, self.engines[engine]) / self.dense_seconds


def _loss(choices: dict[str, Choice]) -> float:
    return sum(choice.weight for choice in choices.values())


def build_engine(
    network: nn.Module,
    engine: str,
    target: Target,
    example: Inputs,
    calibration: Inputs,
    files: VariantFiles | None = None,
) -> Compiled:
    """A network as it will run in an engine of the target. calibration: for int8; files: to export it faster."""
    with scratch_folder() as folder:
        source: nn.Module | Path = network
        if files is not None and ENGINES[engine].reads_files:
            source = folder / "model.onnx"
            files.write(network, source)
        return compile(
            source, engine, example=example, precision=target.precision, threads=target.threads, calibration=calibration
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
    """The time of a planned network, as the latency table has it."""
    layers = [(site, choices.get(site.name)) for site in sites]
    prices = [latencies.dense(site) if made is None else latencies.of(made.structure, site, made.size) for site, made in layers]
    return latencies.rest + sum(prices)
