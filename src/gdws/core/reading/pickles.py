"""A reader of pickles that imports nothing, and takes no more memory than they are worth.

Python's own, in C, makes room for as many entries as an index says and for as many bytes as a length says, before it looks for
them. It reads tuples inside tuples without an end, of which a hash ends the process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

READS = 5 * 10**6
"""Of a pickle, at most: a step takes one or two, and leaves an object of some dozen bytes."""
DEEPEST, MOST = 100, 10_000
"""Tuples inside tuples; and what a tuple holds with those inside, one that is there twice counted twice: so long a hash takes,
and by its memo a pickle of some bytes can make a tuple that holds 2^60."""
PIECE = 2**20


class BoundedUnpickler(pickle._Unpickler):
    """Subclasses say what names stand for, in `find_class`. `load` raises whatever a broken pickle does.

    file      to read from; another pickle may follow.
    encoding  of the text of Python 2.
    """

    def __init__(self, file: Any, encoding: str) -> None:
        super().__init__(_Counted(file), encoding=encoding)

    def find_class(self, module: str, name: str) -> Any:
        """Nothing: there is no name that a file may choose."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


class _Counted:
    """A file that is read so often, and piece by piece."""

    def __init__(self, file: Any) -> None:
        self._file, self._reads = file, 0

    def read(self, count: int) -> bytes:
        self._count()
        if count <= PIECE:
            return bytes(self._file.read(count))
        parts, left = list[bytes](), count
        while left > 0 and (part := self._file.read(min(left, PIECE))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def readline(self) -> bytes:
        self._count()
        return bytes(self._file.readline())

    def _count(self) -> None:
        self._reads += 1
        if self._reads > READS:
            raise pickle.UnpicklingError(f"it has more than {READS:,} parts")


class _Tuple(tuple[Any, ...]):
    """depth: how many tuples are inside one another. held: by them all."""

    depth, held = 1, 0


def _tuple(items: Sequence[Any]) -> _Tuple:
    made = _Tuple(items)
    inside = [item for item in items if isinstance(item, _Tuple)]
    made.depth = 1 + max((item.depth for item in inside), default=0)
    made.held = len(items) + sum(item.held for item in inside)
    if made.depth > DEEPEST:
        raise pickle.UnpicklingError(f"it has more than {DEEPEST} tuples inside one another")
    if made.held > MOST:
        raise pickle.UnpicklingError(f"it has a tuple of more than {MOST:,} parts")
    return made


def _marked_tuple(self: Any) -> None:
    items = self.pop_mark()
    self.append(_tuple(items))


def _last_in_a_tuple(count: int) -> Callable[[Any], None]:
    def load(self: Any) -> None:
        if len(self.stack) < count:
            raise pickle.UnpicklingError("it takes more from its stack than is there")
        self.stack[-count:] = [_tuple(self.stack[-count:])]

    return load


def _frame(self: Any) -> None:
    """A frame would be read at once; its parts are as well read one by one."""
    self.read(8)


_steps: Any = {
    **pickle._Unpickler.dispatch,
    pickle.TUPLE[0]: _marked_tuple,
    **{code[0]: _last_in_a_tuple(count) for count, code in enumerate((pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3), 1)},
    pickle.FRAME[0]: _frame,
}
for code in (pickle.BYTEARRAY8, pickle.FROZENSET):  # one asks for memory first, the other holds others as tuples do
    del _steps[code[0]]
BoundedUnpickler.dispatch = _steps
