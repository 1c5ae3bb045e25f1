"""The plan: the one value that passes between deciding, applying, saving and reporting. Frozen and JSON-able."""

from __future__ import annotations

import json
import math
import reprlib
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from gdws.attacks import PGD
from gdws.core.checks import is_count
from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments, Inputs, tensors_of
from gdws.core.reading.limits import check_bytes
from gdws.core.reading.schema import Between, Count, Size, build, parse
from gdws.core.unwrap import innermost
from gdws.planning.budgets import KINDS, Budget
from gdws.planning.fidelity_records import AnyFidelity, Fidelity, MetricChange, OutputChange

FORMAT, READABLE = "gdws plan 6", ("gdws plan 3", "gdws plan 4", "gdws plan 5", "gdws plan 6")
"""What is written, and what is read. In the third, what are now ranks had another name; the fourth knew images alone; the fifth
did not count non-zeros."""
WIDEST = 8
"""Bytes of a value."""
NO_GAIN = "no gain"
NO_PLAN = "this is not a plan"


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
                      "calibrated" the divergence (nats) from the original's predictions that this layer brings about
    macs              multiply-adds for one image
    dense_macs        those of the convolution
    parameters        weights, without the bias
    dense_parameters  those of the convolution
    seconds           predicted time of one pass, where the budget is one of time; else None
    dense_seconds     that of the convolution
    dense_nonzeros    weights of the convolution that are not zero, fewer than all in a pruned network; None if not counted
    """

    name: str
    structure: str
    reason: str
    shape: tuple[Size, Size, Size, Size]
    groups: Size
    positions: Count
    ranks: tuple[Count, ...]
    loss: float
    macs: Count
    dense_macs: Count
    parameters: Count
    dense_parameters: Count
    seconds: float | None = None
    dense_seconds: float | None = None
    dense_nonzeros: Count | None = None

    def __post_init__(self) -> None:
        sizes, counts = (*self.shape, self.groups), (self.positions, self.macs, self.parameters, *self.ranks)
        if len(sizes) != 5 or not all(is_count(size, 1) for size in sizes) or not all(map(is_count, counts)):
            raise GdwsError(f"the layer {self.name} has shape {self.shape}, counts {counts[:4]}: expected whole numbers")
        if self.replaceable and not (is_count(self.dense_macs, 1) and is_count(self.dense_parameters, 1)):
            raise GdwsError(
                f"the layer {self.name} had {self.dense_macs} multiply-adds and {self.dense_parameters} weights: expected some"
            )
        if self.shape[0] % self.groups:
            raise GdwsError(
                f"the layer {self.name} has shape {self.shape}, groups {self.groups}: expected groups that divide it"
            )
        inputs, taps = self.shape[1] * self.groups, self.shape[2] * self.shape[3]
        if self.structure == "gdws":
            per_group = {sum(self.ranks[first : first + self.shape[1]]) for first in range(0, inputs, self.shape[1])}
            if len(self.ranks) != inputs or not all(0 <= rank <= taps for rank in self.ranks) or len(per_group) > 1:
                raise GdwsError(
                    f"the layer {self.name} has {len(self.ranks)} ranks of {sum(self.ranks)} kernels: expected {inputs} from 0 "
                    f"to {taps}, with the same sum in each of {self.groups} groups"
                )
        elif self.structure != "dense" and (len(self.ranks) != 1 or self.ranks[0] < 1):
            raise GdwsError(
                f"the layer {self.name} is {self.structure} with ranks {self.ranks[:4]}: expected one of at least 1"
            )

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
    """The time that a planned network takes, measured interleaved with the dense network in its fastest engine.

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
    threads: Size
    batch: Size
    dense_engine: str
    dense_seconds: float
    predicted: float
    latency: float


@dataclass(frozen=True, kw_only=True)
class Input:
    """One of the tensors that the network is called with.

    name   of the argument; None where it has none, or only a position
    shape  of one sample
    dtype  as PyTorch calls it, such as "float32"
    """

    name: str | None
    shape: tuple[Size, ...]
    dtype: str


def describe_inputs(inputs: Inputs) -> tuple[Input, ...]:
    """What a network is called with, as a plan notes it."""
    names = [None] if isinstance(inputs, Tensor) else [*(None for _ in inputs.positional), *inputs.named]
    return tuple(
        Input(name=name, shape=tuple(value.shape[1:]), dtype=str(value.dtype).removeprefix("torch."))
        for name, value in zip(names, tensors_of(inputs), strict=True)
    )


def example_of(plan: Plan, count: int) -> Inputs | None:
    """So many samples of seeded noise of the kind that a plan notes; None if it notes none."""
    check_bytes("what a plan notes as inputs", WIDEST * count * sum(math.prod(each.shape) for each in plan.inputs))
    generator = torch.Generator().manual_seed(0)

    def noise(each: Input) -> Tensor:
        dtype = getattr(torch, each.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise GdwsError(f"{NO_PLAN}: an input has dtype {each.dtype[:40]!r}: expected one of PyTorch's, such as 'float32'")
        shape = count, *each.shape
        return torch.rand(shape, generator=generator).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)

    if len(plan.inputs) == 1 and plan.inputs[0].name is None:
        return noise(plan.inputs[0])
    positional = [noise(each) for each in plan.inputs if each.name is None]
    named = {each.name: noise(each) for each in plan.inputs if each.name is not None}
    return Arguments(*positional, **named) if plan.inputs else None


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
    tensor_cores  whether it was planned for them, in sizes that fill their blocks (gdws.planning.methods.fills_blocks).
    objective     what must be kept of the outputs (gdws.objectives).
    inputs        the tensors that the network is called with (gdws.planning.plan.Input); empty in plans that did not note them.
    others        convolutions of other kinds than nn.Conv2d, by name, and why they stay as they are.
    fidelity      what it cost, where there was data to see that on (gdws.planning.fidelity_records); else None.

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
    objective: str = "classes"
    inputs: tuple[Input, ...] = ()
    others: dict[str, str] = field(default_factory=dict)
    fidelity: AnyFidelity | None = None

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(C, H, W) of the first pictures among the inputs; None where none are known."""
        shapes = [each.shape for each in self.inputs if len(each.shape) == 3]
        return (shapes[0][0], shapes[0][1], shapes[0][2]) if shapes else None

    @property
    def macs(self) -> float:
        """The fraction of multiply-adds left, of the convolutions that may be replaced."""
        return _share([(p.macs, p.dense_macs) for p in self.layers if p.replaceable])

    @property
    def parameters(self) -> float:
        """The fraction of weights left, of the convolutions that may be replaced."""
        return _share([(p.parameters, p.dense_parameters) for p in self.layers if p.replaceable])

    @property
    def nonzeros(self) -> float:
        """The fraction of weights that are not zero, before the compression, of the convolutions that may be replaced."""
        counted = [p for p in self.layers if p.replaceable and p.dense_nonzeros is not None]
        return _share([(p.dense_nonzeros or 0, p.dense_parameters) for p in counted])

    @property
    def loss(self) -> float:
        """The sum of the layers' predicted losses."""
        return sum(layer.loss for layer in self.layers)

    def to_json(self) -> str:
        """The plan as JSON text (docs/reference/plan-format.md)."""
        record: dict[str, Any] = {
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
            "objective": self.objective,
            "inputs": [asdict(each) for each in self.inputs],
            "others": self.others,
            **dict.fromkeys(_FIDELITIES.values()),
        }
        if self.fidelity is not None:
            record[_FIDELITIES[type(self.fidelity)]] = asdict(self.fidelity)
        return json.dumps(record, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """The plan of JSON `text` that to_json wrote, perhaps edited. Raises GdwsError when it is not one."""
        return cls.from_record(parse(text, NO_PLAN))

    @classmethod
    def from_record(cls, record: Any) -> Plan:
        """The plan of the record that its JSON holds. Raises GdwsError when it is not one."""
        if not isinstance(record, dict) or record.get("format") not in READABLE:
            found = record.get("format") if isinstance(record, dict) else record
            raise GdwsError(f"{NO_PLAN}: it has format {reprlib.repr(found)}: expected {FORMAT!r}")
        stored: _Stored = build(_Stored, _renamed(record), NO_PLAN)
        if stored.budget.kind not in KINDS:
            raise GdwsError(f"{NO_PLAN}: budget.kind is {stored.budget.kind[:40]!r}: expected one of {', '.join(KINDS)}")
        if stored.attack is not None:
            build(PGD, stored.attack, NO_PLAN, "attack")
        names = [layer.name for layer in stored.layers]
        if len(set(names)) < len(names):
            raise GdwsError(f"{NO_PLAN}: two of its layers have one name: expected each convolution once")
        known = {
            each.name: getattr(stored, each.name) for each in fields(cls) if each.name not in ("budget", "fidelity", "inputs")
        }
        inputs = stored.inputs
        if stored.image_shape is not None:
            inputs = (Input(name=None, shape=stored.image_shape, dtype="float32"),)
        return cls(
            budget=KINDS[stored.budget.kind](stored.budget.value),
            fidelity=stored.fidelity or stored.output_change or stored.metric_change,
            inputs=inputs,
            **known,
        )


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A budget as it is written."""

    kind: str
    value: float


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A plan as it is written."""

    format: str
    method: Literal["calibrated", "paper", "uniform"]
    budget: _Kind
    layers: tuple[LayerPlan, ...]
    seed: Annotated[int, Between(0, 2**63 - 1)]
    attack: dict[str, Any] | None
    versions: dict[str, str]
    images: tuple[str, ...]
    measured: Measured | None
    tensor_cores: bool = False
    objective: str = "classes"
    image_shape: tuple[Size, Size, Size] | None = None
    inputs: tuple[Input, ...] = ()
    others: dict[str, str] = field(default_factory=dict)
    fidelity: Fidelity | None = None
    output_change: OutputChange | None = None
    metric_change: MetricChange | None = None


_FIDELITIES = {Fidelity: "fidelity", OutputChange: "output change", MetricChange: "metric change"}
"""Under which name each is written."""


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the names that fields have, also where an earlier version wrote it."""
    renamed = {name.replace(" ", "_"): value for name, value in record.items()}
    tile = renamed.pop("tile", 1)  # what decided on tensor cores before
    if isinstance(tile, int):
        renamed.setdefault("tensor_cores", tile > 1)
    layers = renamed.get("layers")
    if isinstance(layers, list):
        ranks = {"kept": "ranks"}
        renamed["layers"] = [
            {ranks.get(name, name): value for name, value in layer.items()} if isinstance(layer, dict) else layer
            for layer in layers
        ]
    return renamed


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


def _share(pairs: list[tuple[int, int]]) -> float:
    """1 where there is nothing to share: a network that has nothing to replace stays whole."""
    return sum(left for left, _ in pairs) / sum(whole for _, whole in pairs) if pairs else 1.0
