"""The scripts' own modules, and a folder for what they fetch."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The folder that packages of PyPI, npm and Debian are fetched into: GDWS_FOREIGN, to keep them, or one of the session."""
    return Path(os.environ.get("GDWS_FOREIGN") or tmp_path_factory.mktemp("foreign")).resolve()


@pytest.fixture
def fetched():
    """Call a function that fetches; the test is skipped where the registry cannot be reached."""

    def call(function, *arguments):
        try:
            return function(*arguments)
        except SystemExit as stop:
            pytest.skip(str(stop))

    return call
