"""Data sets from their official addresses: checked before they appear, resumed where a connection broke."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from gdws.core.progress import track
from gdws.data import cifar
from gdws.errors import GdwsError

BYTES_AT_ONCE = 2**20
"""Bytes read at a time: 1 MiB, as the progress bar counts."""

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""


@dataclass(frozen=True)
class Remote:
    """One file: where it is, its checksum in hexadecimal digits, and what it is called here."""

    address: str
    md5: str
    name: str


OFFICIAL: dict[str, Sequence[Remote]] = {
    "cifar10": [
        Remote(f"https://www.cs.toronto.edu/~kriz/{cifar.ARCHIVE}", "c58f30108f718f92721af3b95e74349a", cifar.ARCHIVE),
    ],
    "svhn": [
        Remote(f"http://ufldl.stanford.edu/housenumbers/{file}", md5, file)
        for file, md5 in (
            ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
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
        if (found := _md5(path)) != remote.md5:
            raise GdwsError(f"{path} has md5 {found}: expected {remote.md5}, delete it to download it again")
        return
    part = path.with_name(f"{path.name}.part")
    _receive(remote, part)
    if (found := _md5(part)) != remote.md5:
        part.unlink()
        raise GdwsError(f"{remote.address} gave a file of md5 {found}: expected {remote.md5}, so it was deleted")
    os.replace(part, path)


def _receive(remote: Remote, part: Path) -> None:
    """Bring the part to its full length, from where it ends if the server can."""
    there = part.stat().st_size if part.exists() else 0
    request = Request(remote.address, headers={"Range": f"bytes={there}-"} if there else {})
    try:
        response: HTTPResponse = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if there and error.code == 416:  # nothing is left beyond what is there: it is whole, or of another file
            if _md5(part) != remote.md5:
                part.unlink()
                _receive(remote, part)
            return
        raise GdwsError(f"{remote.address} answered {error.code} {error.reason}: expected the file") from None
    except (OSError, HTTPException) as error:
        raise GdwsError(
            f"cannot reach {remote.address} ({getattr(error, 'reason', error)}): try the same command again later"
        ) from None
    with response:
        continued = there > 0 and (response.headers["Content-Range"] or "").startswith(f"bytes {there}-")
        if response.status != 200 and not continued:
            raise GdwsError(f"{remote.address} answered {response.status}: expected the file, or its rest from byte {there}")
        total = None if response.length is None else -(-response.length // BYTES_AT_ONCE)
        with part.open("ab" if continued else "wb") as file:
            for chunk in track(_chunks(response, remote.address), f"{remote.name}, MiB", total):
                file.write(chunk)


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


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
