"""CIFAR-10 in the layout of the official python archive, packed or not, or as mosaics. Its pickles are read without running
anything."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.reading.limits import Bounded, open_file, read_file
from gdws.core.reading.pickles import BoundedUnpickler
from gdws.data import mosaic

ARCHIVE = "cifar-10-python.tar.gz"
INSIDE = "cifar-10-batches-py"


def read(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images, uint8 (N, 3, 32, 32), and labels, int64 (N,), of "train" or "test"."""
    if mosaic.is_mosaic(folder, split):
        return mosaic.read(folder, split)
    names = ["test_batch"] if split == "test" else [f"data_batch_{part}" for part in range(1, 6)]
    unpacked = folder / INSIDE if (folder / INSIDE).is_dir() else folder
    if (unpacked / names[0]).exists() or not (folder / ARCHIVE).exists():
        source, contents = unpacked, _files(folder, unpacked, names)
    else:
        source, contents = folder / ARCHIVE, _members(folder / ARCHIVE, names)
    batches = [_batch(contents.pop(name), source / name) for name in names]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return torch.from_numpy(images), torch.from_numpy(labels)


def _files(folder: Path, unpacked: Path, names: list[str]) -> dict[str, bytes]:
    contents = {}
    for name in names:
        try:
            contents[name] = read_file(unpacked / name)
        except OSError:
            raise GdwsError(
                f"{unpacked} has no {name}: expected CIFAR-10's python archive (`gdws download cifar10 {folder}` fetches it)"
            ) from None
    return contents


def _members(archive: Path, names: list[str]) -> dict[str, bytes]:
    """The files of these names, in one pass through the whole archive, as its checksum tells. Nothing is written."""
    contents: dict[str, bytes] = {}
    try:
        with open_file(archive) as file, gzip.open(file) as unpacked:
            bounded: Any = Bounded(unpacked, archive, archive.stat().st_size)
            members: Any = tarfile.open(fileobj=bounded, mode="r|")  # noqa: SIM115, it holds nothing open
            for member in members:
                members.members.clear()  # of which it keeps all, and there may be millions
                inside, _, name = member.name.rpartition("/")
                if inside == INSIDE and name in names and (content := members.extractfile(member)) is not None:
                    contents[name] = content.read()
            while bounded.read(2**20):  # to the end, where the checksum of the whole stands
                pass
    except GdwsError:
        raise
    except Exception as error:  # a broken archive fails in many ways
        raise GdwsError(f"{archive} cannot be read ({error}): expected the CIFAR-10 python archive, is it truncated?") from None
    for name in names:
        if name not in contents:
            raise GdwsError(f"{archive} has no {INSIDE}/{name}: expected the CIFAR-10 python archive")
    return contents


class _Array:
    """An array as a pickle has it: empty at first, then given its shape, type and bytes, which must be as many."""

    values: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        self.values = np.frombuffer(content, kind).reshape(shape, order="F" if by_columns else "C")


def _reconstruct(_kind: Any, _shape: Any, _code: Any) -> _Array:
    return _Array()


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # as numpy called it in 2009, when the official files were made
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): None,  # is named, never made
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, _encoding: text.encode("latin1"),  # how Python 3 writes bytes in the old protocol
}


class _ArraysOnly(BoundedUnpickler):
    """Dictionaries, lists, numbers, bytes and arrays. Every other name is refused, and nothing is imported."""

    def find_class(self, module: str, name: str) -> Any:
        return _KNOWN[module, name] if (module, name) in _KNOWN else super().find_class(module, name)


def _batch(content: bytes, path: Path) -> tuple[Any, Any]:
    """Images, uint8 (n, 3, 32, 32), and labels, int64 (n,), of one file of the archive."""
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        images, labels = (part.values if isinstance(part, _Array) else part for part in (batch[b"data"], batch[b"labels"]))
        count = len(labels)
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape != (count, 3072):
            raise ValueError(f"expected uint8 data ({count}, 3072), one row for each label")
        labels = np.asarray(labels)
        if labels.shape != (count,) or labels.dtype.kind not in "iu" or not np.isin(labels, range(10)).all():
            raise ValueError("expected labels from 0 to 9")
    except Exception as error:  # a broken pickle fails in any way
        raise GdwsError(f"{path} is not a batch of the CIFAR-10 python archive: {error}") from None
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)
