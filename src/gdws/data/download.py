"""Data sets from their official addresses: checked before they appear, resumed where a connection broke."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from io import BufferedRandom, BufferedReader
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from gdws.core.errors import GdwsError
from gdws.core.progress import track
from gdws.core.reading.limits import open_file
from gdws.data import cifar

BYTES_AT_ONCE = 2**20
"""Bytes read at a time: 1 MiB, as the progress bar counts."""

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""


@dataclass(frozen=True)
class Remote:
    """One file: where it is, what it is called here, its bytes, and their SHA-256 in hexadecimal digits.

    An address without https is as safe: whatever else arrives is deleted.
    """

    address: str
    name: str
    size: int
    sha256: str


# Sizes and checksums as TensorFlow Datasets (svhn_cropped) and torchvision (cifar10, svhn) have them.
OFFICIAL: dict[str, Sequence[Remote]] = {
    "cifar10": [
        Remote(
            f"https://www.cs.toronto.edu/~kriz/{cifar.ARCHIVE}",
            cifar.ARCHIVE,
            170_498_071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ],
    "svhn": [
        Remote(f"http://ufldl.stanford.edu/housenumbers/{file}", file, size, sha256)
        for file, size, sha256 in (
            ("train_32x32.mat", 182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
            ("test_32x32.mat", 64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
        )
    ],
}


def fetch(name: str, folder: Path, official: Mapping[str, Sequence[Remote]] = OFFICIAL) -> None:
    """Put the files of a data set into `folder`, which is made. What is there already and whole is not fetched again."""
    if name not in official:
        raise GdwsError(f"{name!r} cannot be downloaded: expected {' or '.join(official)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for remote in official[name]:
            _fetch(remote, folder / remote.name)
    except OSError as error:
        raise GdwsError(f"cannot write to {folder}: {error.strerror or error}") from None


def _fetch(remote: Remote, path: Path) -> None:
    if path.exists():
        with open_file(path) as file:
            found = _sha256(file)
        if found != remote.sha256:
            raise GdwsError(f"{path} has SHA-256 {found}: expected {remote.sha256}, delete it to download it again")
        return
    part = path.with_name(f"{path.name}.part")
    with _own(part) as file:
        _receive(remote, file)
        found = _sha256(file)
    if found != remote.sha256:
        part.unlink(missing_ok=True)
        raise GdwsError(f"{remote.address} gave a file of SHA-256 {found}: expected {remote.sha256}, so it was deleted")
    os.replace(part, path)


@contextmanager
def _own(part: Path) -> Iterator[BufferedRandom]:
    """The file, made or continued, and taken away if nothing came. Through a link, another file would be written over."""
    try:
        file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if part.is_symlink():
            raise GdwsError(f"{part} is a link: expected a file of an earlier download, or none") from None
        raise error from None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(file)
        raise GdwsError(f"{part} is no file of its own: expected one of an earlier download, or none")
    with os.fdopen(file, "r+b") as opened:
        try:
            yield opened
        finally:
            if opened.seek(0, os.SEEK_END) == 0:
                part.unlink()


def _receive(remote: Remote, part: BufferedRandom) -> None:
    """Bring the part to its full length, from where it ends if the server can."""
    there = part.seek(0, os.SEEK_END)
    if there == remote.size:
        return
    if there > remote.size:  # of another file
        there = part.truncate(0)
    request = Request(remote.address, headers={"Range": f"bytes={there}-"} if there else {})
    try:
        response: HTTPResponse = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        raise GdwsError(f"{remote.address} answered {error.code} {error.reason}: expected the file") from None
    except (OSError, HTTPException) as error:
        raise GdwsError(
            f"cannot reach {remote.address} ({getattr(error, 'reason', error)}): try the same command again later"
        ) from None
    with response:
        continued = there > 0 and (response.headers["Content-Range"] or "").startswith(f"bytes {there}-")
        if response.status != 200 and not continued:
            raise GdwsError(f"{remote.address} answered {response.status}: expected the file, or its rest from byte {there}")
        there = there if continued else part.truncate(0)
        left = remote.size - there
        if response.length not in (None, left):
            raise GdwsError(f"{remote.address} announces {response.length:,} bytes: expected {left:,}")
        part.seek(there)
        for chunk in track(_chunks(response, remote.address), f"{remote.name}, MiB", -(-left // BYTES_AT_ONCE)):
            left -= len(chunk)
            if left < 0:
                part.truncate(0)
                raise GdwsError(f"{remote.address} gave more than the {remote.size:,} bytes of the file: expected those")
            part.write(chunk)


def _chunks(response: HTTPResponse, address: str) -> Iterator[bytes]:
    """The content, to its announced end: a connection that is closed early looks like the end of the file otherwise."""
    length, received, reason = response.length, 0, ""
    try:
        while chunk := response.read(BYTES_AT_ONCE):
            received += len(chunk)
            yield chunk
        if length is None or received == length:
            return
    except (OSError, HTTPException) as error:
        reason = f" ({str(error) or type(error).__name__})"
    announced = "" if length is None else f" of {length:,}"
    raise GdwsError(
        f"the connection to {address} broke after {received:,}{announced} bytes{reason}: the same command resumes it"
    )


def _sha256(file: BufferedReader | BufferedRandom) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()
