"""The plan: the one value that passes between deciding, applying, saving and reporting. Frozen and JSON-able."""

from __future__ import annotations

import json
import reprlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn

from gdws.attacks import PGD
from gdws.core.checks import is_count
from gdws.core.reading.schema import Count, Size, build, parse
from gdws.core.significance import PairedChange, clopper_pearson
from gdws.core.unwrap import innermost
from gdws.errors import GdwsError
from gdws.planning.budgets import KINDS, Budget

FORMAT, READABLE = "gdws plan 4", ("gdws plan 3", "gdws plan 4")
"""What is written, and what is read. In the third, what are now ranks had another name."""
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

    def __post_init__(self) -> None:
        sizes, counts = (*self.shape, self.groups), (self.positions, self.macs, self.parameters, *self.ranks)
        if len(sizes) != 5 or not all(is_count(size, 1) for size in sizes) or not all(map(is_count, counts)):
            raise GdwsError(f"the layer {self.name} has shape {self.shape}, counts {counts[:4]}: expected whole numbers")
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
    threads: Size
    batch: Size
    dense_engine: str
    dense_seconds: float
    predicted: float
    latency: float


HELD_OUT, TRAINING, HELD_BACK = "held-out", "other training", "held-back calibration"
"""Where the images come from on which a network is compared with its original: the user gave them as unseen; they were left
over from the data that the calibration images are of; or they were taken out of the calibration images themselves."""
BY_HEART = 0.995
"""Networks that decide this share of their training images rightly know them by heart."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """What a compressed network cost, on images that it was not calibrated on. Counts of images.

    source           HELD_OUT, TRAINING or HELD_BACK
    images           compared
    agreed           of these, decided alike by both networks
    change           rightly decided before and after; None without labels
    attacked         images that were attacked too, on the original; 0 without an attack
    attacked_agreed  of these, decided alike by both networks
    attacked_lost    of these, withstood by the original alone. What is withstood by the compressed network alone is no gain:
                     the attack was not made on it.
    """

    source: str
    images: Size
    agreed: Count
    change: PairedChange | None = None
    attacked: Count = 0
    attacked_agreed: Count = 0
    attacked_lost: Count = 0

    def __post_init__(self) -> None:
        decided = (self.images,) if self.change is None else tuple(vars(self.change).values())
        counted = sum(decided)
        if counted != self.images or min(decided) < 0 or max(self.agreed, self.attacked) > counted:
            raise GdwsError(
                f"{counted} images decided, {self.agreed} alike, {self.attacked} attacked: expected {self.images} at most"
            )
        if max(self.attacked_agreed, self.attacked_lost) > self.attacked:
            raise GdwsError(
                f"{self.attacked_lost} of {self.attacked} attacked images are lost: expected no more than there are"
            )

    @property
    def agreement(self) -> float:
        """Per cent of the images that are decided alike."""
        return 100 * self.agreed / self.images

    @property
    def agreement_interval(self) -> tuple[float, float]:
        """95 %, exact."""
        return _percent(self.agreed, self.images)

    @property
    def attacked_agreement(self) -> float | None:
        return 100 * self.attacked_agreed / self.attacked if self.attacked else None

    @property
    def attacked_interval(self) -> tuple[float, float] | None:
        return _percent(self.attacked_agreed, self.attacked) if self.attacked else None

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Per cent right before and after."""
        if self.change is None:
            return None
        both, total = self.change.both, self.change.total
        return 100 * (both + self.change.lost) / total, 100 * (both + self.change.gained) / total

    @property
    def most_lost(self) -> float:
        """The upper end of the 95 % interval of what was lost, in points: of accuracy, or of agreement without labels; and of
        what was withstood before, where images were attacked."""
        clean = 100 - self.agreement_interval[0] if self.change is None else -self.change.score_interval[0]
        return max(clean, _percent(self.attacked_lost, self.attacked)[1]) if self.attacked else clean

    @property
    def warning(self) -> str:
        """What speaks against these numbers: the original seems to have learnt the images by heart. Empty if nothing does."""
        if self.source == HELD_OUT or self.accuracy is None or self.accuracy[0] < 100 * BY_HEART:
            return ""
        return (
            f"the original decides {self.accuracy[0]:.1f} % of {self.images} {self.source} images rightly: these images seem "
            "to be known by heart, and say little of others; give held-out images with check=, --check"
        )

    def __str__(self) -> str:
        """Accuracy where there are labels, agreement where not, each with its interval."""
        attacked = ""
        if self.attacked_interval is not None:
            attacked = (
                f"; of {self.attacked} attacked images {self.attacked_agreement:.1f} % are decided as by the original "
                f"({_range(self.attacked_interval)})"
            )
        if self.change is None or self.accuracy is None:
            told = f"{self.agreement:.1f} % of {self.images} {self.source} images are decided as by the original"
            return f"{told} ({_range(self.agreement_interval)}){attacked}"
        before, after = self.accuracy
        told = f"accuracy {before:.1f} % before, {after:.1f} % after on {self.images} {self.source} images"
        return f"{told}: {after - before:+.1f} points ({_range(self.change.score_interval, '+.1f')}){attacked}"

    def record(self) -> dict[str, Any]:
        """As JSON, with what follows from the counts. Per cent and points."""
        return asdict(self) | {
            "agreement": self.agreement,
            "agreement_interval": self.agreement_interval,
            "attacked_agreement": self.attacked_agreement,
            "attacked_interval": self.attacked_interval,
            "accuracy": self.accuracy,
            "points": None if self.change is None else self.change.points,
            "points_interval": None if self.change is None else self.change.score_interval,
        }


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
    fidelity      what it cost, where there were images to see that on (gdws.planning.plan.Fidelity); else None.

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
    fidelity: Fidelity | None = None

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
            "fidelity": None if self.fidelity is None else asdict(self.fidelity),
        }
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
        budget = KINDS[stored.budget.kind](stored.budget.value)
        return cls(budget=budget, **{name: value for name, value in vars(stored).items() if name not in ("format", "budget")})


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
    seed: int
    attack: dict[str, Any] | None
    versions: dict[str, str]
    images: tuple[str, ...]
    measured: Measured | None
    tensor_cores: bool = False
    image_shape: tuple[Size, Size, Size] | None = None
    fidelity: Fidelity | None = None


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


def _percent(count: int, total: int) -> tuple[float, float]:
    low, high = clopper_pearson(count, total)
    return 100 * low, 100 * high


def _range(interval: tuple[float, float], form: str = ".1f") -> str:
    low, high = interval
    return f"95 % interval {low:{form}} to {high:{form}}"


def _share(pairs: list[tuple[int, int]]) -> float:
    """1 where there is nothing to share: a network that has nothing to replace stays whole."""
    return sum(left for left, _ in pairs) / sum(whole for _, whole in pairs) if pairs else 1.0
