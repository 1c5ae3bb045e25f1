"""Every benchmark can be asked what it does, and a page of results names it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.fixture(scope="module")
def answers():
    """What each script prints when it is asked for help; two at a time, since every one imports PyTorch."""

    def ask(name):
        command = [sys.executable, f"benchmarks/{name}", "--help"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SCRIPTS, pool.map(ask, SCRIPTS), strict=True))


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_says_what_it_does(name, answers):
    answer = answers[name]
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("usage:")
    assert f"benchmarks/{name}" in answer.stdout, "expected the command in the docstring"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_is_named_where_its_results_are(name):
    assert any(f"benchmarks/{name}" in page.read_text() for page in (ROOT / "docs/results").glob("*.md"))
