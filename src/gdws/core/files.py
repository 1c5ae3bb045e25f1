"""Everything that gdws writes: whole or not there, and in the place of nothing but its own.

What may be replaced, with and without force:

a file    if it is empty or begins as files of gdws of that `Kind` do
a folder  if it is empty or holds nothing but files that gdws writes there, and the first of them begins as a record of gdws

Symbolic links and devices are neither replaced nor written through.

New content is made in a hidden folder beside its place, `.NAME.XXXXXXXX.gdws`, by the user's umask, and takes the name at one
stroke. Its process holds a lock in there. What a killed process left is therefore known: the next one that writes beside it
puts back what had been moved out of the way, and deletes the rest.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from filelock import FileLock, Timeout

from gdws.core.errors import GdwsError

CACHED = 2 * 10**9
"""Bytes that a cache folder holds at most: the statistics of a ResNet-18 are 0.5 GB."""
CLOCKS_APART = 60.0
"""Seconds by which the clock of a file server may be ahead."""
CACHE_FILES = re.compile(r"statistics-[0-9a-f]{32}\.safetensors|latency-[0-9a-f]{16}\.json")
"""What gdws calls its files in such a folder, which may hold others of similar names."""
WORKSHOP = re.compile(r"\.(.+)\.[0-9a-f]{8}\.gdws", re.DOTALL)
NEW, OLD, LOCK = "new", "old", "lock"
"""What a workshop holds: what is being written, what it replaces, and the lock of who does so."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What a system says that lets nothing more be written."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What a filesystem says that has no locks: nobody can take there what is at work for a leftover."""
HEAD = 100
"""Bytes of a file that tell what it is."""


class NotWritten(GdwsError):
    """The system did not let something be written, as on a full disk."""


class Kind(Enum):
    """Files that a user names, and how those of gdws begin."""

    RECORD = "a record that gdws wrote", re.compile(rb'\{\s*"format": "gdws ')
    ONNX = "an ONNX file", re.compile(rb"\x08")  # the version, which stands first

    def is_of(self, path: Path) -> bool:
        with path.open("rb") as file:
            head = file.read(HEAD)
        return not head or self.value[1].match(head) is not None


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to or, where it is not there yet, cannot be made."""
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise GdwsError(f"cannot write to the folder {folder}: expected one that allows it")


def check_file(path: Path, kind: Kind | None = None) -> None:
    """Refuse a place in which no file can be written, before long work rather than after it.

    kind  what a file that is there must be, since it will be replaced; None for names that are gdws's own.
    """
    with _telling(path):
        mode = _mode(path)
        if mode is None:
            if not path.parent.is_dir():
                raise GdwsError(f"cannot write {path}: there is no folder {path.parent}, expected one for the result")
        elif stat.S_ISDIR(mode):
            raise GdwsError(f"{path} is a folder: expected the name of a file")
        elif not stat.S_ISREG(mode):
            raise GdwsError(f"{path} is a symbolic link or a device: expected a file, or a name that is free")
        elif not os.access(path, os.W_OK):
            raise GdwsError(f"{path} is write-protected: expected a file that may be replaced")
        elif kind is not None and not kind.is_of(path):
            raise GdwsError(f"{path} exists and is not {kind.value[0]}: expected a name that is free")
        check_writable(path.parent)


def check_folder(path: Path, force: bool, members: Sequence[str]) -> None:
    """Refuse a place in which no folder can be written, before long work rather than after it.

    members  what a folder of gdws consists of, first its record: with force, one that holds nothing else may be replaced.
    """
    with _telling(path):
        mode = _mode(path)
        if mode is None:
            return check_writable(path)
        if not force:
            raise GdwsError(f"{path} exists: choose another folder, or overwrite it with --force (force=True)")
        if stat.S_ISLNK(mode):
            raise GdwsError(f"{path} is a symbolic link: expected a folder, or a name that is free")
        if not stat.S_ISDIR(mode):
            raise GdwsError(f"{path} is a file: expected a folder")
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        for entry in entries:
            if entry.name not in members or not entry.is_file(follow_symlinks=False):
                raise GdwsError(
                    f"{path} holds {entry.name}, which gdws did not write: expected another folder, or to move that"
                )
        if entries and not (Path(path, members[0]).exists() and Kind.RECORD.is_of(path / members[0])):
            raise GdwsError(f"{path} holds {entries[0].name} and no {members[0]} that gdws wrote: expected another folder")
        return check_writable(path.parent)


def write_atomically(path: Path, content: bytes | str, kind: Kind | None = None) -> None:
    """Write a file that appears when it is complete. kind: as in `check_file`."""
    check_file(path, kind)
    with _telling(path), _workshop(path) as workshop:
        new = workshop / NEW
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(new, path)


@contextmanager
def new_folder(path: Path, force: bool, members: Sequence[str]) -> Iterator[Path]:
    """A folder that takes the place of `path` when all inside went well, and disappears when not. Arguments: `check_folder`."""
    check_folder(path, force, members)
    with _telling(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _workshop(path) as workshop:
            new = workshop / NEW
            new.mkdir()
            yield new
            check_folder(path, force, members)  # another process may have been faster
            if force and _exchange(new, path):
                return
            try:
                os.rename(new, path)  # unless there is something
            except OSError:
                if _mode(path) is None:
                    raise
                check_folder(path, force, members)
                if not _exchange(new, path):
                    os.rename(path, workshop / OLD)
                    os.rename(new, path)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for files on the way to something else, deleted afterwards."""
    try:
        with _workshop(Path(tempfile.gettempdir()) / "scratch") as folder:
            yield folder
    except OSError as error:
        if error.errno not in FULL and not isinstance(error, FileNotFoundError):
            raise
        raise NotWritten(f"cannot write temporary files ({error.strerror or error}): expected room where TMPDIR says") from None


@contextmanager
def locked(path: Path, purpose: str) -> Iterator[None]:
    """Nobody else enters here with the same path, of the lock file, while one is inside: they are told so at once.

    purpose  what the other one does, such as "trains in out".
    """
    check_file(path)
    lock = FileLock(path)
    with _telling(path):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise GdwsError(f"another process {purpose}: expected it to end first") from None
    try:
        yield
    finally:
        with suppress(OSError):  # who waits for it notices that it is gone, and makes another
            path.unlink()
        lock.release()


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
        _mode(path)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GdwsError(f"cannot make the folder {path}: {error.strerror or error}") from None
    check_writable(path)


def _mode(path: Path) -> int | None:
    """What is there, a link as a link; None if nothing."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise GdwsError(f"{str(path)!r} is no name of a file: {error}") from None


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Inside, what the system refuses is told in a sentence."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def _workshop(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path`, locked while somebody works in it."""
    _clear_away(path.parent)
    while True:
        folder = path.parent / f".{path.name}.{secrets.token_hex(4)}.gdws"
        folder.mkdir(0o700)
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=0)
            break
        except (Timeout, FileNotFoundError, FileExistsError):  # somebody took it for a leftover before it was locked
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            break
    try:
        yield folder
    finally:
        _settle(folder, path)
        lock.release()


def _clear_away(parent: Path) -> None:
    """What killed processes left in a folder: nobody holds their locks."""
    names = []
    with suppress(OSError):
        names = os.listdir(parent)
    for name in names:
        found, folder = WORKSHOP.fullmatch(name), parent / name
        if found is None:
            continue
        with suppress(Timeout, OSError):  # at work, or gone
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.getuid():
                continue  # not made here, or of somebody else
            lock = FileLock(folder / LOCK)
            lock.acquire(timeout=0)
            try:
                _settle(folder, parent / found[1])
            finally:
                lock.release()


def _settle(workshop: Path, path: Path) -> None:
    """Delete a workshop, after putting back what was moved there and not replaced."""
    if (workshop / OLD).exists() and _mode(path) is None:
        os.rename(workshop / OLD, path)
    shutil.rmtree(workshop, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Give each the name of the other at one stroke; False where the system or the filesystem has no such thing."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2  # glibc's, of Linux
    except (AttributeError, OSError, TypeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0)
