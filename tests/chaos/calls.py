"""Bad arguments of the public functions: what they are given, times where it goes.

A value of a type that has no place there, such as None for a network, may also be refused by whatever Python or PyTorch raises.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gdws
from chaos import commands, material, tiny
from chaos.case import Case, Family, Wrong
from gdws import attacks, data
from gdws.attacks import PGD
from gdws.errors import GdwsError

NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Value:
    """Something to be given. good: it may be taken; foreign: of a type that has no place there."""

    name: str
    make: Callable[[], Any]
    good: bool = False
    foreign: bool = False


def _values(good: bool = False, foreign: bool = False, **made: Callable[[], Any]) -> list[Value]:
    return [Value(name, make, good, foreign) for name, make in made.items()]


def _images() -> Tensor:
    return material.images()[:8].clone()


def _labels() -> Tensor:
    return torch.arange(8) % 4


def _with(value: float) -> Tensor:
    made = _images()
    made[3, 1, 2, 5] = value
    return made


FOREIGN = _values(foreign=True, none=lambda: None, text=lambda: "images", number=lambda: 3, mapping=lambda: {"images": _images()}, thing=object, path=lambda: Path("x"), array=lambda: np.zeros((8, 3, 8, 8), np.float32))  # fmt: skip
IMAGES = [
    *_values(nan=lambda: _with(NAN), infinite=lambda: _with(INF), negative=lambda: _with(-1e-3), above=lambda: _with(1.001), bytes=lambda: (_images() * 255).to(torch.uint8), pixels=lambda: _images() * 255, integers=lambda: torch.zeros(8, 3, 8, 8, dtype=torch.int64), bools=lambda: torch.ones(8, 3, 8, 8, dtype=torch.bool), complex=lambda: _images().to(torch.complex64), three=lambda: _images()[0], five=lambda: _images()[None], none_at_all=lambda: _images()[:0], no_rows=lambda: torch.zeros(8, 3, 0, 8), no_channels=lambda: torch.zeros(8, 0, 8, 8), gray=lambda: _images()[:, :1], last=lambda: _images().permute(0, 2, 3, 1), meta=lambda: _images().to("meta"), scalar=lambda: torch.tensor(0.5), flat=lambda: torch.zeros(8), quantized=lambda: torch.quantize_per_tensor(_images(), 0.01, 0, torch.quint8), float8=lambda: _images().to(torch.float8_e4m3fn), sparse=lambda: _images().to_sparse(), undefined=lambda: torch.empty(0)),
    *_values(good=True, double=lambda: _images().double(), half=lambda: _images().half(), brain=lambda: _images().bfloat16(), gradients=lambda: _images().requires_grad_(), strided=lambda: _images().permute(0, 1, 3, 2), last_in_memory=lambda: _images().to(memory_format=torch.channels_last), repeated=lambda: _images()[:1].expand(8, 3, 8, 8), black=lambda: torch.zeros(8, 3, 8, 8), white=lambda: torch.ones(8, 3, 8, 8), denormal=lambda: torch.full((8, 3, 8, 8), 1e-40), one=lambda: _images()[:1], parameter=lambda: nn.Parameter(_images())),
    *FOREIGN,
]  # fmt: skip
LABELS = [
    *_values(floats=lambda: _labels().float(), negative=lambda: _labels() - 1, above=lambda: _labels() + 1, far=lambda: _labels() + 10**9, two=lambda: _labels()[:, None], short=lambda: _labels()[:7], long=lambda: torch.arange(9) % 4, hot=lambda: nn.functional.one_hot(_labels()), empty=lambda: _labels()[:0], meta=lambda: _labels().to("meta"), complex=lambda: _labels().to(torch.complex64), wrapping=lambda: (_labels().to(torch.uint64).view(torch.int64) + 2**62 + 2**62).view(torch.uint64), scalar=lambda: torch.tensor(1), sparse=lambda: _labels().to_sparse()),
    *_values(good=True, bools=lambda: _labels() > 1, bytes=lambda: _labels().to(torch.uint8), int8=lambda: _labels().to(torch.int8), int16=lambda: _labels().to(torch.int16), int32=lambda: _labels().to(torch.int32), uint16=lambda: _labels().to(torch.uint16), uint32=lambda: _labels().to(torch.uint32), uint64=lambda: _labels().to(torch.uint64), strided=lambda: _labels().repeat_interleave(2)[::2], expanded=lambda: torch.tensor([1]).expand(8)),
    *_values(foreign=True, text=lambda: "labels", number=lambda: 3, thing=object, listed=lambda: [0, 1, 2, 3, 0, 1, 2, 3], array=lambda: np.arange(8) % 4),
]  # fmt: skip
CODE = {name: must for name, (_, must) in commands.CODE.items() if name not in ("raises", "raises red", "exits", "exits inside", "interrupts", "recursion", "syntax", "null byte", "encoding", "latin1", "missing", "not callable", "needs arguments", "prints", "warns", "class")}  # fmt: skip
MODELS = [Value(name, lambda name=name: _coded(name), good=not must, foreign=name in ("none", "function", "state dict", "generator", "asynchronous")) for name, must in CODE.items()] + _values(foreign=True, text=lambda: "demo", kind=lambda: nn.Sequential, number=lambda: 1)  # fmt: skip
_WHOLE = _values(zero=lambda: 0, minus=lambda: -1, more=lambda: 10**400, one=lambda: 1, two=lambda: 2, seven=lambda: 7, hundred=lambda: 100, big=lambda: 2**63)  # fmt: skip
_FLOATS = {
    "nan": NAN,
    "infinite": INF,
    "minus_infinite": -INF,
    "minus_little": -1e-9,
    "much": 1e300,
    "little": 1e-320,
    "half": 0.5,
}
_STRANGE = _values(foreign=True, true=lambda: True, array=lambda: np.float64(0.5), integer=lambda: np.int64(-3), nan_array=lambda: np.float32("nan"), tensor=lambda: torch.tensor(0.5), decimal=lambda: Decimal("0.5"), text=lambda: "0.5", none=lambda: None, listed=lambda: [0.5], complex=lambda: 1j, nothing=dict, tensors=lambda: torch.tensor([0.5, 0.6]))  # fmt: skip
NUMBERS = [*_WHOLE, *(Value(name, lambda value=value: value) for name, value in _FLOATS.items()), *_STRANGE]
WHOLE = [*_WHOLE, *(Value(name, lambda value=value: value, foreign=True) for name, value in _FLOATS.items()), *_STRANGE]
"""Where whole numbers are wanted."""
NAMES = [*_values(empty=lambda: "", unknown=lambda: "x", red=lambda: "\x1b[31m", upper=lambda: "GDWS"), *_values(foreign=True, listed=lambda: ["x"], mixed=lambda: ["gdws", "x"], none=lambda: None, number=lambda: 3, truth=lambda: True)]  # fmt: skip
PATHS = [*_values(missing=lambda: "missing", folder=lambda: "folder", empty=lambda: "empty", noise=lambda: "noise.pt", device=lambda: "null", full=lambda: "full", dangling=lambda: "dangling", loop=lambda: "loop", fifo=lambda: "fifo", long=lambda: "n" * 300, inside=lambda: "text/x", nothing=lambda: "", null_byte=lambda: "a\0b"), *_values(foreign=True, none=lambda: None, number=lambda: 3.5)]  # fmt: skip
FOREIGN_NUMBERS = [dataclasses.replace(value, foreign=True) for value in NUMBERS]


def _coded(name: str) -> Any:
    """What `net` of the code gives."""
    given: dict[str, Any] = {}
    exec(commands.HEAD + commands.CODE[name][0], given)
    return given["net"]()


Call = tuple[str, Callable[[Any], object], Sequence[Value]]


def _net() -> nn.Module:
    return tiny.net()


def _batches(images: Any = None, labels: Any = None) -> list[Any]:
    return [(_images() if images is None else images, _labels() if labels is None else labels)]


ATTACK = PGD(steps=1)
PLAN_FIELDS: dict[str, type] = {"name": str, "structure": str, "shape": tuple, "groups": int, "positions": int, "ranks": tuple, "loss": float, "macs": int, "dense_macs": int, "parameters": int}  # fmt: skip
EDITS = [
    *_values(none=lambda: None, minus=lambda: -1, text=lambda: "x", number=lambda: 3, nan=lambda: NAN, big=lambda: 2**70, nothing=lambda: (), list_of_text=lambda: ("x",), negative_list=lambda: (-1,) * 8, long_list=lambda: (1,) * 9, huge_list=lambda: (10**9,) * 8, shape=lambda: (1, 2, 3, 4), floats=lambda: (1.5,) * 8, stem=lambda: "0", norm=lambda: "1", dots=lambda: "0..1"),
]  # fmt: skip
FOREIGN_EDITS = [dataclasses.replace(value, foreign=True) for value in EDITS]


def _calls() -> Iterator[Call]:
    uniform = "uniform"
    with_images: dict[str, Callable[[Any], object]] = {
        "calibrate": lambda x: gdws.calibrate(_net(), [x], material.METHOD),
        "calibrate attacked": lambda x: gdws.calibrate(_net(), [x], gdws.Calibrated(structures="gdws", attack=ATTACK)),
        "plan": lambda x: gdws.plan(_net(), [x], gdws.Macs(0.5), uniform),
        "plan of the paper": lambda x: gdws.plan(_net(), [x], gdws.Macs(0.5), gdws.Paper(attack=ATTACK)),
        "compress": lambda x: gdws.compress(_net(), [x], gdws.Macs(0.5), uniform),
        "check": lambda x: gdws.compress(_net(), [_images()], gdws.Macs(0.5), uniform, check=[(x, _labels())]),
        "evaluate": lambda x: gdws.evaluate(_net(), [(x, _labels())], ATTACK),
        "compare": lambda x: gdws.compare({"a": _net(), "b": tiny.other()}, [(x, _labels())], []),
        "agreement": lambda x: gdws.agreement(_net(), tiny.other(), x),
        "sensitivity": lambda x: gdws.sensitivity(_net(), [x]),
        "network_cost": lambda x: gdws.network_cost(_net(), x),
        "to_onnx": lambda x: gdws.to_onnx(_net(), "x.onnx", x),
        "verify": lambda x: gdws.verify(material.ROOT / "fast/model.onnx", gdws.load(material.ROOT / "fast", _net()), x),
        "quantize": lambda x: gdws.quantize(material.ROOT / "fast/model.onnx", "int8.onnx", x),
        "compile": lambda x: gdws.compile(_net(), "eager", example=x, threads=1),
        "compile a file": lambda x: gdws.compile(material.ROOT / "fast/model.onnx", "onnxruntime", example=x, threads=1),
        "run": lambda x: gdws.compile(material.ROOT / "fast/model.onnx", "onnxruntime", example=_images(), threads=1)(x),
        "loaded": lambda x: gdws.load(material.ROOT / "fast")(x),
        "report": lambda x: gdws.report(_net(), gdws.load(material.ROOT / "fast", _net()), x),
        "bench": lambda x: gdws.bench({"a": _net()}, x, 0, 1),
        "train": lambda x: gdws.train(_net(), [(x, _labels())], _recipe(), Path("trained")),
        "from_batches": lambda x: data.Dataset.from_batches("own", [(x, _labels())]),
        "red_flags": lambda x: gdws.red_flags(_compared(), {"a": _net()}, [(x, _labels())], [ATTACK]),
    }
    for name, call in with_images.items():
        # What is called like any module or function may fail like one.
        free = name in ("loaded", "run", "bench")
        yield f"{name} of images", call, [dataclasses.replace(value, foreign=value.foreign or free) for value in IMAGES]
    with_labels: dict[str, Callable[[Any], object]] = {
        "calibrate": lambda y: gdws.calibrate(_net(), [(_images(), y)], gdws.Calibrated(structures="gdws", attack=ATTACK)),
        "plan": lambda y: gdws.plan(_net(), [(_images(), y)], gdws.Macs(0.5), gdws.Paper(attack=ATTACK)),
        "check": lambda y: gdws.compress(_net(), [_images()], gdws.Macs(0.5), uniform, check=[(material.images()[8:16], y)]),
        "evaluate": lambda y: gdws.evaluate(_net(), [(_images(), y)], ATTACK).natural.tolist(),
        "compare": lambda y: gdws.compare({"a": _net(), "b": tiny.other()}, [(_images(), y)], [ATTACK]),
        "sensitivity": lambda y: gdws.sensitivity(_net(), [(_images(), y)], attack=ATTACK),
        "train": lambda y: gdws.train(_net(), [(_images(), y)], _recipe(), Path("trained")),
        "from_batches": lambda y: data.Dataset.from_batches("own", [(_images(), y)]).labels.tolist(),
    }
    for name, call in with_labels.items():
        yield f"{name} of labels", call, LABELS
    with_models: dict[str, Callable[[Any], object]] = {
        "calibrate": lambda m: gdws.calibrate(m, [_images()], material.METHOD),
        "plan": lambda m: gdws.plan(m, [_images()], gdws.Macs(0.5), uniform),
        "plan of the paper": lambda m: gdws.plan(m, [_images()], gdws.Beta(0.1), gdws.Paper(attack=None)),
        "compress": lambda m: gdws.compress(m, [_images()], gdws.Params(0.5), uniform),
        "apply": lambda m: gdws.apply(m, _plan()),
        "evaluate": lambda m: gdws.evaluate(m, _batches(), ATTACK),
        "compare": lambda m: gdws.compare({"a": _net(), "b": m}, _batches(), []),
        "agreement": lambda m: gdws.agreement(_net(), m, _images()),
        "sensitivity": lambda m: gdws.sensitivity(m, [_images()]),
        "network_cost": lambda m: gdws.network_cost(m, _images()),
        "to_onnx": lambda m: gdws.to_onnx(m, "x.onnx", _images()),
        "save": lambda m: gdws.save(m, "saved"),
        "load": lambda m: gdws.load(material.ROOT / "fast", m),
        "compile": lambda m: gdws.compile(m, "eager", example=_images(), threads=1),
        "train": lambda m: gdws.train(m, _batches(), _recipe(), Path("trained")),
        "bench": lambda m: gdws.bench({"a": m}, _images(), 0, 1),
    }
    for name, call in with_models.items():
        yield (
            f"{name} of a model",
            call,
            [dataclasses.replace(value, foreign=value.foreign or name == "bench") for value in MODELS],
        )
    for kind in (gdws.Macs, gdws.Params, gdws.Latency, gdws.Speedup, gdws.Beta, gdws.Drop):
        yield f"{kind.__name__}", kind, NUMBERS
    for kind in (PGD, attacks.MSD, attacks.AutoAttack, attacks.FGSM, attacks.BIM, attacks.DeepFool, gdws.Target, gdws.Recipe):
        for field in dataclasses.fields(kind):
            if isinstance(field.default, bool):
                continue
            wanted = type(field.default)
            values = {str: NAMES, int: WHOLE, float: NUMBERS}.get(wanted, FOREIGN_NUMBERS)
            yield f"{kind.__name__} {field.name}", lambda v, kind=kind, field=field: kind(**{field.name: v}), values
    for method in (gdws.Calibrated, gdws.Paper, gdws.Uniform):
        for field in dataclasses.fields(method):
            if isinstance(field.default, bool):
                continue
            make: Callable[[Any], object] = lambda v, method=method, field=field: gdws.plan(  # noqa: E731
                _net(), [_images()], gdws.Macs(0.5), method(**{"attack": None, field.name: v})
            )
            yield f"{method.__name__} {field.name}", make, [*NAMES[:4], *FOREIGN_EDITS]
    for field, kind in PLAN_FIELDS.items():
        values = [dataclasses.replace(value, foreign=not isinstance(value.make(), kind)) for value in EDITS]
        yield f"plan {field}", lambda v, field=field: _edited(field, v), values
        yield f"calibrated plan {field}", lambda v, field=field: _edited_calibrated(field, v), values
    yield from _smaller()


def _smaller() -> Iterator[Call]:
    weight = torch.rand(4, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    weights = [
        *_values(nan=lambda: weight * NAN, infinite=lambda: weight * INF, integers=lambda: (weight * 9).long(), complex=lambda: weight.to(torch.complex64), three=lambda: weight[0], five=lambda: weight[None], empty=lambda: weight[:0], no_taps=lambda: weight[..., :0], meta=lambda: weight.to("meta"), bools=lambda: weight > 0.5, float8=lambda: weight.to(torch.float8_e4m3fn), sparse=lambda: weight.to_sparse(), quantized=lambda: torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8)),
        *_values(good=True, half=weight.half, double=weight.double, zero=lambda: weight * 0, parameter=lambda: nn.Parameter(weight), strided=lambda: weight.permute(1, 0, 3, 2)),
        *FOREIGN,
    ]  # fmt: skip
    alphas = [
        *_values(nan=lambda: torch.full((4,), NAN), negative=lambda: -torch.ones(4), infinite=lambda: torch.full((4,), INF), short=lambda: torch.ones(3), two=lambda: torch.ones(4, 1), meta=lambda: torch.ones(4, device="meta"), complex=lambda: torch.ones(4, dtype=torch.complex64)),
        *_values(good=True, zero=lambda: torch.zeros(4), much=lambda: torch.full((4,), 1e300, dtype=torch.float64), integers=lambda: torch.ones(4, dtype=torch.int64), none=lambda: None),
        *_values(foreign=True, text=lambda: "x", number=lambda: 1.0, listed=lambda: [1.0] * 4),
    ]  # fmt: skip
    yield "mego weight", lambda v: gdws.mego(v, None, 3), weights
    yield "lego weight", lambda v: gdws.lego(v, None, 0.1), weights
    yield "mego alpha", lambda v: gdws.mego(weight, v, 3), alphas
    yield "lego alpha", lambda v: gdws.lego(weight, v, 0.1), alphas
    yield "mego kernels", lambda v: gdws.mego(weight, None, v), WHOLE
    yield "lego beta", lambda v: gdws.lego(weight, None, v), NUMBERS
    yield "mego groups", lambda v: gdws.mego(weight, None, 3, v), WHOLE
    yield "lego groups", lambda v: gdws.lego(weight, None, 0.1, v), WHOLE
    pictures = material.pictures(8)
    yield "take", lambda v: pictures.take(v), WHOLE
    yield "take batch", lambda v: pictures.take(4, v), WHOLE
    yield "split", lambda v: pictures.split(v), WHOLE
    yield "split seed", lambda v: pictures.split(3, v), WHOLE
    yield "dataset images", lambda v: data.Dataset("own", v, _labels()), [each for each in IMAGES if each.name != "bytes"]
    yield "dataset labels", lambda v: data.Dataset("own", (_images() * 255).to(torch.uint8), v), LABELS
    yield "plan seed", lambda v: gdws.plan(_net(), [_images()], gdws.Macs(0.5), gdws.Paper(attack=ATTACK), seed=v), WHOLE
    yield "calibrate seed", lambda v: gdws.calibrate(_net(), [_images()], material.METHOD, seed=v), WHOLE
    yield "evaluate seed", lambda v: gdws.evaluate(_net(), _batches(), ATTACK, v), WHOLE
    yield "compile threads", lambda v: gdws.compile(material.ROOT / "fast/model.onnx", "onnxruntime", example=_images(), threads=v), WHOLE  # fmt: skip
    yield "compile engine", lambda v: gdws.compile(_net(), v, example=_images()), NAMES
    yield "compile precision", lambda v: gdws.compile(_net(), "onnxruntime", example=_images(), precision=v), NAMES
    yield "bench repeats", lambda v: gdws.bench({"a": _net()}, _images(), 0, v), [v for v in WHOLE if v.name not in ("big", "more", "much")]  # fmt: skip
    yield "bench warmup", lambda v: gdws.bench({"a": _net()}, _images(), v, 1), [v for v in WHOLE if v.name not in ("big", "more", "much")]  # fmt: skip
    yield "verify tolerance", lambda v: gdws.verify(material.ROOT / "fast/model.onnx", gdws.load(material.ROOT / "fast", _net()), _images(), tolerance=v), NUMBERS  # fmt: skip
    yield "load data", lambda v: data.load(v, "test"), NAMES
    yield "load split", lambda v: data.load("demo", v), NAMES
    yield "method", lambda v: gdws.plan(_net(), [_images()], gdws.Macs(0.5), v), NAMES
    yield "preset", attacks.preset, NAMES
    yield "recipe", gdws.training.recipe, NAMES
    yield "zoo", gdws.zoo.build, NAMES
    yield "resolve", gdws.models.resolve, NAMES
    files: dict[str, Callable[[Any], object]] = {
        "load a folder": gdws.load,
        "load a folder into a model": lambda p: gdws.load(p, _net()),
        "save to": lambda p: gdws.save(_net(), p, export=False),
        "export to": lambda p: gdws.to_onnx(gdws.load(material.ROOT / "fast"), p, _images()),
        "verify a file": lambda p: gdws.verify(p, _net(), _images()),
        "quantize a file": lambda p: gdws.quantize(p, "int8.onnx", _images()),
        "quantize to": lambda p: gdws.quantize(material.ROOT / "fast/model.onnx", p, _images()),
        "compile a file": lambda p: gdws.compile(p, "onnxruntime", example=_images()),
        "train into": lambda p: gdws.train(_net(), material.pictures(), _recipe(), p if p is None or isinstance(p, float) else Path(p)),
        "evaluate with a checkpoint": lambda p: gdws.compare({"a": _net()}, _batches(), [], checkpoint=p if p is None or isinstance(p, float) else Path(p), resume=True),
        "weights": lambda p: gdws.models.resolve(material.NET, p if p is None or isinstance(p, float) else Path(p)),
        "Plan.from_json": gdws.Plan.from_json,
    }  # fmt: skip
    for name, call in files.items():
        yield name, call, PATHS
    yield "calibrate cache", lambda p: gdws.calibrate(_net(), [_images()], material.METHOD, cache=p if p is None or isinstance(p, float) else Path(p)), [dataclasses.replace(value, good=True) for value in PATHS]  # fmt: skip


def _recipe() -> gdws.Recipe:
    return gdws.Recipe(epochs=1, batch=4, rate=0.01, held=2, attack=ATTACK)


def _plan() -> gdws.Plan:
    return gdws.Plan.from_json(material.whole("plan-paper.json").decode())


def _compared() -> Any:
    return gdws.compare({"a": _net()}, _batches(), [ATTACK])


def _edited(field: str, value: Any) -> nn.Module:
    plan = _plan()
    layers = tuple(
        dataclasses.replace(layer, **{field: value}) if layer.structure != "dense" else layer for layer in plan.layers
    )
    return gdws.apply(_net(), dataclasses.replace(plan, layers=layers))


def _edited_calibrated(field: str, value: Any) -> nn.Module:
    plan = gdws.Plan.from_json(material.whole("plan-calibrated.json").decode())
    layers = tuple(
        dataclasses.replace(layer, **{field: value}) if layer.structure != "dense" else layer for layer in plan.layers
    )
    return gdws.apply(_net(), dataclasses.replace(plan, layers=layers), material.statistics())


def _fits(call: str, value: Value) -> bool:
    """Whether a value may be taken after all: numbers are bad for some arguments alone."""
    kind = call.split()[0]
    if value.good or (value.foreign and value.name not in ("nan", "minus_infinite", "nan_array")):
        return True
    if value in NUMBERS or value in WHOLE or value in FOREIGN_NUMBERS:
        if value.name in ("nan", "minus_infinite", "nan_array"):
            return False
        return kind not in MUST_REFUSE or value.name not in MUST_REFUSE[kind]
    if call.split()[-1] in PLAN_FIELDS or value in FOREIGN_EDITS:
        return True  # what is made of an edited plan is checked by what comes of it
    if kind in FREE and value not in PATHS:
        return True
    if call in ("to_onnx of images", "Plan.from_json", "from_batches of images", "from_batches of labels", "dataset labels"):
        return value.name in ("gray", "last", "above", "far", "text")
    if kind in ("save", "export", "quantize", "train", "evaluate"):
        return value in PATHS
    return value.name == "upper"


FREE = ("loaded", "run", "bench", "compile", "network_cost", "save", "load", "apply")
"""What does not look at values, or whose argument may be like any module's or function's."""


MUST_REFUSE = {
    **dict.fromkeys(("Macs", "Params", "Latency"), ("infinite", "zero", "minus", "minus_little", "much", "more", "two", "seven", "hundred", "big", "integer")),
    "Speedup": ("infinite", "zero", "minus", "minus_little", "little", "half", "integer"),
    "Beta": ("infinite", "minus", "minus_little", "integer"),
    "Drop": ("infinite", "zero", "minus", "minus_little", "much", "more", "hundred", "big", "integer"),
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    call: str
    work: Callable[[Any], object]
    value: Value

    @property
    def told(self) -> str:
        return f"{self.call}: {self.value.name}"


GIVEN = [Given(call, work, value) for call, work, values in _calls() for value in values]
STRIDE = 7919


def families() -> list[Family]:
    return [Family("inputs/calls", len(GIVEN), _attempt, short=60, seconds=20)]


def _attempt(case: Case) -> None:
    if case.index >= len(GIVEN):
        case.key = GIVEN[0].told
        return
    given = GIVEN[case.index * STRIDE % len(GIVEN)]
    case.key = hashlib.sha256(given.told.encode()).hexdigest()
    case.tell(given.told)
    commands.furnish(case.folder)
    try:
        found = given.work(given.value.make())
    except (MemoryError, GdwsError):
        raise
    except Exception as error:
        if given.value.foreign:
            raise GdwsError(f"by Python: {error}") from None
        raise
    finally:
        torch.set_num_threads(1)
    if not _fits(given.call, given.value):
        raise Wrong(f"this was accepted and gave {str(found)[:100]!r}")
    if given.value.name not in ("infinite", "nan"):
        _check_finite(found)


def _check_finite(found: object) -> None:
    """What comes out of a network or of an approximation is a number."""
    if isinstance(found, nn.Module):
        with torch.no_grad():
            found = found(_images().to(next((p.dtype for p in found.parameters()), torch.float32)))
    tensors = [found] if isinstance(found, Tensor) else [part for part in vars(found).values() if isinstance(part, Tensor)] if hasattr(found, "__dict__") else []  # fmt: skip
    for tensor in tensors:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise Wrong("what it gave is not finite")
