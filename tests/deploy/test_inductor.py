"""How torch.compile times what it tries; that it runs and chooses by it is tested on a GPU (test_gpu)."""

import os
import threading
from pathlib import Path

import pytest
import torch
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.runtime.cache_dir_utils import cache_dir

from gdws.deploy import inductor
from gdws.deploy.inductor import CACHE_FOLDER, MAX_AUTOTUNE, available, back_to_back_timing


def benchmark():
    return type(benchmarker).benchmark_gpu


def test_torch_compile_asks_for_it_inside_and_no_longer_after(monkeypatch):
    before, folder = benchmark(), cache_dir()
    seen = []
    monkeypatch.setattr(inductor, "milliseconds", lambda call: seen.append(call) or 0.5)
    with back_to_back_timing():
        assert benchmarker.benchmark_gpu(seen.clear, rep=40, is_vetted_benchmarking=True) == 0.5
        assert benchmarker.benchmark_gpu(seen.clear, return_mode="all") == [0.5]
        assert cache_dir() == os.path.join(folder, CACHE_FOLDER)
    assert len(seen) == 2
    assert benchmark() is before
    assert cache_dir() == folder
    with pytest.raises(KeyError), back_to_back_timing():
        raise KeyError
    assert benchmark() is before
    assert cache_dir() == folder


def test_threads_wait_for_each_other():
    before, inside, order = benchmark(), threading.Event(), []

    def second():
        inside.wait(10)
        with back_to_back_timing():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with back_to_back_timing():
        inside.set()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert benchmark() is before


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore")  # torch.compile imports what is deprecated
def test_what_is_compiled_inside_stays_apart_and_runs_after(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    network, x = torch.compile(lambda x: (x + 1).relu()), torch.randn(5, 7)
    with back_to_back_timing():
        network(x)
    assert torch.equal(network(x), (x + 1).relu())
    written = [path.relative_to(tmp_path) for path in Path(tmp_path).rglob("*.py")]
    assert written
    assert {path.parts[0] for path in written} == {CACHE_FOLDER}


def test_options_that_a_version_lacks_are_left_out_with_a_warning():
    with pytest.warns(UserWarning, match="has no no_such_option: left out"):
        assert available({"max_autotune": True, "no_such_option": 1}) == {"max_autotune": True}
    assert available(MAX_AUTOTUNE) == MAX_AUTOTUNE


def test_a_version_with_another_benchmarker_is_used_as_it_is(monkeypatch):
    monkeypatch.setattr(inductor, "METHOD", "no_such_method")
    folder = cache_dir()
    with pytest.warns(UserWarning, match="is used as it is .*has no no_such_method"), back_to_back_timing():
        assert cache_dir() == folder
