"""The examples run as a reader runs them, are short, and say what they show and how to start them."""

import ast
import runpy
from pathlib import Path
from unittest.mock import patch

import pytest

from gdws.structures import STRUCTURES

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
NEEDS_GPU = {"gpu_autotuned"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path, monkeypatch, capsys):
    if path.stem in NEEDS_GPU:
        pytest.skip("it builds a network for a GPU, which takes minutes there")
    monkeypatch.chdir(tmp_path)
    with patch.dict(STRUCTURES):  # one of them adds a structure
        runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_says_how_to_start_it(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert f"python examples/{path.name}" in ast.get_docstring(ast.parse(text))


def test_there_are_nine():
    assert len(EXAMPLES) == 9
