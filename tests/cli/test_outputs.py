"""What the commands write: looked at before the work, whole or not there, and in the place of nothing but their own."""

import json
import os

import pytest

OWN = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
"""
MISSING = "missing.py:make"
"""A model that is missed as soon as the work begins."""
COMMANDS = {
    "demo": ["demo", "--images", 1],
    "inspect": ["inspect", MISSING],
    "compress": ["compress", MISSING, "--out", "new"],
    "evaluate": ["evaluate", MISSING],
    "export": ["export", MISSING, "--out", "new.onnx"],
    "bench": ["bench", MISSING],
    "train": ["train", MISSING, "--data", "npz:missing.npz", "--out", "new"],
    "tune": ["tune", MISSING, "--data", "npz:missing.npz", "--out", "new"],
    "prune": ["prune", MISSING, "--data", "npz:missing.npz", "--out", "new"],
    "reproduce": ["reproduce", "--out", "new"],
}


@pytest.fixture
def places(run, tmp_path, monkeypatch):
    """Places in which nothing may be written."""
    monkeypatch.setattr("gdws.cli.demo.demo", lambda *_: pytest.fail("the work began"))
    (tmp_path / "thesis.json").write_text('{"title": "Years"}')
    (tmp_path / "link.json").symlink_to("thesis.json")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("years")
    (tmp_path / "thesis.onnx").write_text("no graph")
    os.mkfifo(tmp_path / "fifo.json")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_checked_before_the_work(run, places, command):
    for place, words in {
        "thesis.json": "is not a record that gdws wrote",
        "link.json": "symbolic link or a device",
        "fifo.json": "symbolic link or a device",
        "folder": "is a folder",
        "none/e.json": "there is no folder none",
    }.items():
        status, text = run(*COMMANDS[command], "--json", place)
        assert status == 2
        assert words in text
        assert len(text.splitlines()) == 1
    assert json.loads((places / "thesis.json").read_text()) == {"title": "Years"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["compress", MISSING, "--out", "folder"], "folder exists: choose another folder"),
        (["compress", MISSING, "--out", "folder", "--force"], "folder holds thesis.tex, which gdws did not write"),
        (["compress", MISSING, "--out", "thesis.onnx", "--force"], "thesis.onnx is a file: expected a folder"),
        (["compress", MISSING, "--out", "thesis.onnx/out"], "cannot write"),
        (["export", MISSING, "--out", "thesis.onnx"], "thesis.onnx exists: choose another file"),
        (["export", MISSING, "--out", "thesis.onnx", "--force"], "thesis.onnx exists and is not an ONNX file"),
        (["export", MISSING, "--out", "folder", "--force"], "folder is a folder"),
        (["evaluate", MISSING, "--checkpoint", "fifo.json", "--resume"], "symbolic link or a device"),
        (["evaluate", MISSING, "--checkpoint", "link.json", "--resume"], "symbolic link or a device"),
        (["train", MISSING, "--data", "npz:missing.npz", "--out", "thesis.onnx"], "cannot write to the folder thesis.onnx"),
        (["prune", MISSING, "--data", "npz:missing.npz", "--out", "thesis.onnx"], "cannot write to the folder thesis.onnx"),
        (["reproduce", "--out", "thesis.onnx"], "cannot write to the folder thesis.onnx"),
    ],
)
def test_outputs_are_checked_before_the_work(run, places, words, sentence):
    status, text = run(*words)
    assert status == 2
    assert sentence in text
    assert sorted(path.name for path in places.iterdir()) == ["fifo.json", "folder", "link.json", "thesis.json", "thesis.onnx"]


def test_a_result_is_written_over_by_another(run, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    for _ in range(2):
        assert run("inspect", "own.py:make", "--json", "r.json")[0] == 0
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["format"], record["model"]) == ("gdws result 1", "own.py:make")


@pytest.mark.parametrize(
    "words",
    [
        ["compress", "own.py:make", "--out", "DISK/fast", "--method", "uniform", "--images", 4, "--eps", 0, "--no-cache"],
        ["export", "own.py:make", "--out", "DISK/m.onnx", "--n", 2, "--eps", 0],
        ["evaluate", "own.py:make", "--n", 4, "--steps", 0, "--json", "DISK/e.json"],
        ["evaluate", "own.py:make", "--n", 4, "--steps", 0, "--checkpoint", "DISK/run.jsonl"],
        ["train", "own.py:make", "--data", "demo", "--images", 20, "--epochs", 1, "--steps", 1, "--out", "DISK/out"],
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(run, tmp_path, full_disk, words):
    (tmp_path / "own.py").write_text(OWN)
    if not os.path.ismount(full_disk):
        pytest.skip("a disk that is full needs root")
    with (full_disk / "filler").open("wb", buffering=0) as file:
        file.write(bytes(2**18))  # no more than fits
    status, text = run(*(str(word).replace("DISK", str(full_disk)) for word in words))
    assert status == 2, text
    assert "No space left on device" in text.splitlines()[-1]
    assert [path for path in full_disk.rglob("*") if path.name != "filler" and path.is_file() and path.stat().st_size] == []
    assert list(full_disk.rglob(".*")) == []
