"""The benchmark's statistics against their definitions, and its contract on modules and other callables."""

import pytest
import torch
from scipy.stats import binom
from torch import nn

from gdws.core.errors import GdwsError
from gdws.deploy.benchmark import PAPER, bench, interval, unsteady
from gdws.deploy.engines import Compiled


def test_modules_and_other_callables_run_in_turns():
    order = []

    def run(images):
        assert torch.is_inference_mode_enabled()
        order.append("run")
        return images

    class Model(nn.Linear):
        def forward(self, images):
            assert images.dtype == torch.float64
            order.append("model")
            return images

    timings = bench({"a": run, "b": Model(1, 1, dtype=torch.float64)}, torch.zeros(4, 3, 2, 2), warmup=2, repeats=3)
    assert order == ["run", "run", "model", "model"] * 5  # of two passes the second is timed, with warm caches
    assert list(timings) == ["a", "b"]
    for timing in timings.values():
        assert timing.batch == 4
        assert timing.interval[0] <= timing.median <= timing.interval[1]
        assert 0 < timing.quartile <= timing.median
        assert timing.fps == 4 / timing.median
    assert timings["a"].busy == timings["b"].busy
    assert PAPER == (5_000, 10_000)
    with pytest.raises(GdwsError, match="repeats 0"):
        bench({"a": run}, torch.zeros(1, 3, 2, 2), repeats=0)


def test_a_compiled_module_without_a_length_is_timed():
    """Bug: gdws bench --engine compile ended in a TypeError for every network that is no nn.Sequential."""
    compiled = Compiled("compile", "float32", 1, torch.compile(nn.Conv2d(3, 4, 3), backend="eager"))
    assert bench({"a": compiled}, torch.zeros(1, 3, 8, 8), warmup=0, repeats=1)["a"].fps > 0


@pytest.mark.parametrize("count", [20, 51, 200, 1001])
def test_the_interval_covers_the_median_95_times_in_100(count):
    low, high = (int(bound) for bound in interval([float(value) for value in range(count)]))
    # The true median lies between the values of ranks low and high when more than low and at most high values fall below it.
    covered = binom.cdf(high, count, 0.5) - binom.cdf(low, count, 0.5)
    assert 0.95 <= covered < 0.99


def test_a_busy_machine_is_noticed():
    assert not unsteady([1.0] * 95 + [5.0] * 5)  # now and then an interrupt
    assert not unsteady([1.0 + 0.001 * step for step in range(100)])
    assert unsteady([1.0] * 80 + [2.0] * 20)
