"""Kernels that torch.compile tries are timed as they will run: one after another, on what the one before has left in the cache.

torch.compile itself times each call behind a write of the whole cache, and launches it from Python. Then maps come from memory
that a network finds in the cache, and what takes longer to launch than to run looks as slow as its launch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

CALLS, ROUNDS = 20, 3
LONGEST = 0.05
"""Seconds that calls may take together, and that the device may wait for them."""
CYCLES = 3e9
"""In a second; no GPU has more."""
FOLDER = "gdws"
"""Of torch.compile's cache: for what was timed so."""
_ALONE = threading.RLock()


@contextmanager
def back_to_back_timing() -> Iterator[None]:
    """torch.compile times what it tries so inside, and keeps what it finds in a folder of its own.

    What it has found otherwise is not used inside, nor what it finds here elsewhere. One thread at a time.
    """
    # A second of imports, for which no other command should wait.
    from torch._inductor import config
    from torch._inductor.runtime import benchmarking
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch._inductor.utils import clear_caches

    quiet = {name: False for name in ("max_autotune_report_choices_stats",) if hasattr(config, name)}  # not in PyTorch 2.8
    with _ALONE, config.patch(quiet):
        kind = type(benchmarking.benchmarker)
        folder = os.path.join(cache_dir(), FOLDER)
        folders = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": os.path.join(folder, "triton")}
        clear_caches()  # it also remembers where they are
        try:
            with patch.dict(os.environ, folders), patch.object(kind, "benchmark_gpu", _timed):
                yield
        finally:
            clear_caches()


def milliseconds(call: Callable[[], Any]) -> float:
    """Of one call of what launches work on the current device, among CALLS of it or fewer; the least of ROUNDS."""
    call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = max(1, min(CALLS, int(LONGEST / (time.perf_counter() - begun))))
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    wait = int(CYCLES * min(2 * (time.perf_counter() - begun), LONGEST))
    best = float("inf")
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(wait)  # the device waits until all calls are launched
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / calls)
    return best


def _timed(benchmarker: Any, call: Callable[[], Any], *_: Any, **options: Any) -> Any:
    """In the place of a method of torch.compile's; it sometimes asks for all times instead of the best."""
    best = milliseconds(call)
    return [best] if options.get("return_mode") == "all" else best
