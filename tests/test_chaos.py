"""The campaign of `make chaos` (tests/chaos) in its shortest form: some cases of every part, seeded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.case import Case, Family, judged
from chaos.confine import confine
from chaos.workers import case_of, run_all

from gdws.core.errors import GdwsError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def campaign(tmp_path):
    """Run it with these words: its exit status, its last line and the lines before."""

    def run(*words):
        command = [sys.executable, "-m", "chaos", *words, "--failures", str(tmp_path / "failures.jsonl")]
        paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        lines = done.stdout.splitlines()
        return done.returncode, lines[-1] if lines else done.stderr, lines[:-1]

    return run


def test_a_short_campaign_finds_nothing(campaign):
    status, line, causes = campaign("--short", "--processes", "1")
    assert (status, causes) == (0, []), line
    for part in ("inputs", "mutants", "kills", "numeric", "contention", "disk"):
        assert f" {part} (" in line


def test_what_goes_wrong_is_noticed(tmp_path):
    """Every outcome but a refusal and a right result is a failure, told with the case that repeats it."""

    def attempt(case: Case) -> None:
        case.tell("a case")
        {0: refuse, 1: list, 2: fail, 3: hang, 4: crash, 5: hoard}[case.index]()

    def refuse() -> None:
        raise GdwsError("got 1: expected 2")

    def fail() -> None:
        raise KeyError("x")

    def hang() -> None:
        while True:
            pass

    def crash() -> None:
        os.abort()

    def hoard() -> None:
        assert bytearray(7 * 2**30)

    family = Family("outcomes/all", 6, attempt, seconds=2)
    found = {outcome.name: outcome.kind for outcome in run_all([(family, 6)], 0, tmp_path, 1)}
    kinds = ("refused", "right", "traceback", "hang", "crash", "memory")
    assert found == {f"outcomes/all/{number}": kind for number, kind in enumerate(kinds)}


def test_a_case_depends_on_nothing_but_the_seed_and_its_name(tmp_path):
    drawn = []
    family = Family("draws/all", 3, lambda case: drawn.append(case.random.random()))
    for seed in (0, 0, 1):
        judged(family, case_of(family, 1, seed, tmp_path))
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_campaign_can_write_into_its_folder_only(tmp_path):
    """As root; others are kept by their rights."""
    if os.geteuid() != 0:
        pytest.skip("confined by its rights")
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    child = os.fork()
    if child == 0:
        status = 3
        try:
            confine(inside)
            (inside / "file").touch()
            try:
                outside.touch()
            except OSError:
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (inside / "file").exists()
    assert not outside.exists()
