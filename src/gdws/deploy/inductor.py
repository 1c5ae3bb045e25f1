"""All that reaches into torch.compile's internals: its options, and how it times the kernels that it chooses from.

Seen to work with PyTorch 2.8, 2.11, 2.13 and 2.15. On a version whose internals differ, options that it does not have are left
out and its own timing is used: kernels are then chosen as torch.compile would, and a warning says so.

torch.compile times each candidate behind a flush of the whole cache and behind a launch from Python. In a network a kernel
finds its input in the cache, and a CUDA graph launches it. So candidates are timed here back to back, behind a sleep of the
device that hides the launches.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

KERNELS_BETWEEN: dict[str, Any] = {"coordinate_descent_tuning": True}
"""The kernels between convolutions are tuned."""
LOOPS_IN_AXIS_ORDER: dict[str, Any] = {"pick_loop_orders": False}
"""Loops run over axes in their order, so that what follows a convolution can be fused into its kernel."""
MAX_AUTOTUNE: dict[str, Any] = {
    **KERNELS_BETWEEN,
    **LOOPS_IN_AXIS_ORDER,
    "max_autotune": True,
    "autotune_num_choices_displayed": 0,
    "autotune_in_subproc": False,
    "benchmark_epilogue_fusion": True,
    "max_epilogue_benchmarked_choices": 8,
}
"""Kernels for convolutions are tried out, and the best of them again with what follows fused into them."""

CALLS, ROUNDS = 20, 3
LONGEST = 0.05
"""Seconds that calls may take together, and that the device may wait for them."""
CYCLES = 3e9
"""In a second; no GPU has more."""
CACHE_FOLDER = "gdws"
"""Within torch.compile's cache: for what was timed back to back."""
METHOD = "benchmark_gpu"
"""Of torch.compile's benchmarker."""
_LOCK = threading.RLock()


def available(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that this version of torch.compile has; a warning names the others."""
    from torch._inductor import config  # a second of imports, for which no other command should wait

    missing = [name for name in options if not hasattr(config, name)]
    if missing:
        warnings.warn(f"torch.compile of {torch.__version__} has no {', '.join(missing)}: left out", stacklevel=2)
    return {name: value for name, value in options.items() if name not in missing}


@contextmanager
def back_to_back_timing() -> Iterator[None]:
    """Inside, torch.compile times its candidates back to back, and keeps what it finds in a cache folder of its own.

    What it found otherwise is not used inside, nor is what it finds here used elsewhere. One thread at a time.
    """
    try:
        from torch._inductor import config
        from torch._inductor.runtime import benchmarking
        from torch._inductor.runtime.cache_dir_utils import cache_dir
        from torch._inductor.utils import clear_caches

        kind = type(benchmarking.benchmarker)
        if not hasattr(kind, METHOD):
            raise AttributeError(f"{kind.__name__} has no {METHOD}")
    except (ImportError, AttributeError) as error:
        warnings.warn(f"torch.compile of {torch.__version__} is used as it is ({error}): kernels may be slower", stacklevel=3)
        yield
        return
    silent = {name: False for name in ("max_autotune_report_choices_stats",) if hasattr(config, name)}  # not in PyTorch 2.8
    with _LOCK, config.patch(silent):
        original = getattr(kind, METHOD)  # here, where no other thread has replaced it
        folder = os.path.join(cache_dir(), CACHE_FOLDER)
        folders = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": os.path.join(folder, "triton")}
        clear_caches()  # it also remembers where they are
        try:
            with _environment(folders):
                setattr(kind, METHOD, _timed)
                yield
        finally:
            setattr(kind, METHOD, original)
            clear_caches()


def force_strides(values: Tensor, strides: list[int]) -> Tensor:
    """The same values, computed once and into memory of these strides, where torch.compile traces; eagerly as they are."""
    if not torch.compiler.is_compiling():
        return values
    forced: Tensor = torch.ops.prims.inductor_force_stride_order(values, strides)
    return forced


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


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
