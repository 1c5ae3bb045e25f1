"""How long a network takes on this machine, layer by layer: dense, and with each layer in each structure at some sizes.

An engine fuses, blocks and reorders a layer in its network otherwise than alone. So whole networks are timed, node by node, by
the engine that will run them: the dense one, and copies with every layer in one structure at one size. On a GPU, whose kernels
run one after another, layers are timed by themselves beside the networks. Weights are noise, on which times do not depend. All
take turns, so that a busy moment touches all.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gdws.core.sites import Site
from gdws.errors import GdwsError
from gdws.planning.latency.target import Target
from gdws.structures.base import Structure


@dataclass(frozen=True)
class Latencies:
    """Prices (gdws.planning.choose) in seconds, for one engine.

    total         a pass of the dense network
    layers        a pass of each dense layer in it
    points        {layer: {structure: [(size, seconds), ...]}}, sizes rising
    vector_width  channels that are worked on together
    """

    total: float
    layers: dict[str, float]
    points: dict[str, dict[str, list[tuple[int, float]]]]
    vector_width: int

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Latencies:
        points = {
            layer: {kind: [(int(size), float(seconds)) for size, seconds in own] for kind, own in kinds.items()}
            for layer, kinds in record["points"].items()
        }
        width = record["lanes"] if "lanes" in record else record["vector_width"]  # as it was named before
        made = cls(record["total"], record["layers"], points, width)
        timed = [point for kinds in points.values() for own in kinds.values() for point in own]
        seconds = [made.total, *made.layers.values(), *(taken for _, taken in timed)]
        rising = all(own and own == sorted(own) for kinds in points.values() for own in kinds.values())
        if not (all(0 <= taken < math.inf for taken in seconds) and made.total > 0 and rising and made.vector_width >= 1):
            raise ValueError("with seconds that are negative or not finite, or sizes that do not rise")
        return made

    @property
    def rest(self) -> float:
        """What is not in the layers that may be replaced."""
        return self.total - sum(self.layers.values())

    def dense(self, site: Site) -> float:
        return self._rounded(self.layers[site.name])

    def of(self, structure: Structure, site: Site, size: int) -> float:
        """Linear between the sizes that were timed and beyond the last; channels that do not fill a vector cost a whole one."""
        sizes, seconds = np.array(self.points[site.name][structure.name]).T
        filled = -(-size // self.vector_width) * self.vector_width
        if filled <= sizes[-1] or len(sizes) == 1:
            return self._rounded(float(np.interp(filled, sizes, seconds)))
        slope = max(0.0, (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
        return self._rounded(float(seconds[-1] + slope * (filled - sizes[-1])))

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
    def from_json(cls, text: str) -> LatencyTable:
        try:
            record = json.loads(text)
            engines = {name: Latencies.from_record(entry) for name, entry in record["engines"].items()}
            return cls(record["device"], Target(**record["target"]), tuple(record["reference"]), engines)
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise GdwsError(
                f"this is not a latency table: {type(error).__name__} {error}, expected what to_json wrote"
            ) from None
