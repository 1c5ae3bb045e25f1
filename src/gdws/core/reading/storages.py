"""What a torch file declares, read without making any of it.

A file of the format before PyTorch 1.6 is a few pickles, and then the storages. torch allocates each as large as the pickle
says, before it reads it, and makes it larger for a tensor that reaches beyond. A later file is an archive with one pickle.
torch looks for a hint in what it says of a broken pickle, which takes hours where that holds a name without an end.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from gdws.core.reading.limits import open_file
from gdws.core.reading.pickles import BoundedUnpickler

BEFORE = 3
"""Pickles before that of the content: a magic number, a version, and about the machine."""
LONGEST = 200
"""Characters of the name of anything."""
WIDEST = 16
"""Bytes of an element of a kind that is not known."""
BYTES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1}
BYTES |= {"ComplexFloat": 8, "ComplexDouble": 16, "Untyped": 1}
"""Of an element, by the beginning of the name of its storage."""


REBUILDING = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"}
"""Functions of torch that make a tensor of a storage, an offset, a shape and strides."""


class _Nothing:
    """Stands for whatever the pickle names. It takes everything, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        pass


class _Storage(_Nothing):
    """Some numbers."""

    def __init__(self, count: int) -> None:
        self.count = count


class _Declared(BoundedUnpickler):
    """Imports and makes nothing that the pickle names; counts the storages that it declares."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="utf-8")
        self.bytes: dict[Any, int] = {}

    def total(self) -> int:
        """Bytes of the storages of one pickle."""
        self.load()
        return sum(self.bytes.values())

    def find_class(self, module: str, name: str) -> Any:
        if len(module) + len(name) > LONGEST:
            raise ValueError(f"it asks for {module[:20]}.{name[:20]}...")
        return self._tensor if name in REBUILDING else type(name, (_Nothing,), {})

    def _tensor(self, storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> _Nothing:
        reach = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) + 1
        if 0 not in size and reach > storage.count:
            raise ValueError(f"a tensor of shape {size} reaches beyond its storage of {storage.count}")
        return _Nothing()

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, key, *others = pid
        if kind == "storage":
            count = others[1]  # after the device
            size = int(count) * BYTES.get(storage.__name__.removesuffix("Storage"), WIDEST)
            self.bytes[str(key)] = max(size, self.bytes.get(str(key), 0))
            return _Storage(int(count))
        return _Nothing()


def declared_bytes(path: Path) -> int:
    """Of all storages of a file. Raises whatever a broken pickle does."""
    declared = 0
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith("data.pkl"):
                    with archive.open(member) as file:
                        declared += _Declared(file).total()
    else:
        with open_file(path) as file:
            declared = [_Declared(file).total() for _ in range(BEFORE + 1)][-1]
    return declared
