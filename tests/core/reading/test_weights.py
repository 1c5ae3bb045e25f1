"""Weights in files of strangers: what takes more memory than it should, and tensors that no network has."""

import os
import re
import subprocess
import sys
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gdws.core.errors import GdwsError
from gdws.core.reading.weights import load_weights, read_weights


def nested(levels):
    inner = {"w": torch.zeros(1)}
    for _ in range(levels):
        inner = {"model": inner}
    return inner


def around_itself():
    endless = {}
    endless["model"] = endless
    return endless


TENSORS = {
    "sparse": torch.sparse_coo_tensor([[0], [0]], [1.0], (10**9, 10**9), check_invariants=True),
    "complex": torch.zeros(3, dtype=torch.complex64),
    "float8": torch.zeros(3).to(torch.float8_e4m3fn),
    "unsigned": torch.zeros(3, dtype=torch.uint64),
    "meta": torch.zeros(3, device="meta"),
}


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_that_no_network_has_are_refused(tmp_path, kind, zipped):
    file = tmp_path / "w.pt"
    torch.save({"w": TENSORS[kind]}, file, _use_new_zipfile_serialization=zipped)
    words = r"w.pt holds a \w+ tensor of \w+ on \w+ in 'w': expected plain tensors"
    if not zipped and kind in ("float8", "unsigned"):
        words = "w.pt cannot be read"  # PyTorch's old format does not know them
    with pytest.raises(GdwsError, match=words):
        read_weights(file)


def test_types_of_safetensors_that_no_network_has_are_refused(tmp_path):
    save_file({"w": torch.zeros(3).to(torch.float8_e5m2)}, tmp_path / "w.safetensors")
    with pytest.raises(GdwsError, match="holds a strided tensor of float8_e5m2 on cpu in 'w'"):
        read_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        ({0: torch.zeros(1), "0": torch.ones(1)}, "a dict of a int, 0"),
        (nested(300), "a dict of model"),
        (around_itself(), "a dict of model"),
        ({"w": [torch.zeros(1)]}, "a dict of w"),
        ({("a", ("b",)): 1}, "a dict of a tuple"),
        ({"model": 3}, "a dict of model"),
    ],
)
def test_other_dicts_are_refused(tmp_path, content, holds):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(GdwsError, match=f"w.pt holds {holds}: expected a state dict"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_views_of_one_small_storage_count_as_much_as_their_copies(tmp_path, monkeypatch, zipped):
    """Bug: a file of 4 MB took 17 GB."""
    file = tmp_path / "w.pt"
    torch.save({"head": torch.zeros(2**10).expand(2**20, 2**10)}, file, _use_new_zipfile_serialization=zipped)
    assert file.stat().st_size < 10_000
    with pytest.raises(GdwsError, match=r"w.pt would take 4,294,967,296 bytes of memory: expected at most 1,073,741,824"):
        read_weights(file)
    monkeypatch.setenv("GDWS_MAX_BYTES", str(5 * 2**30))
    assert read_weights(file)["head"].shape == (2**20, 2**10)


def repacked(source, target, change=lambda name, content: content):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member.filename, old.read(member)))


def test_packed_storages_are_refused_by_what_they_unpack_to(tmp_path, monkeypatch):
    monkeypatch.setenv("GDWS_MAX_BYTES", "1000000")
    torch.save({"w": torch.zeros(2**20)}, tmp_path / "plain.pt")
    repacked(tmp_path / "plain.pt", tmp_path / "w.pt")
    assert (tmp_path / "w.pt").stat().st_size < 10_000
    with pytest.raises(GdwsError, match=r"w.pt would take 4,19\d,\d{3} bytes"):
        read_weights(tmp_path / "w.pt")
    assert read_weights(tmp_path / "plain.pt")["w"].shape == (2**20,)  # as large as it says


def test_a_storage_that_is_not_there_is_no_storage(tmp_path):
    torch.save({"w": torch.zeros(4)}, tmp_path / "small.pt")
    larger = b"J\x00\x00\x00\x10"  # 2**28 in the pickle's words, for 4
    repacked(
        tmp_path / "small.pt",
        tmp_path / "w.pt",
        lambda name, content: content.replace(b"K\x04", larger) if name.endswith("data.pkl") else content,
    )
    with pytest.raises(GdwsError, match=r"w.pt declares 1,073,741,\d+ bytes of tensors: expected at most its own"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("text", [b"\0" * 10**6, b"\0" * 10**6 + b"\n", b"x" * 10**6 + b"\nx\n.", b"(" * 10**6])
def test_a_pickle_of_one_long_name_takes_no_time(tmp_path, text):
    """Bug: PyTorch looked through it for hours."""
    torch.save({"w": torch.zeros(4)}, tmp_path / "small.pt")
    repacked(
        tmp_path / "small.pt",
        tmp_path / "w.pt",
        lambda name, content: b"\x80\x02c" + text if name.endswith("data.pkl") else content,
    )
    with pytest.raises(GdwsError, match=r"w.pt cannot be read"):
        read_weights(tmp_path / "w.pt")


READING = """
import resource, sys
from pathlib import Path
from gdws.core.reading.weights import read_weights
resource.setrlimit(resource.RLIMIT_DATA, (2 * 10**9,) * 2)
read_weights(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"\x80\x02}r\xff\xff\xff\x7f.",
            r"(holds a dict of nothing|cannot be read)",
        ),  # an entry of the memo, far behind all others
        (b"\x80\x02\x96" + (2**40).to_bytes(8, "little") + b".", r"cannot be read"),  # so many bytes
        (b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"K\x01s.", r"more than 100 tuples inside one another"),
        (b"\x80\x02" + b"]" * 6_000_000 + b".", r"has more than 5,000,000 parts"),
    ],
    ids=["memo", "length", "tuples", "parts"],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_take_no_more_memory_than_they_are_worth(tmp_path, content, words, zipped):
    """Bugs: an index of some bytes took gigabytes, and the hash of tuples inside tuples ended the process."""
    torch.save({"w": torch.zeros(4)}, tmp_path / "small.pt", _use_new_zipfile_serialization=zipped)
    if zipped:
        repacked(tmp_path / "small.pt", tmp_path / "w.pt", lambda name, old: content if name.endswith("data.pkl") else old)
    else:
        old = (tmp_path / "small.pt").read_bytes()
        (tmp_path / "w.pt").write_bytes(old[: old.index(b"\x80\x02}q\x00X\x01\x00\x00\x00w")] + content)
    done = subprocess.run([sys.executable, "-c", READING, str(tmp_path / "w.pt")], capture_output=True, text=True)
    assert done.returncode == 1, done
    assert re.search(rf"GdwsError: \S+w.pt .*{words}", done.stderr), done.stderr[-300:]


def test_an_old_file_declares_no_more_than_it_holds(tmp_path):
    """Bug: PyTorch asked for as much memory as the file said, and only then read it."""
    weight = torch.zeros(4)
    torch.save({"w": weight, "again": weight[:2]}, tmp_path / "small.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "small.pt").read_bytes()
    place = content.index(b"cpu") + content[content.index(b"cpu") :].index(b"K\x04")
    (tmp_path / "w.pt").write_bytes(content[:place] + b"\x8a\x05\x00\x00\x00\x00\x10" + content[place + 2 :])
    with pytest.raises(GdwsError, match=r"w.pt declares 274,877,906,944 bytes of tensors: expected at most its own \d+"):
        read_weights(tmp_path / "w.pt")


def test_a_tensor_reaches_no_further_than_its_storage(tmp_path):
    """Bug: PyTorch makes the storage of an old file larger for it."""
    torch.save({"w": torch.zeros(3, 5)}, tmp_path / "small.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "small.pt").read_bytes()
    shape = content.index(b"K\x03K\x05\x86")
    (tmp_path / "w.pt").write_bytes(content[:shape] + b"J\x00\x00\x00\x20K\x05\x86" + content[shape + 5 :])
    with pytest.raises(
        GdwsError, match=r"w.pt cannot be read \(a tensor of shape .536870912, 5. reaches beyond its storage of 15"
    ):
        read_weights(tmp_path / "w.pt")


def test_a_member_that_was_damaged_is_found_by_its_checksum(tmp_path):
    """Bug: PyTorch reads other weights without a word."""
    torch.save({"w": torch.full((64,), 7.0)}, tmp_path / "w.pt")
    content = bytearray((tmp_path / "w.pt").read_bytes())
    content[content.index(b"\x00\x00\xe0\x40" * 8) + 2] ^= 1
    (tmp_path / "w.pt").write_bytes(content)
    assert torch.load(tmp_path / "w.pt")["w"].unique().numel() == 2
    with pytest.raises(GdwsError, match=r"w.pt holds 'w/data/0' with a wrong checksum: expected"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("value", ["x", "-1", "0", "1e9", "1" * 30, "²"])
def test_limits_that_are_no_numbers_are_refused(tmp_path, monkeypatch, value):
    monkeypatch.setenv("GDWS_MAX_BYTES", value)
    torch.save({"w": torch.zeros(4)}, tmp_path / "w.pt")
    with pytest.raises(GdwsError, match=r"GDWS_MAX_BYTES is .*: expected a whole number of bytes, such as 1073741824"):
        read_weights(tmp_path / "w.pt")


def test_pipes_and_folders_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    for path in (tmp_path / "pipe.pt", tmp_path, tmp_path / ("a" * 5000)):
        with pytest.raises(GdwsError, match="there is no file"):
            read_weights(path)


def test_damaged_files_of_every_kind_are_told_in_a_sentence(tmp_path):
    """A few hundred mutants: whatever else is raised would be a traceback."""
    random = np.random.default_rng(0)
    state = {"conv.weight": torch.rand(4, 3, 3, 3), "bn.num_batches_tracked": torch.tensor(3)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "zip.pt")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file(state, tmp_path / "plain.safetensors")
    for file in list(tmp_path.iterdir()):
        whole = file.read_bytes()
        for _ in range(100):
            mutant = bytearray(whole)
            for place in random.integers(0, len(whole), random.integers(1, 8)):
                mutant[place] = random.integers(256)
            file.write_bytes(mutant)
            with suppress(GdwsError):
                read_weights(file)


@pytest.mark.parametrize("count", [2.5, 1e30, float("nan"), -float("inf")])
def test_a_counter_that_is_no_whole_number_is_refused(count):
    """Bug: it became one without a word. Where it is one, as of a state dict that was made half as a whole, it is taken."""
    model = nn.BatchNorm2d(3)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    load_weights(model, {**weights, "num_batches_tracked": torch.tensor(2.0).half()}, "the file")
    assert model.num_batches_tracked == 2
    with pytest.raises(
        GdwsError, match=r"the file holds torch\.float64 in num_batches_tracked that is not whole: expected torch"
    ):
        load_weights(model, {**weights, "num_batches_tracked": torch.tensor(count).double()}, "the file")
