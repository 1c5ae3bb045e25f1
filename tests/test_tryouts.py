"""How torch.compile times what it tries; that it runs and chooses by it is tested on a GPU (test_gpu)."""

import pytest
from torch._inductor.runtime.benchmarking import benchmarker

from gdws import tryouts
from gdws.tryouts import one_after_another


def test_torch_compile_asks_for_it_inside_and_no_longer_after(monkeypatch):
    before = type(benchmarker).benchmark_gpu
    seen = []
    monkeypatch.setattr(tryouts, "milliseconds", lambda call: seen.append(call) or 0.5)
    with one_after_another():
        assert benchmarker.benchmark(seen.clear, device="cuda", rep=40, is_vetted_benchmarking=True) == 0.5
        assert benchmarker.benchmark_gpu(seen.clear, return_mode="all") == [0.5]
    assert len(seen) == 2
    assert type(benchmarker).benchmark_gpu is before
    with pytest.raises(KeyError), one_after_another():
        raise KeyError
    assert type(benchmarker).benchmark_gpu is before
