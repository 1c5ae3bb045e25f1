"""How much memory the content of a file may take, which is checked against what the file declares before it is allocated.

A file of some bytes can declare gigabytes: packed zeros, shapes without content, views of one number. The limit is
GDWS_MAX_BYTES, 1 GiB if that is not set; for a file that is itself larger than a quarter of it, four times the file.
"""

from __future__ import annotations

import os
import stat
from io import BufferedIOBase, BufferedReader
from pathlib import Path

from gdws.core.errors import GdwsError

VARIABLE, DEFAULT = "GDWS_MAX_BYTES", 2**30
PACKED = 4
"""Times its size that a large file may unpack to: images of bytes, packed without loss, rarely shrink as much."""
BYTES_A_PIXEL = 16
"""Of an image while it is decoded, converted and resized."""


def max_bytes(size: int = 0) -> int:
    """Bytes that the content of a file of this size may take in memory."""
    given = os.environ.get(VARIABLE) or str(DEFAULT)
    if not (given.isascii() and given.isdigit()) or len(given) > 18 or int(given) == 0:
        raise GdwsError(f"{VARIABLE} is {given[:40]!r}: expected a whole number of bytes, such as {DEFAULT} for 1 GiB")
    return max(int(given), PACKED * size)


def check_bytes(what: object, needed: int, size: int = 0) -> None:
    """Refuse content of so many bytes. `what` has them, of which the message speaks; size: of the file that it is from."""
    most = max_bytes(size)
    if needed > most:
        raise GdwsError(
            f"{what} would take {needed:,} bytes of memory: expected at most {most:,} (where you trust it, raise {VARIABLE})"
        )


def open_file(path: Path) -> BufferedReader:
    """An ordinary file for reading; OSError as by open. Pipes, which may never end, and devices are refused."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise GdwsError(f"{str(path)!r} is the name of no file: expected one without zero bytes") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise GdwsError(f"{path} is no ordinary file: expected one")
    return os.fdopen(file, "rb")


def read_file(path: Path) -> bytes:
    """The content of an ordinary file; OSError where it cannot be read."""
    with open_file(path) as file:
        return file.read()


class Bounded:
    """A stream that is unpacked while it is read, and refused once it gave more than a file of this size may."""

    def __init__(self, stream: BufferedIOBase, what: object, size: int) -> None:
        self._stream, self._what, self._size, self._given = stream, what, size, 0

    def read(self, count: int) -> bytes:
        part = self._stream.read(count)
        self._given += len(part)
        check_bytes(self._what, self._given, self._size)
        return part
