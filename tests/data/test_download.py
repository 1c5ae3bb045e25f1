"""Downloads from a real server on this machine: one that behaves, and all the ways in which others do not."""

import hashlib
import os
import re
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from gdws import cli
from gdws.core import progress
from gdws.core.errors import GdwsError
from gdws.data import download
from gdws.data.download import OFFICIAL, Remote, fetch

CONTENT = np.random.default_rng(0).bytes(10_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT at every address and remembers the Range of each request, None for all of it."""

    content = CONTENT
    ranges = True
    length = True
    broken_after: int | None = None
    breaks = "closed"  # or "reset", or "silent"
    status: int | None = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.quit = threading.Event()

    def official(self, name="data.bin"):
        return {"some": [Remote(f"http://127.0.0.1:{self.server_port}/{name}", name, len(CONTENT), SHA256)]}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        server, wanted = self.server, self.headers["Range"]
        server.asked.append(wanted)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
        if server.status or start >= len(server.content):
            self.send_error(server.status or 416)
            return
        body = server.content[start:]
        self.send_response(206 if wanted and server.ranges else 200)
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        if wanted and server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.end_headers()
        if server.broken_after is None:
            self.wfile.write(body)
            return
        self.wfile.write(body[: server.broken_after])
        self.wfile.flush()
        if server.breaks == "silent":
            server.quit.wait(30)
        if server.breaks == "reset":  # an abrupt end, once the client has read what was sent
            server.quit.wait(0.3)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "BYTES_AT_ONCE", 1000)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.quit.set()
        server.shutdown()
        thread.join()


def names(folder):
    return sorted(file.name for file in folder.iterdir())


class Counting:
    def __init__(self):
        self.lines, self.done = [], 0

    def start(self, label, total):
        self.lines.append((label, total))

    def advance(self, note):
        self.done += 1

    def stop(self):
        pass


def test_the_right_file_arrives_once(server, tmp_path):
    place, display = tmp_path / "new" / "folder", Counting()
    with progress.shown(display):
        fetch("some", place, server.official())
    assert (place / "data.bin").read_bytes() == CONTENT
    assert names(place) == ["data.bin"]
    assert (display.lines, display.done) == ([("data.bin, MiB", 10)], 10)
    fetch("some", place, server.official())
    assert server.asked == [None]


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    server.content = b"x" + CONTENT[1:]
    found = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(GdwsError, match=f"gave a file of SHA-256 {found}: expected {SHA256}"):
        fetch("some", tmp_path, server.official())
    assert names(tmp_path) == []


def test_a_file_of_the_user_is_not_overwritten(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"mine")
    with pytest.raises(GdwsError, match=f"data.bin has SHA-256 .*: expected {SHA256}, delete it"):
        fetch("some", tmp_path, server.official())
    assert (tmp_path / "data.bin").read_bytes() == b"mine"
    assert server.asked == []


@pytest.mark.parametrize("breaks", ["closed", "reset", "silent"])
def test_a_broken_connection_is_resumed(server, tmp_path, monkeypatch, breaks):
    monkeypatch.setattr(download, "TIMEOUT", 0.5)
    server.broken_after, server.breaks = 4000, breaks
    with pytest.raises(GdwsError, match=r"broke after 4,000 of 10,000 bytes.*the same command resumes it"):
        fetch("some", tmp_path, server.official())
    assert names(tmp_path) == ["data.bin.part"]
    with pytest.raises(GdwsError, match="broke after 4,000 of 6,000 bytes"):
        fetch("some", tmp_path, server.official())
    server.broken_after = None
    fetch("some", tmp_path, server.official())
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["data.bin"]
    assert server.asked == [None, "bytes=4000-", "bytes=8000-"]  # only the rest


def test_a_server_without_ranges_starts_again(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:3000])
    server.ranges = False
    fetch("some", tmp_path, server.official())
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert server.asked == ["bytes=3000-"]


def test_a_part_of_another_file_is_found_out_and_the_next_try_is_fresh(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(b"x" * 3000)
    with pytest.raises(GdwsError, match="gave a file of SHA-256"):
        fetch("some", tmp_path, server.official())
    fetch("some", tmp_path, server.official())
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(("part", "asked"), [(CONTENT, []), (CONTENT + b"more", [None])])
def test_a_part_that_is_whole_or_longer(server, tmp_path, part, asked):
    (tmp_path / "data.bin.part").write_bytes(part)
    fetch("some", tmp_path, server.official())
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["data.bin"]
    assert server.asked == asked


def test_a_length_that_is_not_announced_is_left_to_the_checksum(server, tmp_path):
    server.length = False
    fetch("some", tmp_path, server.official())
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("length", [True, False])
def test_no_more_arrives_than_the_file_has(server, tmp_path, length):
    """Bug: a server could fill the disk."""
    server.content, server.length = CONTENT * 3, length
    with pytest.raises(GdwsError, match=r"announces 30,000 bytes: expected 10,000|more than the 10,000 bytes of the file"):
        fetch("some", tmp_path, server.official())
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe", "folder"])
def test_a_part_leads_nowhere_else(server, tmp_path, kind):
    """Bug: a link in a folder that others can write to chose the file that was overwritten."""
    mine, part = tmp_path / "mine", tmp_path / "data" / "data.bin.part"
    part.parent.mkdir()
    if kind != "dangling link":
        mine.write_bytes(b"mine")
    {"hard link": part.hardlink_to, "pipe": lambda _: os.mkfifo(part), "folder": lambda _: part.mkdir()}.get(
        kind, part.symlink_to
    )(mine)
    with pytest.raises(GdwsError, match=r"data.bin.part is (a link|no file of its own): expected|cannot write to"):
        fetch("some", part.parent, server.official())
    assert server.asked == []
    assert mine.read_bytes() == b"mine" if kind != "dangling link" else not mine.exists()


def test_answers_that_are_no_file(server, tmp_path):
    server.status = 404
    with pytest.raises(GdwsError, match=r"data.bin answered 404 Not Found: expected the file"):
        fetch("some", tmp_path, server.official())
    with pytest.raises(GdwsError, match="'mnist' cannot be downloaded: expected cifar10 or svhn"):
        fetch("mnist", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(GdwsError, match=r"cannot write to .*file"):
        fetch("some", tmp_path / "file", server.official())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = {"some": [Remote(f"http://127.0.0.1:{free.getsockname()[1]}/x", "x", 1, SHA256)]}
        with pytest.raises(GdwsError, match=r"cannot reach http://127.0.0.1.*Connection refused"):
            fetch("some", tmp_path, nobody)
    assert names(tmp_path) == ["file"]


def test_the_official_table():
    (archive,) = OFFICIAL["cifar10"]
    assert (archive.address, archive.name) == (
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "cifar-10-python.tar.gz",
    )
    assert [remote.address for remote in OFFICIAL["svhn"]] == [
        "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
        "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
    ]
    for remote in (archive, *OFFICIAL["svhn"]):  # what comes over http is known by nothing else
        assert re.fullmatch("[0-9a-f]{64}", remote.sha256)
        assert 10**7 < remote.size < 10**9


def test_the_command(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(OFFICIAL, "svhn", server.official()["some"])
    for name, status, words in (("svhn", 0, f"--data svhn:{tmp_path}"), ("mnist", 2, "'mnist' cannot be downloaded")):
        monkeypatch.setattr(sys, "argv", ["gdws", "download", name, str(tmp_path)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == status
        captured = capsys.readouterr()
        assert words in captured.out + captured.err
    assert names(tmp_path) == ["data.bin"]
