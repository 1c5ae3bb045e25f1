"""Bad arguments of the public functions: what they are given, times where it goes.

A value of a type that has no place there, such as None for a network, may also be refused by whatever Python or PyTorch raises.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gdws
from chaos import material, tiny
from chaos.case import Case, Family, Wrong
from chaos.inputs import place
from chaos.inputs.values import (
    ALPHAS,
    EDITS,
    FOREIGN_EDITS,
    FOREIGN_NUMBERS,
    IMAGES,
    LABELS,
    MODELS,
    NAMES,
    NUMBERS,
    PATHS,
    WEIGHT,
    WEIGHTS,
    WHOLE,
    Value,
    images,
    labels,
)
from gdws import attacks, data
from gdws.attacks import PGD
from gdws.core.errors import GdwsError

Call = tuple[str, Callable[[Any], object], Sequence[Value]]


def _net() -> nn.Module:
    return tiny.net()


def _batches() -> list[Any]:
    return [(images(), labels())]


ATTACK = PGD(steps=1)
PLAN_FIELDS: dict[str, type] = {
    "name": str,
    "structure": str,
    "shape": tuple,
    "groups": int,
    "positions": int,
    "ranks": tuple,
    "loss": float,
    "macs": int,
    "dense_macs": int,
    "parameters": int,
}


def _calls() -> Iterator[Call]:
    uniform = "uniform"
    with_images: dict[str, Callable[[Any], object]] = {
        "calibrate": lambda x: gdws.calibrate(_net(), [x], material.METHOD),
        "calibrate attacked": lambda x: gdws.calibrate(_net(), [x], gdws.Calibrated(structures="gdws", attack=ATTACK)),
        "plan": lambda x: gdws.plan(_net(), [x], gdws.Macs(0.5), uniform),
        "plan of the paper": lambda x: gdws.plan(_net(), [x], gdws.Macs(0.5), gdws.Paper(attack=ATTACK)),
        "compress": lambda x: gdws.compress(_net(), [x], gdws.Macs(0.5), uniform),
        "check": lambda x: gdws.compress(_net(), [images()], gdws.Macs(0.5), uniform, check=[(x, labels())]),
        "evaluate": lambda x: gdws.evaluate(_net(), [(x, labels())], ATTACK),
        "compare": lambda x: gdws.compare({"a": _net(), "b": tiny.other()}, [(x, labels())], []),
        "agreement": lambda x: gdws.agreement(_net(), tiny.other(), x),
        "sensitivity": lambda x: gdws.sensitivity(_net(), [x]),
        "network_cost": lambda x: gdws.network_cost(_net(), x),
        "to_onnx": lambda x: gdws.to_onnx(_net(), "x.onnx", x),
        "verify": lambda x: gdws.verify(material.ROOT / "fast/model.onnx", gdws.load(material.ROOT / "fast", _net()), x),
        "quantize": lambda x: gdws.quantize(material.ROOT / "fast/model.onnx", "int8.onnx", x),
        "compile": lambda x: gdws.compile(_net(), "eager", example=x, threads=1),
        "compile a file": lambda x: gdws.compile(material.ROOT / "fast/model.onnx", "onnxruntime", example=x, threads=1),
        "run": lambda x: gdws.compile(material.ROOT / "fast/model.onnx", "onnxruntime", example=images(), threads=1)(x),
        "loaded": lambda x: gdws.load(material.ROOT / "fast")(x),
        "report": lambda x: gdws.report(_net(), gdws.load(material.ROOT / "fast", _net()), x),
        "bench": lambda x: gdws.bench({"a": _net()}, x, 0, 1),
        "train": lambda x: gdws.train(_net(), [(x, labels())], _recipe(), Path("trained")),
        "from_batches": lambda x: data.Dataset.from_batches("own", [(x, labels())]),
        "red_flags": lambda x: gdws.red_flags(_compared(), {"a": _net()}, [(x, labels())], [ATTACK]),
        "plan of a dataset": lambda x: gdws.plan(_net(), data.Dataset("own", x, labels()), gdws.Macs(0.5), uniform),
        "evaluate a dataset": lambda x: gdws.evaluate(_net(), data.Dataset("own", x, labels()), ATTACK),
        "train on a dataset": lambda x: gdws.train(_net(), data.Dataset("own", x, labels()), _recipe(), Path("trained")),
    }
    for name, call in with_images.items():
        # What is called like any module or function may fail like one.
        free = name in ("loaded", "run", "bench")
        yield f"{name} of images", call, [dataclasses.replace(value, foreign=value.foreign or free) for value in IMAGES]
    with_labels: dict[str, Callable[[Any], object]] = {
        "calibrate": lambda y: gdws.calibrate(_net(), [(images(), y)], gdws.Calibrated(structures="gdws", attack=ATTACK)),
        "plan": lambda y: gdws.plan(_net(), [(images(), y)], gdws.Macs(0.5), gdws.Paper(attack=ATTACK)),
        "check": lambda y: gdws.compress(_net(), [images()], gdws.Macs(0.5), uniform, check=[(material.images()[8:16], y)]),
        "evaluate": lambda y: gdws.evaluate(_net(), [(images(), y)], ATTACK).natural.tolist(),
        "compare": lambda y: gdws.compare({"a": _net(), "b": tiny.other()}, [(images(), y)], [ATTACK]),
        "sensitivity": lambda y: gdws.sensitivity(_net(), [(images(), y)], attack=ATTACK),
        "train": lambda y: gdws.train(_net(), [(images(), y)], _recipe(), Path("trained")),
        "from_batches": lambda y: data.Dataset.from_batches("own", [(images(), y)]).labels.tolist(),
    }
    for name, call in with_labels.items():
        yield f"{name} of labels", call, LABELS
    with_models: dict[str, Callable[[Any], object]] = {
        "calibrate": lambda m: gdws.calibrate(m, [images()], material.METHOD),
        "plan": lambda m: gdws.plan(m, [images()], gdws.Macs(0.5), uniform),
        "plan of the paper": lambda m: gdws.plan(m, [images()], gdws.Beta(0.1), gdws.Paper(attack=None)),
        "compress": lambda m: gdws.compress(m, [images()], gdws.Params(0.5), uniform),
        "apply": lambda m: gdws.apply(m, _plan()),
        "evaluate": lambda m: gdws.evaluate(m, _batches(), ATTACK),
        "compare": lambda m: gdws.compare({"a": _net(), "b": m}, _batches(), []),
        "agreement": lambda m: gdws.agreement(_net(), m, images()),
        "sensitivity": lambda m: gdws.sensitivity(m, [images()]),
        "network_cost": lambda m: gdws.network_cost(m, images()),
        "to_onnx": lambda m: gdws.to_onnx(m, "x.onnx", images()),
        "save": lambda m: gdws.save(m, "saved"),
        "load": lambda m: gdws.load(material.ROOT / "fast", m),
        "compile": lambda m: gdws.compile(m, "eager", example=images(), threads=1),
        "train": lambda m: gdws.train(m, _batches(), _recipe(), Path("trained")),
        "bench": lambda m: gdws.bench({"a": m}, images(), 0, 1),
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
                _net(), [images()], gdws.Macs(0.5), method(**{"attack": None, field.name: v})
            )
            yield f"{method.__name__} {field.name}", make, [*NAMES[:4], *FOREIGN_EDITS]
    for field, kind in PLAN_FIELDS.items():
        values = [dataclasses.replace(value, foreign=not isinstance(value.make(), kind)) for value in EDITS]
        yield f"plan {field}", lambda v, field=field: _edited(field, v), values
        yield f"calibrated plan {field}", lambda v, field=field: _edited_calibrated(field, v), values
    yield from _smaller()


def _smaller() -> Iterator[Call]:
    yield "mego weight", lambda v: gdws.mego(v, None, 3), WEIGHTS
    yield "lego weight", lambda v: gdws.lego(v, None, 0.1), WEIGHTS
    yield "mego alpha", lambda v: gdws.mego(WEIGHT, v, 3), ALPHAS
    yield "lego alpha", lambda v: gdws.lego(WEIGHT, v, 0.1), ALPHAS
    yield "mego kernels", lambda v: gdws.mego(WEIGHT, None, v), WHOLE
    yield "lego beta", lambda v: gdws.lego(WEIGHT, None, v), NUMBERS
    yield "mego groups", lambda v: gdws.mego(WEIGHT, None, 3, v), WHOLE
    yield "lego groups", lambda v: gdws.lego(WEIGHT, None, 0.1, v), WHOLE
    pictures = material.pictures(8)
    yield "take", lambda v: pictures.take(v), WHOLE
    yield "take batch", lambda v: pictures.take(4, v), WHOLE
    yield "split", lambda v: pictures.split(v), WHOLE
    yield "split seed", lambda v: pictures.split(3, v), WHOLE
    yield "dataset images", lambda v: data.Dataset("own", v, labels()), [each for each in IMAGES if each.name != "bytes"]
    yield "dataset labels", lambda v: data.Dataset("own", (images() * 255).to(torch.uint8), v), LABELS
    yield "plan seed", lambda v: gdws.plan(_net(), [images()], gdws.Macs(0.5), gdws.Paper(attack=ATTACK), seed=v), WHOLE
    yield "calibrate seed", lambda v: gdws.calibrate(_net(), [images()], material.METHOD, seed=v), WHOLE
    yield "evaluate seed", lambda v: gdws.evaluate(_net(), _batches(), ATTACK, v), WHOLE
    yield (
        "compile threads",
        lambda v: gdws.compile(material.ROOT / "fast/model.onnx", "onnxruntime", example=images(), threads=v),
        WHOLE,
    )
    yield "compile engine", lambda v: gdws.compile(_net(), v, example=images()), NAMES
    yield "compile precision", lambda v: gdws.compile(_net(), "onnxruntime", example=images(), precision=v), NAMES
    yield (
        "bench repeats",
        lambda v: gdws.bench({"a": _net()}, images(), 0, v),
        [v for v in WHOLE if v.name not in ("big", "more", "much")],
    )
    yield (
        "bench warmup",
        lambda v: gdws.bench({"a": _net()}, images(), v, 1),
        [v for v in WHOLE if v.name not in ("big", "more", "much")],
    )
    yield (
        "verify tolerance",
        lambda v: gdws.verify(
            material.ROOT / "fast/model.onnx", gdws.load(material.ROOT / "fast", _net()), images(), tolerance=v
        ),
        NUMBERS,
    )
    yield "load data", lambda v: data.load(v, "test"), NAMES
    yield "load split", lambda v: data.load("demo", v), NAMES
    yield "method", lambda v: gdws.plan(_net(), [images()], gdws.Macs(0.5), v), NAMES
    yield "preset", attacks.preset, NAMES
    yield "recipe", gdws.training.recipe, NAMES
    yield "zoo", gdws.zoo.build, NAMES
    yield "resolve", gdws.models.resolve, NAMES
    files: dict[str, Callable[[Any], object]] = {
        "load a folder": gdws.load,
        "load a folder into a model": lambda p: gdws.load(p, _net()),
        "save to": lambda p: gdws.save(_net(), p, export=False),
        "export to": lambda p: gdws.to_onnx(gdws.load(material.ROOT / "fast"), p, images()),
        "verify a file": lambda p: gdws.verify(p, _net(), images()),
        "quantize a file": lambda p: gdws.quantize(p, "int8.onnx", images()),
        "quantize to": lambda p: gdws.quantize(material.ROOT / "fast/model.onnx", p, images()),
        "compile a file": lambda p: gdws.compile(p, "onnxruntime", example=images()),
        "train into": lambda p: gdws.train(_net(), material.pictures(), _recipe(), _path(p)),
        "evaluate with a checkpoint": lambda p: gdws.compare({"a": _net()}, _batches(), [], checkpoint=_path(p), resume=True),
        "weights": lambda p: gdws.models.resolve(material.NET, _path(p)),
        "Plan.from_json": gdws.Plan.from_json,
    }
    for name, call in files.items():
        yield name, call, PATHS
    yield (
        "calibrate cache",
        lambda p: gdws.calibrate(_net(), [images()], material.METHOD, cache=_path(p)),
        [dataclasses.replace(value, good=True) for value in PATHS],
    )


def _path(given: Any) -> Any:
    """What is no text stays what it is."""
    return Path(given) if isinstance(given, str) else given


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
    if call in ANY_RANGE and value.name in ("negative", "above", "pixels"):
        return True  # of a classifier that is not attacked; others may normalize before
    if call.endswith("dataset of images") and value.name == "bytes":
        return True
    if call == "dataset images":
        return value.name in ANY_VALUES
    if call in ("to_onnx of images", "Plan.from_json", "from_batches of images", "from_batches of labels", "dataset labels"):
        return value.name in ("gray", "last", "above", "far", "text")
    if kind in ("save", "export", "quantize", "train", "evaluate"):
        return value in PATHS
    return value.name == "upper"


ANY_RANGE = tuple(f"{call} of images" for call in ("calibrate", "plan", "compress", "check", "report", "plan of a dataset"))
"""What does not attack, and so takes images of any range."""
ANY_VALUES = ("nan", "infinite", "negative", "above", "pixels", "integers", "bools", "gray", "last", "flat")
"""What a data set keeps as it is, since samples may be anything: whoever takes its batches looks at them."""
FREE = ("loaded", "run", "bench", "compile", "network_cost", "save", "load", "apply")
"""What does not look at values, or whose argument may be like any module's or function's."""


MUST_REFUSE = {
    **dict.fromkeys(
        ("Macs", "Params", "Latency"),
        ("infinite", "zero", "minus", "minus_little", "much", "more", "two", "seven", "hundred", "big", "integer"),
    ),
    "Speedup": ("infinite", "zero", "minus", "minus_little", "little", "half", "integer"),
    "Beta": ("infinite", "minus", "minus_little", "integer"),
    "Drop": ("infinite", "zero", "minus", "minus_little", "much", "more", "hundred", "big", "integer"),
}


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
    place.furnish(case.folder)
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
    runs = given.value.good or given.value not in MODELS
    if runs and given.value.name not in ("infinite", "nan"):
        _check_finite(found)


def _check_finite(found: object) -> None:
    """What comes out of a network or of an approximation is a number."""
    if isinstance(found, nn.Module):
        with torch.no_grad():
            found = found(images().to(next((p.dtype for p in found.parameters()), torch.float32)))
    parts = [found, *vars(found).values()] if hasattr(found, "__dict__") else [found]
    for tensor in [part for part in parts if isinstance(part, Tensor)]:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise Wrong("what it gave is not finite")
