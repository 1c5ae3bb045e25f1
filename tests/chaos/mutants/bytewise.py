"""Ways to spoil a file's bytes, whatever its format."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

Mutator = Callable[[bytes, Random], bytes]
INTEGERS = (0, 1, 2, 7, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def bytewise(content: bytes, random: Random) -> bytes:
    """One to three changes that know nothing of the format."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = random.choice(BYTEWISE)(content, random)
    return content


def _place(content: bytes, random: Random) -> int:
    """Anywhere; the beginning and the end, where headers and tables are, half of the time."""
    last = max(0, len(content) - 1)
    return random.choice(
        (
            random.randint(0, last),
            random.randint(0, last),
            min(last, random.randint(0, 127)),
            max(0, last - random.randint(0, 127)),
        )
    )


def _flip(content: bytes, random: Random) -> bytes:
    out = bytearray(content)
    if out:
        out[_place(content, random)] ^= 1 << random.randrange(8)
    return bytes(out)


def _set(content: bytes, random: Random) -> bytes:
    start, length = _place(content, random), random.choice((1, 1, 2, 4, 8, 64))
    filler = random.choice((b"\0" * length, b"\xff" * length, random.randbytes(length)))
    return content[:start] + filler + content[start + length :]


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: _place(content, random)]


def _extend(content: bytes, random: Random) -> bytes:
    return content + random.randbytes(random.choice((1, 8, 100)))


def _delete(content: bytes, random: Random) -> bytes:
    start = _place(content, random)
    return content[:start] + content[start + random.choice((1, 2, 4, 16, 256)) :]


def _insert(content: bytes, random: Random) -> bytes:
    start = _place(content, random)
    return content[:start] + random.randbytes(random.choice((1, 2, 4, 16))) + content[start:]


def _duplicate(content: bytes, random: Random) -> bytes:
    start, length = _place(content, random), random.choice((1, 8, 64, 512))
    return content[: start + length] + content[start : start + length] * random.choice((1, 1, 3)) + content[start + length :]


def _splice(content: bytes, random: Random) -> bytes:
    """Two of its chunks change places, or one takes another's."""
    length = random.choice((1, 4, 16, 64))
    first, second = sorted((_place(content, random), _place(content, random)))
    if second < first + length:
        return content[:first] + content[second:]
    chunks = content[first : first + length], content[second : second + length]
    taken = random.choice((chunks[0], chunks[1]))
    return content[:first] + chunks[1] + content[first + length : second] + taken + content[second + length :]


def _number(content: bytes, random: Random) -> bytes:
    """An integer field at its extremes, in either byte order."""
    size = random.choice((1, 2, 4, 8))
    start, value = _place(content, random), random.choice(INTEGERS) % 256**size
    return content[:start] + value.to_bytes(size, random.choice(("little", "big"))) + content[start + size :]


def _digits(content: bytes, random: Random) -> bytes:
    """A number that is written in digits, as another."""
    found = list(re.finditer(rb"\d+", content))
    if not found:
        return _number(content, random)
    chosen = random.choice(found)
    value = random.choice(
        (b"0", b"1", b"-1", b"999999999", b"1e9", b"4294967296", b"9" * 30, str(int(chosen[0][:18]) + 1).encode())
    )
    return content[: chosen.start()] + value + content[chosen.end() :]


BYTEWISE: Sequence[Mutator] = (_flip, _flip, _set, _truncate, _extend, _delete, _insert, _duplicate, _splice, _number, _digits)
