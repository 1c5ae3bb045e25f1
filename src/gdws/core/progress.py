"""Progress of long work: silent in a library, a bar on a terminal.

Long loops wrap their iterable in `track`. Nothing is shown until somebody, usually the command line, installs a
display with `shown`; no function needs a progress argument.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")


class Display(Protocol):
    def start(self, label: str, total: int | None) -> None: ...

    def advance(self, note: str) -> None: ...

    def stop(self) -> None: ...


_display: ContextVar[Display | None] = ContextVar("display", default=None)
_note: ContextVar[str] = ContextVar("note", default="")


def track(items: Iterable[T], label: str, total: int | None = None) -> Generator[T]:
    """Yield the items, reporting each one that is finished to the display in force."""
    display = _display.get()
    if display is None:
        yield from items
        return
    display.start(label, total if total is not None else count_batches(items))
    _note.set("")
    try:
        for item in items:
            yield item
            display.advance(_note.get())
    finally:
        display.stop()


def count_batches(items: Iterable[object]) -> int | None:
    """Of what iterating gives: of a data set the batches, though its length is that of its images."""
    batches = getattr(items, "number_of_batches", None)
    if isinstance(batches, int):
        return batches
    return len(items) if isinstance(items, Sized) else None


def note(text: str) -> None:
    """Say something short beside the bar of the innermost `track`, such as the accuracy so far."""
    _note.set(text)


@contextmanager
def shown(display: Display) -> Iterator[None]:
    """Show the progress of everything inside on this display."""
    token = _display.set(display)
    try:
        yield
    finally:
        _display.reset(token)
