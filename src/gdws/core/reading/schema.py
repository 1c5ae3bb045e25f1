"""JSON from files, strictly: text to values within limits, and values to the frozen dataclasses that the code has, by their
type hints.

Written by hand because pydantic and msgspec are compiled, and gdws needs no compiled package that PyTorch does not bring.

>>> from dataclasses import dataclass
>>> from typing import Annotated
>>> @dataclass(frozen=True)
... class Layer:
...     name: str
...     size: Annotated[int, Between(1, 65536)]
>>> from_json(list[Layer], '[{"name": "conv1", "size": 3}]', "this is no plan")
[Layer(name='conv1', size=3)]
>>> from_json(list[Layer], '[{"name": "conv1", "size": "x"}]', "this is no plan")
Traceback (most recent call last):
gdws.core.errors.GdwsError: this is no plan: [0].size is 'x': expected a whole number from 1 to 65536
"""

from __future__ import annotations

import json
import math
import reprlib
import sys
import types
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gdws.core.errors import GdwsError, first_line

LONGEST = 64 * 2**20
"""Bytes of text that are parsed; the plan of a large network has some hundred thousand."""

T = TypeVar("T")


@dataclass(frozen=True)
class Between:
    """Bounds of a number, in Annotated."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        return f"of at least {self.low:g}" if self.high == math.inf else f"from {self.low:.16g} to {self.high:.16g}"


WHOLE = Between(-(2**63), 2**63 - 1)
"""Whole numbers that tensors and other programs can hold."""
FINITE = Between(-sys.float_info.max, sys.float_info.max)
Count = Annotated[int, Between(0, 10**15)]
"""How many there are of something."""
Size = Annotated[int, Between(1, 2**20)]
"""Of a weight, an image or a batch."""


def from_json(kind: type[T], text: str | bytes, problem: str) -> T:
    """The value of this kind that a JSON text is of. problem: how the sentence begins that says why it is not."""
    value: T = build(kind, parse(text, problem), problem)
    return value


def parse(text: str | bytes, problem: str) -> Any:
    """JSON without what readers understand in different ways: names given twice, NaN and infinity."""
    if len(text) > LONGEST:
        raise GdwsError(f"{problem}: it has {len(text):,} characters: expected at most {LONGEST:,}")
    try:
        content = text.decode() if isinstance(text, bytes) else text
        return json.loads(content, object_pairs_hook=_named_once, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise GdwsError(f"{problem}: it is nested too deeply: expected JSON of a few levels") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise GdwsError(f"{problem}: {first_line(error)}: expected JSON") from None


def build(kind: Any, value: Any, problem: str, at: str = "") -> Any:
    """A JSON value as an instance of a type hint. `at` is where it stands."""
    bounds: Between | None = None
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)[:2]
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        (kind,) = (part for part in inner if part is not type(None))
        return build(kind, value, problem, at)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, value, problem, at)
    fits = {
        int: lambda: type(value) is int and _within(value, bounds or WHOLE),
        float: lambda: type(value) in (int, float) and _within(value, bounds or FINITE),
        bool: lambda: type(value) is bool,
        str: lambda: type(value) is str,
        Literal: lambda: type(value) is str and value in inner,
        tuple: lambda: type(value) is list and (inner[-1:] == (...,) or len(value) == len(inner)),
        list: lambda: type(value) is list,
        dict: lambda: type(value) is dict,
    }[origin or kind]()
    if not fits:
        raise GdwsError(f"{problem}: {at or 'it'} is {reprlib.repr(value)}: expected {_described(kind, bounds)}")
    if kind is float:
        return float(value)
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1:] == (...,) else inner
        return tuple(build(each, part, problem, f"{at}[{i}]") for i, (each, part) in enumerate(zip(kinds, value, strict=True)))
    if origin is list:
        return [build(inner[0], part, problem, f"{at}[{i}]") for i, part in enumerate(value)]
    if origin is dict:
        return {name: build(inner[1], part, problem, f"{at}[{reprlib.repr(name)}]") for name, part in value.items()}
    return value


def _record(kind: type[Any], value: Any, problem: str, at: str) -> Any:
    """An instance of a dataclass, which may check itself."""
    hints, inside = _hints(kind), f"{at}." if at else ""
    if type(value) is not dict:
        raise GdwsError(f"{problem}: {at or 'it'} is {reprlib.repr(value)}: expected {_described(kind, None)}")
    unknown = [name for name in value if name not in hints]
    if unknown:
        raise GdwsError(f"{problem}: {at or 'it'} has {reprlib.repr(unknown[0])}: expected {_described(kind, None)}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise GdwsError(f"{problem}: {inside}{field.name} is missing: expected {_described(hints[field.name], None)}")
    given = {name: build(hints[name], part, problem, f"{inside}{name}") for name, part in value.items()}
    try:
        return kind(**given)
    except GdwsError as error:
        raise GdwsError(f"{problem}: {error}") from None


def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _described(kind: Any, bounds: Between | None) -> str:
    """A type hint in words."""
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)[:2]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if part is type(None) else _described(part, None) for part in inner)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if isinstance(kind, type) and is_dataclass(kind):
        return f"an object with {', '.join(_hints(kind))}"
    if kind is int:
        return "a whole number" if bounds is None else f"a whole number {bounds}"
    if kind is float:
        return "a finite number" if bounds is None else f"a number {bounds}"
    if origin is tuple and inner[-1:] != (...,):
        return f"a list of {len(inner)}"
    return {bool: "true or false", str: "text", list: "a list", tuple: "a list", dict: "an object"}.get(
        origin or kind, "a value"
    )


def _within(value: float, bounds: Between) -> bool:
    return bounds.low <= value <= bounds.high


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a name is given twice")
    return record


def _no_constant(name: str) -> float:
    raise ValueError(f"a number is {name}")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number
