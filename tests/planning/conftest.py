"""A small network with everything that planning needs, measured here."""

import pytest
import torch
from torch import nn

import gdws
from gdws.core.sites import find_convolutions
from gdws.planning.latency import measure_cpu, measure_gpu
from gdws.planning.latency.measure import measure_latencies
from gdws.planning.latency.target import Target
from gdws.structures import select_structures


class Residual(nn.Module):
    """Convolutions that are fused with a BatchNorm, a ReLU and a sum; one is used twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.conv1, self.norm1 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.shortcut = nn.Conv2d(32, 64, 1, stride=2, bias=False)
        self.norm2, self.twice = nn.BatchNorm2d(64), nn.Conv2d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))) + self.shortcut(x)))
        x = torch.relu(self.twice(torch.relu(self.twice(x))))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="session")
def residual():
    """A network, its convolutions, two structures, and statistics for these and one more."""
    torch.manual_seed(0)
    model = Residual().eval()
    images = torch.rand(24, 3, 32, 32)
    sites = [site for site in find_convolutions(model, images[:1]) if site.reason is None]
    structures = select_structures(["gdws", "vertical"])
    statistics = gdws.calibrate(model, [images], gdws.Calibrated(structures=["gdws", "separable"], attack=None))
    return model, sites, structures, statistics


@pytest.fixture(scope="session")
def table(residual):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_cpu, "SHARES", (0.1, 0.4))
        return measure_latencies(*residual, Target(threads=1))


@pytest.fixture(scope="session")
def gpu_table(residual):
    """What a GPU's timetable would be, taken on the CPU, where the same code records nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_gpu, "SHARES", (0.1, 0.4))
        patch.setattr(measure_gpu, "TURNS", 10)
        return measure_gpu.measure_on_gpu(*residual, Target("cuda", threads=1, batch=2))
