import functools
import os
import resource
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
import torch

with suppress(ImportError):  # where only the tests that need a GPU are run
    from hypothesis import settings

    # The examples that failed would be kept in the checkout, which may be another user's. In CI the examples are always the
    # same, as Hypothesis has it: a change lands by what it is. New ones are drawn wherever the tests are run by hand.
    settings.register_profile("gdws", settings.get_profile("ci" if "CI" in os.environ else "default"), database=None)
    settings.load_profile("gdws")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small tensors on several threads wait for each other far longer than they compute, most of all on a shared machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _one_registry():
    """torch.onnx reads its five hundred operators from their source for every export, which is half of an export's time."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


@pytest.fixture(scope="session")
def compiler():
    """For what torch.compile makes for a CPU."""
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU")


@pytest.fixture(scope="session")
def embedded_file(tmp_path_factory):
    """The embedded model as an ONNX file; exports take seconds."""
    from helpers import images

    from gdws import models
    from gdws.deploy.onnx import export

    path = tmp_path_factory.mktemp("embedded") / "embedded.onnx"
    export.to_onnx(models.embedded(), path, images(1))
    return path


@pytest.fixture(scope="session")
def factored_file(tmp_path_factory):
    """The model of helpers.factored as an ONNX file."""
    from helpers import factored, images

    from gdws.deploy.onnx import export

    path = tmp_path_factory.mktemp("factored") / "factored.onnx"
    export.to_onnx(factored(), path, images(1))
    return path


@pytest.fixture(scope="session")
def small():
    """A CNN for 8 x 8 images of ten classes, trained here in seconds, and 200 images of which it decides most rightly and
    about half of them under PGD at 8/255: attacks on it cost next to nothing."""
    from torch import nn
    from torch.nn import functional as F

    from gdws.attacks import PGD

    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(10, 3, 8, 8, generator=generator) - 0.5

    def draw(count):
        labels = torch.randint(10, (count,), generator=generator)
        noise = torch.randn(count, 3, 8, 8, generator=generator)
        strength = 0.08 + 0.3 * torch.rand(count, 1, 1, 1, generator=generator)
        return (0.5 + strength * patterns[labels] + 0.05 * noise).clamp(0, 1), labels

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(100):
            images, labels = draw(100)
            attacked = PGD(steps=2, step=4 / 255)(model, images, labels, generator)
            optimizer.zero_grad()
            F.cross_entropy(model(attacked), labels).backward()
            optimizer.step()
    return model.eval(), *draw(200)


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a disk of 256 KiB, or with a limit of that on every file."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder]).returncode == 0:
        yield folder
        subprocess.run(["umount", folder], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, before[1]))
    yield folder
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command line in a folder of its own: call it with words, get its exit status and what it printed.

    What a compression came to is timed in eager PyTorch, which needs no export.
    """
    from gdws import cli
    from gdws.cli import compression, options, terminal
    from gdws.compression import report

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(terminal.console, "width", 200)
    monkeypatch.setattr(compression, "HELD", 10)
    monkeypatch.setattr(report, "ENGINE", "eager")
    monkeypatch.setattr(report, "REPEATS", 3)

    def call(*arguments):
        options.announce_code.cache_clear()
        monkeypatch.setattr(sys, "argv", ["gdws", *map(str, arguments)])
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return call
