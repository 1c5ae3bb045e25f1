"""The first hour with a network of one's own: a folder made from FILE.py:FACTORY, and what a file may do wrong."""

import json
import os
import sys

import numpy as np
import pytest
from torch import nn

import gdws
from gdws import data
from gdws.cli import options
from gdws.compression import storage
from gdws.core.errors import GdwsError

NETS = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Settings:
    width: int = 12

def build(settings):
    width = settings.width
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.Hardswish(), nn.Conv2d(width, width, 3, padding=1)]
    layers += [nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * width, 10))
"""
MINE = """
from __future__ import annotations
from dataclasses import dataclass
from pathlib import Path
import torch
from nets import Settings, build

@dataclass
class More(Settings):
    seed: int = 0

def make():
    Path("ran").touch()
    torch.manual_seed(More().seed)
    return build(More())

def branching():
    network = make()
    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network
        def forward(self, x):
            x = self.inner(x)
            return x if x.sum() > 0 else 2 * x
    return Branching()
"""
FRAGILE = """
import torch
from torch import nn

class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x):  # decisions hang on differences that no eye sees
        return self.head(torch.relu(self.conv(torch.sin(60 * self.stem(x)))).mean((2, 3)) * 50)
"""
COMPRESS = ["--method", "uniform", "--macs", 0.5, "--images", 4, "--eps", 0, "--data", "npz:d.npz"]


@pytest.fixture
def project(run, tmp_path):
    """A folder with mine.py, a file beside it that it imports, and images of 8 x 8 pixels."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "nets.py").write_text(NETS)
    sys.modules.pop("nets", None)
    part = data.load("demo", "test").take(12)
    np.savez(tmp_path / "d.npz", images=part.images.permute(0, 2, 3, 1).numpy()[:, ::4, ::4], labels=part.labels.numpy())
    np.savez(tmp_path / "t.npz", images=part.images.permute(0, 2, 3, 1).numpy()[:, 1::4, ::4], labels=part.labels.numpy())
    return tmp_path


def ran(folder):
    """Whether the file was run since this was asked before."""
    before = (folder / "ran").exists()
    (folder / "ran").unlink(missing_ok=True)
    return before


def test_a_folder_made_from_a_file_needs_nothing_but_itself(run, project):
    """Bug: every command refused it. And nothing that it names is run."""
    status, text = run("compress", "mine.py:make", "--out", "fast", *COMPRESS)
    assert status == 0, text
    assert sorted(path.name for path in (project / "fast").iterdir()) == ["gdws.json", "model.onnx", "model.safetensors"]
    record = storage.read_record("fast")
    assert (record["format"], record["base"], record["exported"]) == ("gdws model 3", "mine.py:make", True)
    assert ran(project)
    quick = ["--warmup", 1, "--repeats", 2]
    for arguments in (
        ["evaluate", "fast", "--data", "npz:t.npz", "--steps", 2, "--json", "alone.json"],
        ["inspect", "fast"],
        ["bench", "fast", "--engine", "onnxruntime", *quick],  # in the size that the folder knows
        ["bench", "fast", "--engine", "torch", *quick],
        ["export", "fast", "--out", "f.onnx", "--data", "npz:t.npz", "--n", 4],
    ):
        status, text = run(*arguments)
        assert status == 0, text
    assert not ran(project)
    (project / "sub").mkdir()
    (project / "mine.py").rename(project / "sub" / "mine.py")
    (project / "nets.py").rename(project / "sub" / "nets.py")
    options = ["--data", "npz:t.npz", "--steps", 2, "--json"]
    assert run("evaluate", "sub/mine.py:make", "fast/", *options, "named.json")[0] == 0
    assert ran(project)
    assert run("evaluate", "fast", "--base", "sub/mine.py:make", *options, "base.json")[0] == 0
    assert ran(project)
    status, text = run("inspect", "fast", "--base", "")
    assert (status, "unknown model ''" in text) == (2, True), text  # was as if none had been named
    found = [json.loads((project / f"{name}.json").read_text())["rows"][-1] for name in ("alone", "named", "base")]
    assert len({(row["natural"], row["robust"]) for row in found}) == 1


def test_layers_come_from_the_base_alone(run, project, monkeypatch):
    """What only a folder names is run when the user allows it, and not where nobody can be asked."""
    assert run("compress", "mine.py:make", "--out", "fast", "--exclude", "5", *COMPRESS)[0] == 0
    assert ran(project)
    again = ["compress", "fast", "--out", "more", "--force", *COMPRESS]
    words = "fast was made from mine.py:make, which is code: expected --base mine.py:make"
    asked = []

    def answer(value):
        monkeypatch.setattr(options, "can_ask", lambda: True)
        monkeypatch.setattr(options.typer, "confirm", lambda text, err: asked.append(text) or value)

    for prepare in (lambda: None, lambda: answer(False)):
        prepare()
        status, text = run(*again)
        assert status == 2
        assert words in " ".join(text.split())
        assert not ran(project)
    answer(True)
    status, text = run(*again)
    assert status == 0, text
    assert ran(project)
    assert asked == ["fast was made from mine.py:make, which is code: run it?"] * 2
    assert storage.read_record("more")["base"] == "mine.py:make"
    assert run(*again, "--base", "mine.py:make")[0] == 0
    assert len(asked) == 2
    record = storage.read_record("more")
    assert record["base"] == "mine.py:make"
    assert record["layers"] == {"3": "gdws", "5": "gdws"}
    assert run("inspect", "more", "--base", "mine.py:make")[0] == 0


@pytest.mark.parametrize(
    "base",
    [
        "timm:hf-hub:stranger/net",
        "timm:local-dir:/tmp",
        "torchvision:../x",
        "hf:stranger/net",
        "http://stranger/net",
        "zoo:tiny\n",
        "\x1b[m",
    ],
)
def test_a_folder_does_not_choose_what_is_fetched(run, project, base, monkeypatch):
    """Bug: timm would have been told to fetch what a stranger's gdws.json names."""
    for function in ("names._from_library", "hub.fetch", "hub.read"):
        monkeypatch.setattr(f"gdws.models.{function}", lambda *_: pytest.fail("a stranger chose"))
    assert run("compress", "mine.py:make", "--out", "fast", *COMPRESS)[0] == 0
    record = json.loads((project / "fast" / "gdws.json").read_text())
    (project / "fast" / "gdws.json").write_text(json.dumps(record | {"base": base}))
    assert run("inspect", "fast")[0] == 0  # by way of model.onnx
    status, text = run("compress", "fast", "--out", "more", *COMPRESS)
    assert status == 2
    assert "which may be fetched from elsewhere: expected --base" in " ".join(text.split())
    assert "\x1b" not in text


def test_torchvision_fetches_no_part_of_a_network(monkeypatch):
    """Detectors and networks for segmentation have the weights of a part fetched if nobody says no."""
    built = []

    class Torchvision:
        __name__ = "torchvision.models"
        segmentation, detection = "segmentation", "detection"

        def list_models(self, module):
            return {"segmentation": ["fcn"], "detection": ["fasterrcnn"]}.get(module, ["resnet18"])

        def get_model(self, name, **options):
            built.append((name, options))
            return nn.Conv2d(3, 4, 3)

    monkeypatch.setitem(sys.modules, "torchvision.models", Torchvision())
    monkeypatch.setitem(sys.modules, "torchvision", Torchvision())
    found = [gdws.models.resolve(f"torchvision:{name}") for name in ("resnet18", "fcn", "fasterrcnn")]
    nothing = {"weights": None, "weights_backbone": None}
    assert built == [("resnet18", {"weights": None}), ("fcn", nothing), ("fasterrcnn", nothing)]
    # Detectors normalize inside.
    assert [isinstance(network, gdws.models.Normalized) for network in found] == [True, True, False]
    with pytest.raises(GdwsError, match="torchvision has no network 'raft'"):
        gdws.models.resolve("torchvision:raft")


def test_tune_takes_a_base(run, project):
    assert run("compress", "mine.py:make", "--out", "fast", *COMPRESS)[0] == 0
    options = ["--data", "npz:d.npz", "--epochs", 1, "--batch", 4, "--steps", 1, "--json", "t.json"]
    status, text = run("tune", "fast", "--out", "none", *options)
    assert status == 2
    assert "expected --base mine.py:make" in " ".join(text.split())
    status, text = run("tune", "fast", "--out", "tuned", "--teacher", "mine.py:make", *options)
    assert status == 0, text
    assert storage.read_record("tuned/model")["base"] == "mine.py:make"
    assert run("evaluate", "tuned/model", "--data", "npz:t.npz", "--steps", 0)[0] == 0


def test_a_network_that_cannot_be_exported_is_saved_and_says_so(run, project):
    status, text = run("compress", "mine.py:branching", "--out", "fast", *COMPRESS)
    assert status == 0, text
    assert "without model.onnx (the model cannot be traced" in text
    assert "commands on it need mine.py:branching" in text
    assert not (project / "fast" / "model.onnx").exists()
    status, text = run("inspect", "fast")
    assert status == 2
    assert "expected --base mine.py:branching" in " ".join(text.split())
    assert run("inspect", "fast", "--base", "mine.py:branching")[0] == 0
    with pytest.raises(GdwsError, match=r"fast has no exported network \(the model cannot be traced for a batch of any size"):
        gdws.load("fast")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_this_name", "f.py:make cannot be run: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def make(:", "f.py:make cannot be run: SyntaxError"),
        ("def make():\n    import nothing_at_all", "f.py:make cannot be run: ModuleNotFoundError: No module named 'nothing_at"),
        ("raise SystemExit(0)", "f.py:make cannot be run: SystemExit: 0"),
        ("import sys\nsys.path.pop(0)\ndef make():\n    sys.exit('no')", "f.py:make cannot be run: SystemExit: no"),
        ("def make():\n    return {'a': 1}", "f.py:make gives a dict: expected a function that returns an nn.Module"),
        ("def other():\n    return None", "f.py has no function make: expected one without arguments that returns"),
        ("def make():\n    return {}['weights']", "f.py:make cannot be run: KeyError: 'weights'"),
        (
            "from torch import nn\nclass Two(nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n        self.conv = nn.Conv2d(3, 8, 3)\n"
            "    def forward(self, x, mask):\n        return self.conv(x).mean((2, 3))\nmake = Two",
            "the model Two cannot be called with one tensor (",
        ),
        (
            "from torch import nn\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 10))",
            "the model cannot run on images of shape (3, 32, 32): mat1 and mat2 shapes cannot be multiplied",
        ),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ["inspect"],
        ["bench", "--repeats", 1],
        ["bench", "--engine", "auto"],
        ["export", "--out", "o"],
        ["compress", "--out", "o"],
        ["evaluate"],
    ],
)
def test_what_a_file_does_wrong_is_one_sentence(run, tmp_path, command, code, words):
    (tmp_path / "f.py").write_text(code)
    status, text = run(command[0], "f.py:make", *command[1:])
    assert status == 2
    assert words in " ".join(text.split())
    said, sentence = text.strip().splitlines()
    assert said == "gdws: f.py:make is code, which is run and may do whatever you may"
    assert sentence.startswith("gdws: ")


def test_code_is_announced_also_beside_a_base(run, project):
    """Bug: what was announced was --base, which is of folders alone."""
    (project / "announced.py").write_text(MINE)
    status, text = run("inspect", "announced.py:make", "--size", 8, "--base", "demo")
    assert (status, "gdws: announced.py:make is code, which is run" in text) == (0, True), text
    assert ran(project)


def test_the_folder_knows_the_size_of_its_images(run, project):
    assert run("compress", "mine.py:make", "--out", "fast", *COMPRESS)[0] == 0
    bench = ["bench", "--warmup", 0, "--repeats", 1]
    assert run("inspect", "fast", "--base", "mine.py:make")[0] == 0
    assert run(*bench, "mine.py:make", "fast")[0] == 0
    for arguments in ([*bench, "mine.py:make"], [*bench, "fast", "--size", 16], [*bench, "mine.py:make", "fast", "--size", 16]):
        status, text = run(*arguments)
        assert status == 2, text
        assert "Traceback" not in text
        assert "images " in text


@pytest.mark.parametrize(
    ("model", "words", "radius", "told"),
    [
        ("fragile.py:Fragile", [], None, True),
        ("fragile.py:Fragile", ["--robust"], 8 / 255, False),
        ("fragile.py:Fragile", ["--eps", "4/255"], 4 / 255, False),
        ("mine.py:make", [], 8 / 255, False),
        ("mine.py:make", ["--no-robust"], None, False),
    ],
)
def test_whether_images_are_attacked_is_looked_up_unless_told(run, project, model, words, radius, told):
    """Bug: images of every network were attacked, which cost an ordinary one points of accuracy."""
    (project / "fragile.py").write_text(FRAGILE)
    settings = ["--method", "paper", "--macs", 0.9, "--images", 8, "--data", "npz:d.npz", "--json", "c.json"]
    status, text = run("compress", model, "--out", "out", *settings, *words)
    assert status == 0, text
    attack = json.loads((project / "c.json").read_text())["plan"]["attack"]
    assert (attack and attack["eps"]) == radius
    assert ("The network has no robustness to keep, so it was calibrated on images as they are" in text) == told


@pytest.mark.filterwarnings("default:what is made of this model")
def test_a_file_for_one_batch_size_says_so(run, project):
    (project / "one.py").write_text(
        "import torch\nfrom torch import nn\nclass One(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.conv = nn.Conv2d(3, 10, 3)\n"
        "    def forward(self, x):\n"
        "        x = self.conv(x)\n        return torch.stack([x[i].mean((1, 2)) for i in range(len(x))])\nmake = One"
    )
    status, text = run("export", "one.py:make", "--out", "one.onnx", "--data", "npz:t.npz", "--n", 3)
    assert status == 0, text
    assert "gdws: what is made of this model takes batches of 1 only: the model cannot be traced for a batch of any" in text
    options = ["--data", "npz:t.npz", "--steps", 1]
    status, text = run("evaluate", "one.py:make", "one.onnx", *options)
    assert status == 2
    assert "images have shape (12, 3, 8, 8): expected (1, 3, 8, 8)" in text
    status, text = run("evaluate", "one.py:make", "one.onnx", *options, "--batch", 1)
    assert status == 0, text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bench", "demo", "--threads", 0], "--threads"),
        (["bench", "demo", "--threads", 1_000_000], "--threads"),  # which ended the process
        (["compress", "demo", "--out", "o", "--threads", -1], "--threads"),
        (["inspect", "demo", "--size", -1], "--size"),
        (["bench", "demo", "--size", 10**9], "--size"),
        (["bench", "demo", "--engine", "eager", "--batch", 2**24, "--size", 2**12], "there is not enough memory"),
        (["compress", "demo", "--out", "o", "--device", "meta"], "device 'meta' cannot be used"),
        (["evaluate", "demo", "--device", "nothing"], "device 'nothing' cannot be used"),
        (["compress", "demo", "--out", "o", "--threads", 1.5], "--threads"),
        (["demo", "--images", 0], "--images"),  # which was told after a minute of work
        (["demo", "--images", 1001], "--images"),
        (["compress", "demo", "--out", "o", "--eps", ""], "--eps is '': expected a number or a fraction"),  # was 8/255
        (["evaluate", "demo", "--eps", "1/inf"], "--eps is '1/inf': expected a number or a fraction"),  # was no attack
        (["evaluate", "demo", "--eps", ""], "--eps is '': expected a number or a fraction"),  # was 8/255
        (["train", "zoo:tiny", "--data", "demo", "--out", "o", "--recipe", ""], "unknown recipe ''"),  # was the default
        (["bench", "demo", "--engine", "eager", "--repeats", "9" * 40], "and at most 1,000,000"),
        (["bench", "demo", "--engine", "eager", "--batch", "9" * 40], "and a batch of at most 2^24"),
        (["evaluate", "demo", "--eps", "8/"], "--eps is '8/': expected a number or a fraction"),  # was 8
    ],
)
def test_numbers_out_of_range_are_told(run, words, sentence):
    """Bug: these ended in tracebacks from within PyTorch, or without a word."""
    status, text = run(*words)
    assert status == 2, text
    assert sentence in text
    assert "Traceback" not in text


def test_an_edit_within_a_second_is_seen(tmp_path, monkeypatch):
    """Bug: Python's cache of compiled files goes by their size and whole seconds, and the code before the edit was run."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file, code = tmp_path / "net.py", "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 4, 3))\n"
    for outputs in (4, 5):
        file.write_text(code.replace("4", str(outputs)))
        os.utime(file, (1e9, 1e9))
        assert gdws.models.resolve(f"{file}:make")[0].out_channels == outputs
