"""The plan: the one value that passes between deciding, applying, saving and reporting. Frozen and JSON-able."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from gdws.core.unwrap import innermost
from gdws.errors import GdwsError
from gdws.planning.budgets import KINDS, Budget

FORMAT, READABLE = "gdws plan 4", ("gdws plan 3", "gdws plan 4")
"""What is written, and what is read. In the third, what are now ranks had another name."""
NO_GAIN = "no gain"


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """What becomes of one convolution.

    name              of the module in the model
    structure         "dense" (it stays as it is) or a name of gdws.structures
    reason            why it stays dense; or what other structures would lose at this cost, in multiples of this one's loss
    shape             (M, C / groups, kh, kw) of its weight
    groups            of the convolution
    positions         output pixels for one image, over all its uses
    ranks             for "gdws" g, the rank of each input channel's block, which is the number of its kernels; for the others
                      the rank, one number for all groups; empty for a dense layer
    loss              predicted: with method "paper" and "uniform" the weighted squared error that beta bounds; with
                      "calibrated" the divergence (nats) from the original's decisions that this layer brings about
    macs              multiply-adds for one image
    dense_macs        those of the convolution
    parameters        weights, without the bias
    dense_parameters  those of the convolution
    seconds           predicted time of one pass, where the budget is one of time; else None
    dense_seconds     that of the convolution
    """

    name: str
    structure: str
    reason: str
    shape: tuple[int, int, int, int]
    groups: int
    positions: int
    ranks: tuple[int, ...]
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
        return self.ranks if self.structure == "gdws" else ()

    @property
    def replaceable(self) -> bool:
        """Whether the budget counts it: it was replaced, or could have been."""
        return self.structure != "dense" or self.reason == NO_GAIN


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The time that a planned network takes, measured in turns with the dense network in its fastest engine.

    device         name of the CPU or GPU
    engine         that the planned network ran in
    precision      of the engine
    threads        of a CPU
    batch          images at a time
    dense_engine   that the dense network ran in
    dense_seconds  a pass of the dense network
    predicted      the planned network's time as a fraction of that, from the table of layer latencies
    latency        the same fraction, as measured
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The decisions for a whole network and where they came from: a record to print, edit, save and give to gdws.apply.

    method        "calibrated", "paper" or "uniform".
    budget        what was asked for.
    layers        a record for each convolution in the order in which they run (gdws.planning.plan.LayerPlan).
    seed          of everything random.
    attack        settings of the attack on the calibration images, or None.
    versions      of gdws and PyTorch.
    images        short hashes of the calibration images, so that no accuracy is reported on them.
    measured      the time that it takes, where the budget is one of time (gdws.planning.plan.Measured); else None.
    tensor_cores  whether it was planned for them, in sizes that fill their blocks (gdws.planning.choose.fills_blocks).
    image_shape   (C, H, W) of the images; None in plans that did not note it.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> plan = gdws.plan(model, images, gdws.Macs(0.5), "uniform")
    >>> [(layer.name, layer.reason) for layer in plan.layers if not layer.replaceable]
    [('conv1', 'first layer'), ('layer2.0.shortcut.0', '1x1'), ('layer3.0.shortcut.0', '1x1')]
    >>> gdws.Plan.from_json(plan.to_json()) == plan
    True
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
    image_shape: tuple[int, int, int] | None = None

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
        """The plan as JSON text (docs/reference/plan-format.md)."""
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
            "image shape": self.image_shape,
        }
        return json.dumps(record, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of JSON `text` that to_json wrote, perhaps edited. Raises GdwsError when it is not one."""
        try:
            record = json.loads(text)
            if record["format"] not in READABLE:
                raise GdwsError(f"the plan has format {record['format']!r}: expected {FORMAT!r}")
            budget = KINDS[record["budget"]["kind"]](record["budget"]["value"])
            layers = tuple(_layer(entry) for entry in record["layers"])
            return cls(
                method=record["method"],
                budget=budget,
                layers=layers,
                seed=record["seed"],
                attack=record["attack"],
                versions=record["versions"],
                images=tuple(record["images"]),
                measured=None if record["measured"] is None else Measured(**record["measured"]),
                # Plans of earlier versions have a tile, or nothing.
                tensor_cores=record.get("tensor cores", record.get("tile", 1) > 1),
                image_shape=_shape(record.get("image shape")),
            )
        except (json.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
            raise GdwsError(
                f"this is not a plan: {type(error).__name__} {error}, expected JSON that Plan.to_json wrote"
            ) from None


def plan_of(model: nn.Module) -> Plan | None:
    """The plan that a model was compressed by.

    model  a network that gdws.compress, gdws.apply or gdws.load returned, or any other.

    Returns a Plan, or None where there is none.

    >>> import gdws
    >>> gdws.plan_of(gdws.models.embedded()) is None
    True
    """
    plan = getattr(innermost(model), "_gdws_plan", None)
    return plan if isinstance(plan, Plan) else None


def attach_plan(model: nn.Module, plan: Plan) -> None:
    """Note on a model by which plan it was compressed."""
    model._gdws_plan = plan  # type: ignore[assignment]


def _layer(entry: dict[str, Any]) -> LayerPlan:
    entry = dict(entry)
    ranks = entry.pop("kept") if "kept" in entry else entry["ranks"]
    return LayerPlan(**{**entry, "shape": tuple(entry["shape"]), "ranks": tuple(ranks)})


def _shape(found: list[int] | None) -> tuple[int, int, int] | None:
    return None if found is None else (int(found[0]), int(found[1]), int(found[2]))


def _share(pairs: list[tuple[int, int]]) -> float:
    """1 where there is nothing to share: a network that has nothing to replace stays whole."""
    return sum(left for left, _ in pairs) / sum(whole for _, whole in pairs) if pairs else 1.0
