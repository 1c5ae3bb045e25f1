"""What is written, what is replaced, what a kill leaves; and what is kept in a cache folder."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import gdws
from gdws.core import files
from gdws.core.errors import GdwsError
from gdws.core.files import Kind, check_file, limit_cache, locked, new_folder, write_atomically

MEMBERS = ("gdws.json", "model.safetensors")
OURS = '{"format": "gdws model 2"}'


def make_folder(path, text=OURS, force=False):
    with new_folder(path, force, MEMBERS) as folder:
        (folder / "gdws.json").write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def name(letter):
    return f"latency-{16 * letter}.json" if letter == "b" else f"statistics-{32 * letter}.safetensors"


def test_the_oldest_of_a_cache_go_first_and_others_files_stay(tmp_path):
    """Bugs: a file that was dated in the future stayed for ever, and what had just been written went; so did files of others,
    called statistics-2026.safetensors."""
    mine = ["statistics-2026.safetensors", "latency-of-doors.json", "notes.txt"]
    for age, each in enumerate([name("c"), name("b"), name("a"), *mine]):
        (tmp_path / each).write_bytes(bytes(100))
        os.utime(tmp_path / each, (1000 - age, 1000 - age))
    (tmp_path / name("d")).mkdir()
    (tmp_path / name("e")).symlink_to(tmp_path / "notes.txt")
    mine += [name("d"), name("e")]
    left = lambda: sorted({path.name for path in tmp_path.iterdir()} - set(mine))  # noqa: E731
    limit_cache(tmp_path, 300)
    assert len(left()) == 3
    limit_cache(tmp_path, 299)
    assert left() == [name("b"), name("c")]
    os.utime(tmp_path / name("b"), (4e9, 4e9))
    limit_cache(tmp_path, 1)  # what has just been written is not deleted
    assert left() == [name("c")]
    assert {path.name for path in tmp_path.iterdir()} == {name("c"), *mine}
    limit_cache(tmp_path / "none", 1)


def test_only_what_gdws_wrote_is_replaced(tmp_path):
    file = tmp_path / "r.json"
    for content in ("", OURS, '{\n "format": "gdws result 1",\n "rows": []}'):
        file.write_text(content)
        write_atomically(file, OURS, Kind.RECORD)
        assert file.read_text() == OURS
    for foreign in ('{"name": "my-package"}', "A thesis", "[1, 2]", '{"format": "another"}'):
        file.write_text(foreign)
        with pytest.raises(GdwsError, match=r"r.json exists and is not a record that gdws wrote: expected a name that is free"):
            write_atomically(file, OURS, Kind.RECORD)
        assert file.read_text() == foreign
    file.write_text(OURS)
    with pytest.raises(GdwsError, match="is not an ONNX file"):
        write_atomically(file, b"\x08\x0a", Kind.ONNX)
    assert file.read_text() == OURS


def test_links_devices_and_folders_are_not_written_to(tmp_path):
    (tmp_path / "thesis").write_text("")
    (tmp_path / "link").symlink_to("thesis")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    if os.geteuid() == 0:
        os.mknod(tmp_path / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
    else:
        os.mkfifo(tmp_path / "device")
    for name, words in {
        "link": "symbolic link or a device",
        "dangling": "symbolic link or a device",
        "fifo": "symbolic link or a device",
        "device": "symbolic link or a device",
        "folder": "is a folder",
        "none/file": "there is no folder",
    }.items():
        with pytest.raises(GdwsError, match=words):
            write_atomically(tmp_path / name, OURS)
    assert names(tmp_path) == ["dangling", "device", "fifo", "folder", "link", "thesis"]
    assert not (tmp_path / "device").is_file()
    assert (tmp_path / "thesis").read_text() == ""
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda out: (out / "thesis.tex").write_text("years"), "holds thesis.tex, which gdws did not write"),
        (lambda out: (out / "more").mkdir(), "holds more, which gdws did not write"),
        (
            lambda out: (out / "model.safetensors").symlink_to("/etc/passwd"),
            "holds model.safetensors, which gdws did not write",
        ),
        (lambda out: (out / "gdws.json").write_text("{}"), "no gdws.json that gdws wrote"),
        (lambda out: (out / "gdws.json").rename(out / "model.safetensors"), "holds model.safetensors and no gdws.json"),
    ],
)
def test_force_replaces_no_folder_with_anything_foreign(tmp_path, make, words):
    out = tmp_path / "out"
    make_folder(out)
    make(out)
    before = {path.name: path.is_file() and path.read_bytes() for path in out.iterdir()}
    with pytest.raises(GdwsError, match=words):
        make_folder(out, force=True)
    assert {path.name: path.is_file() and path.read_bytes() for path in out.iterdir()} == before
    assert names(tmp_path) == ["out"]


def test_force_replaces_a_folder_of_gdws_and_an_empty_one_but_no_link(tmp_path):
    out, link = tmp_path / "out", tmp_path / "link"
    out.mkdir()
    with pytest.raises(GdwsError, match=r"exists: choose another folder, or overwrite it with --force"):
        make_folder(out)
    make_folder(out, force=True)
    make_folder(out, '{"format": "gdws model 3"}', force=True)
    assert (out / "gdws.json").read_text() == '{"format": "gdws model 3"}'
    link.symlink_to(out)
    with pytest.raises(GdwsError, match="symbolic link"):
        make_folder(link, force=True)
    assert names(tmp_path) == ["link", "out"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_with_and_without_the_systems_help(tmp_path, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    make_folder(tmp_path / "out", OURS)
    make_folder(tmp_path / "out", OURS + " ", force=True)
    assert (tmp_path / "out" / "gdws.json").read_text() == OURS + " "
    assert names(tmp_path) == ["out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from gdws.core import files
if {fallback}:
    files._exchange = lambda *_: False
rename, left = os.rename, {renames}
def stop_at(*arguments):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*arguments)
os.rename = os.replace = stop_at
with files.new_folder(Path("out"), True, ("gdws.json",)) as folder:
    (folder / "gdws.json").write_text('{{"format": "gdws new"}}')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_between_two_renames_loses_nothing(tmp_path):
    found = {}
    for fallback, renames in ((False, 0), (True, 0), (True, 2)):
        folder = tmp_path / f"{fallback}{renames}"
        folder.mkdir()
        make_folder(folder / "out")
        code = KILLED.format(fallback=fallback, renames=renames)
        killed = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        assert killed.returncode == -signal.SIGKILL
        found[fallback, renames] = names(folder)
        write_atomically(folder / "other.json", OURS)  # the next to write there
        assert names(folder) == ["other.json", "out"]
        assert (folder / "out" / "gdws.json").read_text() == ('{"format": "gdws new"}' if not fallback else OURS)
    assert found[False, 0] == ["out"]  # at one stroke
    assert len(found[True, 0]) == 2
    assert len(found[True, 2]) == 1  # a hidden one alone, which was put back


def test_leftovers_of_the_living_stay(tmp_path):
    write, go = threading.Event(), threading.Event()

    def slow():
        with new_folder(tmp_path / "out", False, MEMBERS) as folder:
            (folder / "gdws.json").write_text(OURS)
            write.set()
            go.wait(30)

    thread = threading.Thread(target=slow)
    thread.start()
    write.wait(30)
    (stranger := tmp_path / ".notes.0123abcd.gdws.txt").touch()
    (tmp_path / ".gone.json.01234567.gdws").mkdir(0o700)
    (link := tmp_path / ".gone.json.76543210.gdws").symlink_to(tmp_path)
    write_atomically(tmp_path / "other.json", OURS)
    assert len(names(tmp_path)) == 4  # .out.*.gdws, other.json and the strangers
    go.set()
    thread.join()
    assert names(tmp_path) == [link.name, stranger.name, "other.json", "out"]


def test_threads_save_into_one_folder(tmp_path):
    """Bug: hidden folders stayed."""
    failures, start = [], threading.Barrier(4)

    def work(number):
        start.wait()
        for _ in range(20):
            try:
                make_folder(tmp_path / "out", OURS + " " * number, force=True)
            except GdwsError as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "gdws.json").read_text().strip() == OURS


def test_impossible_names_are_one_sentence(tmp_path):
    for name in ("a\0b", 300 * "n", "file/name"):
        (tmp_path / "file").touch()
        with pytest.raises(GdwsError):
            write_atomically(tmp_path / name, OURS)
        with pytest.raises(GdwsError):
            make_folder(tmp_path / name)
        with pytest.raises(GdwsError):
            files.ensure_folder(tmp_path / name)
    assert names(tmp_path) == ["file"]


def test_who_comes_second_without_force_is_told(tmp_path):
    with pytest.raises(GdwsError, match="out exists: choose another folder"), new_folder(tmp_path / "out", False, MEMBERS):
        make_folder(tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "gdws.json").read_text() == OURS


def test_files_on_the_way_of_a_killed_process_are_cleared_away(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os; from gdws.core.files import scratch_folder; f = scratch_folder(); f.__enter__(); os._exit(1)"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment)
    assert len(names(tmp_path)) == 1
    with files.scratch_folder() as folder:
        assert folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert names(tmp_path) == [folder.name]
    assert names(tmp_path) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with (
        pytest.raises(GdwsError, match=r"cannot write temporary files .*expected room where TMPDIR says"),
        files.scratch_folder(),
    ):
        pass


def test_many_threads_write_the_same_files(tmp_path):
    failures = []

    def work(number):
        try:
            for turn in range(30):
                write_atomically(tmp_path / f"{turn % 3}.json", OURS + " " * number, Kind.RECORD)
        except GdwsError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert names(tmp_path) == ["0.json", "1.json", "2.json"]


def test_everything_has_the_permissions_that_the_umask_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask of all threads was changed"))
    (tmp_path / "plain").touch()
    (tmp_path / "folder").mkdir()
    write_atomically(tmp_path / "file", OURS)
    gdws.save(gdws.models.embedded(), tmp_path / "saved", export=False)
    file, folder = ((tmp_path / name).stat().st_mode for name in ("plain", "folder"))
    assert (tmp_path / "file").stat().st_mode == file
    assert (tmp_path / "saved").stat().st_mode == folder
    assert {path.stat().st_mode for path in (tmp_path / "saved").iterdir()} == {file}


def test_a_full_disk_is_told_and_leaves_what_was_there(full_disk):
    make_folder(full_disk / "out")
    write_atomically(full_disk / "r.json", OURS, Kind.RECORD)
    before = names(full_disk)
    for write in (
        lambda: write_atomically(full_disk / "r.json", OURS + " " * 2**20, Kind.RECORD),
        lambda: gdws.save(gdws.models.embedded(), full_disk / "model"),
        lambda: gdws.save(gdws.models.embedded(), full_disk / "out", force=True),
    ):
        with pytest.raises(GdwsError, match=r"cannot write .*(No space left|File too large)"):
            write()
        assert names(full_disk) == before
        assert (full_disk / "out" / "gdws.json").read_text() == (full_disk / "r.json").read_text() == OURS


def test_a_lock_is_told_at_once_and_leaves_nothing(tmp_path):
    begin = time.monotonic()
    with locked(tmp_path / ".lock", "trains in out"):
        with (
            pytest.raises(GdwsError, match="another process trains in out: expected it to end first"),
            locked(tmp_path / ".lock", "trains in out"),
        ):
            pass
        assert names(tmp_path) == [".lock"]
    assert time.monotonic() - begin < 5
    assert names(tmp_path) == []
    with pytest.raises(GdwsError, match="there is no folder"), locked(tmp_path / "none" / ".lock", ""):
        pass
    assert names(tmp_path) == []


def test_a_file_that_is_write_protected_is_not_replaced(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("nothing is protected from root")
    (tmp_path / "r.json").write_text(OURS)
    (tmp_path / "r.json").chmod(0o444)
    with pytest.raises(GdwsError, match="write-protected"):
        check_file(tmp_path / "r.json", Kind.RECORD)
    tmp_path.chmod(0o555)
    with pytest.raises(GdwsError, match="cannot write to the folder"):
        check_file(tmp_path / "new.json", Kind.RECORD)
    tmp_path.chmod(0o755)
