"""What reaches a terminal: nothing that steers it, nothing that it cannot show; and the sentence after an interrupt."""

import io
import os
import signal
import stat
import subprocess
import sys

import pytest
from rich.table import Table

from gdws import cli
from gdws.cli.progress_bar import Bar
from gdws.cli.terminal import Terminal, harmless
from gdws.core.progress import note, shown, track

HOSTILE = "a\x1b[31m\x1b]0;title\x07\x9b5m\u202egnp.exe\r\nb[bold red]c[/]:smile:\udcff"
SHOWN = r"a\x1b[31m\x1b]0;title\x07\x9b5m\u202egnp.exe\r\nb[bold red]c[/]:smile:\udcff"
MODEL = """
import signal, torch
from torch import nn

class Small(nn.Sequential):
    calls = 0

    def forward(self, x):
        Small.calls += 1
        if Small.calls > {calls}:
            signal.raise_signal(signal.SIGINT)
        return super().forward(x)

def make():
    model = Small(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    model.add_module("{layer}", nn.Identity())
    return model
"""


@pytest.fixture(autouse=True)
def _interruptible():
    """nohup in a script has children ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def printed(**settings):
    stream = io.StringIO()
    terminal = Terminal(file=stream, width=200, force_terminal=True, color_system="truecolor", **settings)
    return terminal, stream


def test_what_would_steer_a_terminal_is_shown_as_an_escape():
    assert harmless(HOSTILE) == SHOWN
    assert harmless("Größe ±2 · ×3, 深度") == "Größe ±2 · ×3, 深度"


def test_strings_tables_and_titles_are_harmless():
    terminal, stream = printed()
    table = Table(title=HOSTILE, caption=HOSTILE)
    table.add_column(HOSTILE, no_wrap=True)
    table.add_row(HOSTILE)
    for shown_thing in (HOSTILE, table):
        terminal.print(shown_thing, highlight=False)
    terminal.say(HOSTILE, style="red")
    text = stream.getvalue()
    assert text.count(SHOWN) == 6
    for sign in ("\x1b[31m\x1b]0", "\x9b", "\u202e", "\r", "\x07", "\udcff"):
        assert sign not in text


def test_progress_is_harmless():
    terminal, stream = printed()
    with shown(Bar(terminal)):
        for _ in track(range(2), HOSTILE):
            note(HOSTILE)
    assert "\x1b]0" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()
    assert "[bold red]" in stream.getvalue()


def test_names_of_layers_files_and_errors_are_harmless(run, tmp_path):
    (tmp_path / "own.py").write_text(
        "from gdws.models import zoo\nfrom torch import nn\n\n"
        f"def make():\n    model = nn.Sequential()\n    model.add_module({HOSTILE.replace('.', '_')!r}, nn.Conv2d(3, 4, 3))\n"
        "    model.add_module('rest', nn.Flatten())\n    return model\n"
    )
    for words, expected in (
        (["inspect", "own.py:make"], 0),
        (["inspect", HOSTILE], 2),
        (["inspect", "demo", "--weights", HOSTILE], 2),
    ):
        status, text = run(*words)
        assert status == expected
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert r"\x1b[31m" in text.replace("\n", "")


@pytest.mark.parametrize("words", [["inspect", "demo"], ["inspect", "nö\udcff"]])
def test_a_terminal_without_unicode(words, tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-m", "gdws", *words], env=environment, capture_output=True, cwd=tmp_path)
    assert done.returncode == (0 if "demo" in words else 2)
    assert b"Traceback" not in done.stderr
    assert (done.stdout + done.stderr).isascii()


def test_output_that_cannot_be_written_is_told(tmp_path):
    full = tmp_path / "full"
    if os.geteuid() != 0:
        pytest.skip("only root makes a device that is always full")
    os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    with full.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "gdws", "inspect", "demo"], stdout=output, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "gdws: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "calls", "kept"),
    [
        (["inspect", "own.py:make"], 0, "no result was written"),
        (["evaluate", "own.py:make", "--n", 4, "--steps", 0], 1, "nothing was kept (--checkpoint FILE keeps every batch)"),
        (
            ["evaluate", "own.py:make", "--n", 40, "--batch", 4, "--steps", 0, "--checkpoint", "run.jsonl"],
            8,
            "the batches that were done are in run.jsonl, and the same command with --resume goes on from it",
        ),
        (
            ["train", "own.py:make", "--data", "demo", "--images", 40, "--epochs", 40, "--steps", 1, "--out", "out"],
            40,
            "there was no checkpoint in out yet, and the same command with --resume begins anew",
        ),
        (
            [
                *("prune", "own.py:make", "--method", "magnitude", "--data", "demo", "--images", 40),
                "--steps",
                1,
                "--out",
                "out",
            ],
            40,
            "there was no checkpoint in out yet, and the same command with --resume begins anew",
        ),
        (
            ["compress", "own.py:make", "--out", "out", "--images", 10],
            8,
            "no network was written, and the same command starts from what the cache has",
        ),
    ],
)
def test_an_interrupt_is_told_with_what_was_kept(run, tmp_path, words, calls, kept):
    (tmp_path / "own.py").write_text(MODEL.format(calls=calls, layer="last"))
    status, text = run(*words)
    assert status == 130
    assert f"gdws: interrupted: {kept}" in text
    assert "Traceback" not in text


def test_a_model_does_not_end_the_command_in_silence(run, tmp_path):
    """Bug: a forward pass that exits looked like success."""
    (tmp_path / "own.py").write_text(
        MODEL.format(calls=0, layer="last").replace("signal.raise_signal(signal.SIGINT)", "exit(0)")
    )
    status, text = run("inspect", "own.py:make")
    assert status == 2
    assert text.splitlines()[-1] == "gdws: the code of a model ended the command (exit 0): expected it to return"


def test_what_a_model_raises_is_told_whatever_it_is(run, tmp_path):
    """Bug: a traceback of what is no Exception."""
    (tmp_path / "own.py").write_text("class Stop(BaseException): pass\ndef make(): raise Stop('no')")
    status, text = run("inspect", "own.py:make")
    assert status == 2
    assert text.splitlines()[-1] == "gdws: the code of a model ended the command (Stop: no): expected it to return"


def test_what_was_kept_is_looked_up(tmp_path):
    (tmp_path / "checkpoint.safetensors").touch()
    assert "the last checkpoint is in" in cli.what_was_kept("tune", {"out": tmp_path})
    assert "no result was written" in cli.what_was_kept("prune", {"out": tmp_path})
    (tmp_path / "pruning.json").touch()
    assert "no checkpoint" in cli.what_was_kept("prune", {"out": tmp_path})
    (tmp_path / "prune").mkdir()
    (tmp_path / "prune" / "checkpoint.safetensors").touch()
    assert "the stages that were done and the last checkpoint are in" in cli.what_was_kept("prune", {"out": tmp_path})
    assert "the same command fetches the rest" in cli.what_was_kept("download", {"folder": tmp_path})
    assert "with --resume goes on" in cli.what_was_kept("reproduce", {"out": tmp_path})
    assert "is whole" in cli.what_was_kept("compress", {"out": tmp_path})
