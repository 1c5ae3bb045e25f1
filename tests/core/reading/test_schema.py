"""JSON to values, strictly; the sentences of the formats are tested where these are."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from gdws.core.errors import GdwsError
from gdws.core.reading.schema import Between, Size, build, from_json


@dataclass(frozen=True)
class Part:
    size: Size
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.size == 13:
            raise GdwsError("size is 13: expected luck")


@dataclass(frozen=True)
class Whole:
    name: str
    parts: tuple[Part, ...]
    share: Annotated[float, Between(0, 1)]
    pair: tuple[int, float]
    on: bool = False
    table: dict[str, list[int]] | None = None
    rest: Any = None


RECORD = {"name": "n", "parts": [{"size": 3}, {"size": 4, "kind": "b"}], "share": 1, "pair": [1, 2]}


def test_every_kind_of_hint():
    made = build(Whole, RECORD | {"table": {"x": [1]}, "on": True, "rest": [{}]}, "no")
    assert made == Whole("n", (Part(3), Part(4, "b")), 1.0, (1, 2.0), True, {"x": [1]}, [{}])
    assert type(made.share) is float
    assert from_json(Part | None, b"null", "no") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 3}, "name is 3: expected text"),
        ({"parts": [{"size": "x"}]}, r"parts\[0\].size is 'x': expected a whole number from 1 to 1048576"),
        ({"parts": [{"size": True}]}, r"parts\[0\].size is True: expected a whole number"),
        ({"parts": [{"size": 2.0}]}, r"parts\[0\].size is 2.0: expected a whole number"),
        ({"parts": [{"size": 2}, {}]}, r"parts\[1\].size is missing: expected a whole number"),
        ({"parts": [{"size": 2, "kind": "c"}]}, r"parts\[0\].kind is 'c': expected 'a' or 'b'"),
        ({"parts": [{"size": 13}]}, "no: size is 13: expected luck"),
        ({"parts": [3]}, r"parts\[0\] is 3: expected an object with size, kind"),
        ({"share": 1.5}, "share is 1.5: expected a number from 0 to 1"),
        ({"share": None}, "share is None: expected a number"),
        ({"pair": [1]}, r"pair is \[1\]: expected a list of 2"),
        ({"pair": [1, 10**400]}, r"pair\[1\] is 10+\.\.\.0+: expected a finite number"),
        ({"pair": [2**63, 1]}, r"pair\[0\] is 9223372036854775808: expected a whole number"),
        ({"on": 1}, "on is 1: expected true or false"),
        ({"table": {"x": ["y"]}}, r"table\['x'\]\[0\] is 'y': expected a whole number"),
        ({"table": []}, r"table is \[\]: expected an object"),
        ({"x" * 100: 1}, r"it has 'x+\.\.\.x+': expected an object with name"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(change, words):
    with pytest.raises(GdwsError, match=f"^no: .*{words}" if not words.startswith("no") else words):
        build(Whole, RECORD | change, "no")
