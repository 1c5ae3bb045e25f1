"""Writing that is either whole or not there."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gdws.errors import GdwsError

CACHED = 2 * 10**9
"""Bytes that a cache folder holds at most: the statistics of a ResNet-18 are 0.5 GB."""
CLOCKS_APART = 60.0
"""Seconds by which the clock of a file server may be ahead."""
CACHE_FILES = re.compile(r"statistics-[0-9a-f]{32}\.safetensors|latency-[0-9a-f]{16}\.json")
"""What gdws calls its files in such a folder, which may hold others of similar names."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name in its folder, then rename it: a reader never sees half of it."""
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as handle:
            temporary = handle.name
            handle.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise GdwsError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def limit_cache(folder: Path, bytes_at_most: int = CACHED) -> None:
    """Delete the oldest of what gdws keeps in a cache folder until the rest fits; the newest file always stays.

    A file that is dated in the future, by a clock that was wrong, counts as the oldest: it would never go otherwise.
    """
    now, total = time.time() + CLOCKS_APART, 0
    with suppress(OSError):  # another process deletes them too, or the folder does not allow it
        entries = [entry for entry in os.scandir(folder) if CACHE_FILES.fullmatch(entry.name)]
        files = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
        files.sort(key=lambda file: file[0].st_mtime if file[0].st_mtime <= now else 0, reverse=True)
        for position, (status, path) in enumerate(files):
            total += status.st_size
            if position and total > bytes_at_most:
                os.unlink(path)


def ensure_folder(path: Path) -> None:
    """Make the folder if it is not there, and say that nothing can be written to it before long work rather than after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GdwsError(f"cannot make the folder {path}: {error.strerror or error}") from None
    if not os.access(path, os.W_OK):
        raise GdwsError(f"cannot write to the folder {path}: expected one that allows it")


@contextmanager
def new_folder(path: Path, force: bool) -> Iterator[Path]:
    """A temporary folder that takes the place of `path` when all inside went well, and disappears when not."""
    if path.exists() and not force:
        raise GdwsError(f"{path} exists: choose another folder, or overwrite it with force (--force)")
    if path.exists() and not path.is_dir():
        raise GdwsError(f"{path} is a file: expected a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise GdwsError(f"cannot write to {path.parent}: {error.strerror or error}") from None
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        if path.exists():
            discarded = temporary.with_name(temporary.name + ".old")
            os.rename(path, discarded)
            os.rename(temporary, path)
            shutil.rmtree(discarded)
        else:
            os.rename(temporary, path)
    except OSError as error:
        raise GdwsError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    """What the user wants taken from the permissions of new files; temporary ones start out private."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
