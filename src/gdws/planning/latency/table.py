"""How long a network takes on this machine, layer by layer: dense, and with each layer in each structure at some sizes.

An engine fuses, blocks and reorders a layer in its network otherwise than alone. So whole networks are timed, node by node, by
the engine that will run them: the dense one, and copies with every layer in one structure at one size. On a GPU, whose kernels
run one after another, layers are timed by themselves beside the networks. Weights are noise, on which times do not depend. All
take turns, so that a busy moment touches all.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from gdws.core.errors import GdwsError
from gdws.core.reading.schema import Between, Size, build, parse
from gdws.core.sites import Site
from gdws.planning.latency.target import Target
from gdws.structures.base import Structure

NO_TABLE = "this is not a latency table"
Seconds = Annotated[float, Between(0, 1e9)]


@dataclass(frozen=True)
class Latencies:
    """Prices (gdws.planning.budgets) in seconds, for one engine.

    total         a pass of the dense network
    layers        a pass of each dense layer in it
    points        {layer: {structure: [(size, seconds), ...]}}, sizes rising
    vector_width  channels that are worked on together
    """

    total: Annotated[float, Between(1e-9, 1e9)]
    layers: dict[str, Seconds]
    points: dict[str, dict[str, list[tuple[Size, Seconds]]]]
    vector_width: Size

    def __post_init__(self) -> None:
        for layer, kinds in self.points.items():
            for kind, own in kinds.items():
                if layer not in self.layers or not own or any(a >= b for (a, _), (b, _) in pairwise(own)):
                    raise GdwsError(f"{layer!r} has times of {kind} for {[size for size, _ in own][:4]}: expected rising sizes")

    @property
    def rest(self) -> float:
        """What is not in the layers that may be replaced."""
        return self.total - sum(self.layers.values())

    def dense(self, site: Site) -> float:
        return self._rounded(self.layers[site.name])

    def of(self, structure: Structure, site: Site, size: int) -> float:
        """Linear between the sizes that were timed and beyond the last; channels that do not fill a vector cost a whole one.

        Beyond a single size that was timed, in proportion to the size.
        """
        timed = self.points.get(site.name, {}).get(structure.name)
        if timed is None:
            raise GdwsError(f"the latency table has no {structure.name} of {site.name!r}: expected one for every layer")
        filled = self._filled(size)
        points = {self._filled(other): taken for other, taken in timed}
        sizes, seconds = list(points), list(points.values())
        if filled <= sizes[-1]:
            return self._rounded(float(np.interp(filled, sizes, seconds)))
        if len(sizes) == 1:
            return self._rounded(seconds[0] * filled / sizes[0])
        slope = max(0.0, (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
        return self._rounded(seconds[-1] + slope * (filled - sizes[-1]))

    def _filled(self, size: int) -> int:
        """The channels of whole vectors."""
        return -(-size // self.vector_width) * self.vector_width

    def _rounded(self, seconds: float) -> float:
        """To a ten thousandth of the network: sums that coincide make the allocation fast."""
        return round(seconds / self.total, 4) * self.total


@dataclass(frozen=True)
class LatencyTable:
    """The latencies of a network in every engine that it may run in, taken together, and the time to beat.

    reference: the fastest engine for the dense network, PyTorch with packed weights among them, and its seconds.
    """

    device: str
    target: Target
    reference: tuple[str, float]
    engines: dict[str, Latencies]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> LatencyTable:
        record = parse(text, NO_TABLE)
        engines = record.get("engines") if isinstance(record, dict) else None
        for entry in engines.values() if isinstance(engines, dict) else ():
            if isinstance(entry, dict) and "lanes" in entry:  # as it was named before
                entry["vector_width"] = entry.pop("lanes")
        table: LatencyTable = build(cls, record, NO_TABLE)
        return table
