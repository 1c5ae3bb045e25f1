"""Results of a long evaluation, on disk after every batch: a file of JSON lines that outlives a killed process.

The first line says what was evaluated. Each further line is one batch: its number, a hash of its images and labels, and for
every row of the result one character for each image. A line that was torn by a kill is dropped, and its batch done again.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.reading.limits import read_file
from gdws.core.reading.schema import Count, from_json, parse

FORMAT = "gdws evaluation 1"
IDENTITIES = "identities"
"""The entry of a header that files of earlier versions lack: there networks are known by their weights alone."""


@dataclass(frozen=True)
class BatchDecisions:
    """One batch: `data` is the hash of its images and labels; right (rows, B) bools."""

    data: str
    right: Tensor


@dataclass(frozen=True)
class _Line:
    """A batch as it is written: a row of zeros and ones for each trial."""

    batch: Count
    data: str
    right: tuple[str, ...]


class DecisionLog:
    """The file, open for appending. `done` holds the batches that it had when it was opened."""

    def __init__(self, path: Path, header: dict[str, Any], *, resume: bool, repair: bool = True) -> None:
        """header: JSON-able, what was evaluated. resume: continue the file, if there is one, of the same header.

        repair: cut off a torn last line. One process does so before any other opens the file.
        """
        self.path, self.done = path, dict[int, BatchDecisions]()
        if path.exists() and not resume:
            raise GdwsError(f"{path} exists: continue it with resume (--resume), or choose another file")
        header = json.loads(json.dumps({"format": FORMAT, **header}))  # as it will be read back
        content = self._read() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if content and not whole and not json.dumps(header).encode().startswith(content):
            raise self._foreign()
        lines = whole.splitlines()
        if lines:
            self._check(lines[0], header)
            for line in lines[1:]:
                self._take(line, len(header["trials"]))
        try:
            if repair and len(whole) < len(content):
                os.truncate(path, len(whole))
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise GdwsError(f"cannot write {path}: {error.strerror}") from None
        if not lines:
            try:
                self._write(header)
            except GdwsError:
                self.close()
                raise

    def append(self, batch: int, entry: BatchDecisions) -> None:
        """Keep a batch; it is on the disk when this returns."""
        rows = ["".join("01"[bit] for bit in row) for row in entry.right.int().tolist()]
        self._write({"batch": batch, "data": entry.data, "right": rows})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, record: dict[str, Any]) -> None:
        try:
            # One write of one whole line: those of several processes do not mix.
            line = json.dumps(record).encode() + b"\n"
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError as error:
            raise GdwsError(f"cannot write {self.path}: {error.strerror}") from None

    def _read(self) -> bytes:
        try:
            return read_file(self.path)
        except OSError as error:
            raise GdwsError(f"cannot read {self.path}: {error.strerror}") from None

    def _check(self, line: bytes, header: dict[str, Any]) -> None:
        try:
            found = parse(line, str(self.path))
        except GdwsError:
            raise self._foreign() from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise self._foreign()
        for key, expected in header.items():
            if found.get(key) != expected and (key in found or key != IDENTITIES):
                raise GdwsError(
                    f"{self.path} is of another evaluation ({key}: {_short(found.get(key))}): expected {_short(expected)}"
                )

    def _take(self, line: bytes, rows: int) -> None:
        try:
            found = from_json(_Line, line, str(self.path))
        except GdwsError:
            return  # torn: another process wrote after it
        if len(found.right) == rows and len({len(row) for row in found.right}) == 1 and set().union(*found.right) <= {"0", "1"}:
            bits = [[character == "1" for character in row] for row in found.right]
            self.done[found.batch] = BatchDecisions(found.data, torch.tensor(bits, dtype=torch.bool))

    def _foreign(self) -> GdwsError:
        return GdwsError(f"{self.path} is not a checkpoint of gdws evaluate: expected one, or a name that is free")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
