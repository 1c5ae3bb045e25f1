"""Measure the latencies of a network, or read what was measured before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from gdws.calibration.statistics import Statistics
from gdws.core.execution import placement
from gdws.core.files import ensure_folder, limit_cache, write_atomically
from gdws.core.reading.limits import read_file
from gdws.core.sites import Site
from gdws.deploy.engines import ENGINES
from gdws.deploy.runtimes import require
from gdws.errors import GdwsError
from gdws.planning.latency.measure_cpu import measure_on_cpu
from gdws.planning.latency.measure_gpu import measure_on_gpu
from gdws.planning.latency.table import LatencyTable
from gdws.planning.latency.target import Target, check_device, device_name
from gdws.structures.base import Structure

FORMAT = "gdws latency 2"
"""Changes with how times are taken, so that what is cached is measured again."""


def measure_latencies(
    model: nn.Module,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    target: Target,
    cache: Path | None = None,
) -> LatencyTable:
    """Measure, or read what was measured before on this device for these shapes and this target."""
    check_device(model, target)
    threads = 1 if target.engine == "cuda" else target.threads or torch.get_num_threads()
    target = Target(target.engine, target.precision, threads, target.batch)
    file = None if cache is None else cache / f"latency-{_key(model, sites, structures, statistics, target)}.json"
    kept = None if file is None else _kept(file, sites, target)
    if kept is not None:
        return kept
    if cache is not None:
        ensure_folder(cache)
    measure = measure_on_gpu if target.engine == "cuda" else measure_on_cpu
    made = measure(model, sites, structures, statistics, target)
    if file is not None:
        write_atomically(file, made.to_json())
        limit_cache(file.parent)
    return made


def _kept(file: Path, sites: Sequence[Site], target: Target) -> LatencyTable | None:
    """What was measured before; None if it is not there or damaged (it is then measured again)."""
    if not file.is_file():
        return None
    try:
        found = LatencyTable.from_json(read_file(file))
    except (GdwsError, OSError):
        return None
    names = {site.name for site in sites}
    fits = found.target == target and found.engines and all(names <= own.layers.keys() for own in found.engines.values())
    return found if fits else None


def _key(
    model: nn.Module, sites: Sequence[Site], structures: Sequence[Structure], statistics: Statistics, target: Target
) -> str:
    packages = sorted({package for engine in ENGINES.values() for package in engine.packages if find_spec(package)})
    # Of the modules, not the distributions: onnxruntime comes in several of other names.
    versions = [f"{package} {getattr(require(package), '__version__', '')}" for package in ("torch", *packages)]
    described = [
        FORMAT,
        device_name(placement(model)[0] if target.engine == "cuda" else None),
        asdict(target),
        versions,
        str(model),
        [[site.name, site.maps] for site in sites],
        [structure.name for structure in structures],
        list(statistics.images.shape[1:]),
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
