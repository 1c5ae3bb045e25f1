"""Where a network will run: engine, precision, threads, batch; and what follows from that for its layers."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gdws.core.checks import is_count
from gdws.core.errors import GdwsError
from gdws.core.execution import MOST_THREADS, placement
from gdws.deploy.engines import ENGINES
from gdws.structures.base import Structure


@dataclass(frozen=True)
class Target:
    """Where a network will run: what times are measured for, under a latency budget.

    engine     one of gdws.deploy.engines in which single layers can be timed: "onnxruntime" or "openvino" on the CPU, "auto"
               being whichever makes it fastest; or "cuda": PyTorch, as a CUDA graph, on the GPU that the model is on.
    precision  one of the engine's: "float32" or "int8" on the CPU, "float32" or "float16" on a GPU.
    threads    of a CPU; as many as PyTorch has, if None.
    batch      images at a time.

    Raises GdwsError when the engine or its precision is unknown, or batch or threads is below 1.

    >>> import gdws
    >>> gdws.Target("onnxruntime", threads=1)
    Target(engine='onnxruntime', precision='float32', threads=1, batch=1)
    """

    engine: str = "auto"
    precision: str = "float32"
    threads: int | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        known = {engine.name: engine.precisions for engine in ENGINES.values() if engine.times_layers}
        known = {"auto": known["onnxruntime"]} | known
        if self.precision not in known.get(self.engine, ()):
            expected = ", ".join(f"{name} in {' or '.join(precisions)}" for name, precisions in known.items())
            raise GdwsError(f"the target is {self.engine!r} in {self.precision!r}: expected {expected}")
        threads = self.threads is None or (is_count(self.threads, 1) and self.threads <= MOST_THREADS)
        if not is_count(self.batch, 1) or not threads:
            given = f"batch {self.batch} and {self.threads} threads"
            raise GdwsError(f"the target has {given}: expected at least 1 of each, and at most {MOST_THREADS} threads")


def check_device(model: nn.Module, target: Target) -> None:
    """Refuse a GPU as the target of a model that is not on one."""
    device, _ = placement(model)
    if target.engine == "cuda" and device.type != "cuda":
        raise GdwsError(f"the target is cuda and the model on {device}: expected it on the GPU in question (--device cuda)")


def for_tensor_cores(structures: Sequence[Structure], target: Target) -> tuple[Structure, ...]:
    """Those that a network in float16 on a GPU is made of: plain convolutions for its tensor cores."""
    if (target.engine, target.precision) != ("cuda", "float16"):
        raise GdwsError(f"a budget other than of time got {target}: expected Latency or Speedup with it, or cuda in float16")
    kinds = tuple(structure for structure in structures if structure.plain)
    if not kinds:
        given = ", ".join(structure.name for structure in structures)
        raise GdwsError(f"structures are {given}: expected plain convolutions for float16 on a GPU, such as separable or auto")
    return kinds


def vector_width(target: Target) -> int:
    """Channels that are worked on together: a vector of this CPU, or what cuDNN wants a multiple of."""
    if target.engine == "cuda":
        return 8
    return 16 if torch.cpu._is_avx512_supported() else 8


def device_name(device: torch.device | None = None) -> str:
    """Of the CPU, or of a GPU."""
    if device is not None and device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
