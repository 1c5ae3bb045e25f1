"""Kernels that torch.compile tries are timed as they will run: one after another, on what the one before has left in the cache.

torch.compile itself times each call behind a write of the whole cache, and launches it from Python. Then maps come from memory
that a network finds in the cache, and what takes longer to launch than to run looks as slow as its launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor.runtime import benchmarking

CALLS, ROUNDS = 20, 3
CYCLES, LONGEST = 2e9, 0.05
"""Of a GPU in a second, or more; and seconds that it may wait."""


@contextmanager
def one_after_another() -> Iterator[None]:
    """torch.compile times what it tries so inside."""
    kind = type(benchmarking.benchmarker)
    before = kind.benchmark_gpu
    kind.benchmark_gpu = _timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.benchmark_gpu = before  # type: ignore[method-assign]


def milliseconds(call: Callable[[], Any]) -> float:
    """Of one call of what launches work on the current device, among CALLS of it; the least of ROUNDS."""
    call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    wait = int(CYCLES * min(2 * (time.perf_counter() - begun), LONGEST))
    best = float("inf")
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(wait)  # the device waits until all calls are launched
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / CALLS)
    return best


def _timed(benchmarker: benchmarking.Benchmarker, call: Callable[[], Any], *_: Any, **options: Any) -> Any:
    """In the place of a method of torch.compile's; it sometimes asks for all times instead of the best."""
    best = milliseconds(call)
    return [best] if options.get("return_mode") == "all" else best
