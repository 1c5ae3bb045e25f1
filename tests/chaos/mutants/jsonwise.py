"""Ways to spoil JSON: parts replaced, dropped, renamed or moved; it stays JSON, mostly."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from chaos.mutants.bytewise import bytewise


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


VALUES: Sequence[Callable[[Random], Any]] = (
    *(
        lambda _, value=value: value
        for value in (
            *(None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, 10**9, 2**31, 2**63, 2**64, 10**40),
            *(float("nan"), float("inf"), -float("inf")),
            *("", "x", "0", "NaN", "\x1b[31mred", "[bold]b[/]", "\u202e\x00", "../../etc/passwd", "é" * 300),
            *([], {}, [[]], [0], [1, 2, 3], {"": 0}, {"kind": "Macs"}, ["gdws"], "dense", "gdws"),
        )
    ),
    lambda random: random.randint(-10, 1000),
    lambda random: random.random() * 10 ** random.randint(-300, 300),
    lambda random: [random.randint(0, 9)] * random.choice((1, 8, 9, 1000)),
    lambda _: nested(500),
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every part of a JSON value, but the whole."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, part in parts:
        found.append((*at, key))
        found += paths(part, (*at, key))
    return found


def jsonwise(value: Any, random: Random) -> Any:
    """A JSON value with one to three parts replaced, dropped, renamed, added, doubled or changed with another."""
    value = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = paths(value)
        if not places:
            return random.choice(VALUES)(random)
        if random.random() < 0.02:
            value = random.choice((random.choice(VALUES)(random), [value], {"a": value}))
            continue
        # Parts of a long list are many: a place is drawn by its depth first.
        depth = random.choice(sorted({len(place) for place in places}))
        *outer, key = random.choice([place for place in places if len(place) == depth])
        parent = value
        for step in outer:
            parent = parent[step]
        _change_part(parent, key, places, value, random)
    return value


def _change_part(parent: Any, key: Any, places: list[tuple[Any, ...]], whole: Any, random: Random) -> None:
    what = random.choice(("replace", "replace", "replace", "near", "near", "drop", "rename", "add", "wrap", "swap"))
    old = parent[key]
    if what == "replace":
        parent[key] = random.choice(VALUES)(random)
    elif what == "near":
        parent[key] = _near(old, random)
    elif what == "drop":
        del parent[key]
    elif what == "wrap":
        parent[key] = [old]
    elif what == "swap":
        other: Any = whole
        for step in random.choice(places):
            other = other[step]
        parent[key] = json.loads(json.dumps(other))
    elif isinstance(parent, dict):
        name = random.choice((f"{key}x", key[:-1], "", "format", key.upper(), "\x1b]0;title\x07", "__class__"))
        parent[name] = parent.pop(key) if what == "rename" else random.choice(VALUES)(random)
    else:
        parent.insert(key, old if what == "rename" else random.choice(VALUES)(random))


def _near(value: Any, random: Random) -> Any:
    """Of the same type and another value, or the same value and another type."""
    if isinstance(value, bool) or value is None:
        return random.choice((True, False, None, 0, 1, "true"))
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, -value, value * 2, float(value), value + 0.5, str(value), value * 10**6))
    if isinstance(value, float):
        return random.choice(
            (
                -value,
                value * (1 + 1e-9),
                value * 2,
                int(value) if abs(value) < 1e300 else 0,
                str(value),
                value * 1e300,
                value / 1e300,
            )
        )
    if isinstance(value, str):
        return random.choice(
            (value.upper(), value + "x", value[:-1], value + "\n", f" {value}", [value], value * 1000, "é" + value)
        )
    if isinstance(value, list):
        return random.choice(
            (value[:-1], value + value[:1], value[::-1], value * 3, {str(i): part for i, part in enumerate(value)})
        )
    return random.choice((list(value.items()), list(value), {**value, "more": 1}, dict.fromkeys(value)))


def json_file(content: bytes, random: Random) -> bytes:
    text = json.dumps(jsonwise(json.loads(content), random), indent=random.choice((None, 1)))
    what = random.random()
    if what < 0.03:
        text = text.replace(":", ": " + "[" * random.choice((10, 2000, 100000)), 1)
    elif what < 0.06:  # a key that is there twice
        text = text.replace("{", '{"format": "other", "layers": 1, ', 1)
    elif what < 0.08:
        return text.encode(random.choice(("utf-16", "utf-32", "utf-8-sig")))
    return text.encode()


def json_lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines()
    chosen = random.randrange(len(lines))
    what = random.choice(("json", "json", "json", "json", "drop", "double", "swap", "bytes", "tear", "blank"))
    if what == "json":
        lines[chosen] = json.dumps(jsonwise(json.loads(lines[chosen]), random)).encode()
    elif what == "drop":
        del lines[chosen]
    elif what == "double":
        lines.append(lines[chosen])
    elif what == "swap":
        random.shuffle(lines)
    elif what == "bytes":
        lines[chosen] = bytewise(lines[chosen], random)
    elif what == "blank":
        lines.insert(chosen, random.choice((b"", b" ", b"null", b"[]", b"{}", b"1", b'"x"', b"[" * 5000)))
    end = lines[-1][: random.randrange(len(lines[-1]) + 1)] if what == "tear" else lines[-1] + b"\n"
    return b"\n".join([*lines[:-1], end])
