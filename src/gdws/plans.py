"""The plan: the one value that passes between deciding, applying, saving and reporting. Frozen and JSON-able."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gdws.budgets import KINDS, Budget
from gdws.errors import GdwsError

if TYPE_CHECKING:
    from gdws.statistics import Statistics

FORMAT = "gdws plan 3"
NO_GAIN = "no gain"


@dataclass(frozen=True)
class LayerPlan:
    """What becomes of one convolution.

    structure    "dense" (it stays as it is) or a name of gdws.structures
    reason       why it stays dense; or what other structures would lose at this cost, in multiples of this one's loss
    shape        (M, C / groups, kh, kw) of its weight
    positions    output pixels for one image, over all its uses
    kept         what the structure keeps: for "gdws" g, the kernels of each input channel; for the others the rank, one number
                 for all groups; empty for a dense layer
    loss         predicted: with method "paper" and "uniform" the weighted squared error that beta bounds; with "calibrated"
                 the divergence (nats) of the decisions from the original's that this layer brings about
    seconds      predicted time of one pass, and of the dense layer, where the budget is one of time
    """

    name: str
    structure: str
    reason: str
    shape: tuple[int, int, int, int]
    groups: int
    positions: int
    kept: tuple[int, ...]
    loss: float
    macs: int
    dense_macs: int
    parameters: int
    dense_parameters: int
    seconds: float | None = None
    dense_seconds: float | None = None

    @property
    def g(self) -> tuple[int, ...]:
        """The channel distribution of a GDWS layer; empty for others."""
        return self.kept if self.structure == "gdws" else ()

    @property
    def replaceable(self) -> bool:
        """Whether the budget counts it: it was replaced, or could have been."""
        return self.structure != "dense" or self.reason == NO_GAIN


@dataclass(frozen=True)
class Measured:
    """The time that a planned network takes, beside the dense one in its fastest engine, taken in turns.

    dense_seconds: a pass of the dense network. predicted and latency: the planned network's time as a fraction of it, from the
    timetable and as measured.
    """

    device: str
    engine: str
    precision: str
    threads: int
    batch: int
    dense_engine: str
    dense_seconds: float
    predicted: float
    latency: float


@dataclass(frozen=True)
class Plan:
    """The decisions for a whole network and where they came from.

    images: short hashes of the calibration images, so that no accuracy is reported on them.
    measured: the time that it takes, where the budget is one of time.
    tensor_cores: whether it was planned for them, in sizes that fill their blocks (gdws.choices.fills_blocks).
    calibration: the statistics behind a calibrated plan, for `apply`; not part of the JSON.
    """

    method: str
    budget: Budget
    layers: tuple[LayerPlan, ...]
    seed: int
    attack: dict[str, Any] | None
    versions: dict[str, str]
    images: tuple[str, ...] = ()
    measured: Measured | None = None
    tensor_cores: bool = False
    calibration: Statistics | None = field(default=None, compare=False, repr=False)

    @property
    def macs(self) -> float:
        """The fraction of multiply-adds left, of the convolutions that may be replaced."""
        return _share([(p.macs, p.dense_macs) for p in self.layers if p.replaceable])

    @property
    def parameters(self) -> float:
        """The fraction of weights left, of the convolutions that may be replaced."""
        return _share([(p.parameters, p.dense_parameters) for p in self.layers if p.replaceable])

    @property
    def loss(self) -> float:
        """The sum of the layers' predicted losses."""
        return sum(layer.loss for layer in self.layers)

    def to_json(self) -> str:
        record = {
            "format": FORMAT,
            "method": self.method,
            "budget": {"kind": type(self.budget).__name__, "value": self.budget.value},
            "seed": self.seed,
            "attack": self.attack,
            "versions": self.versions,
            "layers": [asdict(layer) for layer in self.layers],
            "images": self.images,
            "measured": None if self.measured is None else asdict(self.measured),
            "tensor cores": self.tensor_cores,
        }
        return json.dumps(record, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        try:
            record = json.loads(text)
            if record["format"] != FORMAT:
                raise GdwsError(f"the plan has format {record['format']!r}: expected {FORMAT!r}")
            budget = KINDS[record["budget"]["kind"]](record["budget"]["value"])
            layers = tuple(_layer(entry) for entry in record["layers"])
            return cls(
                record["method"],
                budget,
                layers,
                record["seed"],
                record["attack"],
                record["versions"],
                tuple(record["images"]),
                None if record["measured"] is None else Measured(**record["measured"]),
                record.get("tensor cores", record.get("tile", 1) > 1),  # plans of earlier versions have a tile, or nothing
            )
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise GdwsError(
                f"this is not a plan: {type(error).__name__} {error}, expected JSON that Plan.to_json wrote"
            ) from None


def _layer(entry: dict[str, Any]) -> LayerPlan:
    return LayerPlan(**{**entry, "shape": tuple(entry["shape"]), "kept": tuple(entry["kept"])})


def _share(pairs: list[tuple[int, int]]) -> float:
    """1 where there is nothing to share: a network that has nothing to replace stays whole."""
    return sum(left for left, _ in pairs) / sum(whole for _, whole in pairs) if pairs else 1.0
