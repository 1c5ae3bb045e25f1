"""Every benchmark can be asked what it does, and a page of results names it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))


HELP = """
import contextlib, os, pathlib, runpy, sys
import gdws, torch

sys.path.insert(0, "benchmarks")
for name in sys.argv[2:]:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    with open(pathlib.Path(sys.argv[1], name), "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        sys.argv = [f"benchmarks/{name}", "--help"]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            print("status", end.code)
        file.flush()
    os._exit(0)
"""
"""Asks scripts for help. PyTorch is imported once, and each script runs in a copy of the process."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each script prints when it is asked for help."""
    out = tmp_path_factory.mktemp("answers")
    subprocess.run([sys.executable, "-c", HELP, out, *SCRIPTS], cwd=ROOT, check=True, timeout=300)
    return {name: (out / name).read_text() for name in SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_says_what_it_does(name, answers):
    answer = answers[name]
    assert answer.startswith("usage:")
    assert answer.endswith("status 0\n"), answer
    assert f"benchmarks/{name}" in answer, "expected the command in the docstring"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_is_named_where_its_results_are(name):
    assert any(f"benchmarks/{name}" in page.read_text() for page in (ROOT / "docs/results").glob("*.md"))
