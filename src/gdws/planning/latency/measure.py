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

from gdws.calibration.cache import keep_in_cache, usable_cache
from gdws.calibration.statistics import Statistics
from gdws.core.errors import GdwsError
from gdws.core.execution import placement
from gdws.core.hashing import architecture_identity, values_hash
from gdws.core.inputs import repeat_first, sample_shapes
from gdws.core.reading.limits import read_file
from gdws.core.reading.schema import parse
from gdws.core.sites import Site
from gdws.deploy.engines import ENGINES
from gdws.deploy.packages import require
from gdws.planning.latency.measure_cpu import measure_on_cpu
from gdws.planning.latency.measure_gpu import measure_on_gpu
from gdws.planning.latency.table import LatencyTable
from gdws.planning.latency.target import Target, check_device, device_name
from gdws.planning.latency.variant_files import VariantFiles
from gdws.structures.base import Structure

FORMAT = "gdws latency 3"
"""Changes with how times are taken, so that what is cached is measured again."""


def measure_latencies(
    model: nn.Module,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    target: Target,
    cache: Path | None = None,
    files: VariantFiles | None = None,
) -> LatencyTable:
    """Measure, or read what was measured before on this device for these shapes and this target.

    files: of the model and a batch of the target, where others use them too: its export takes seconds.
    """
    check_device(model, target)
    threads = 1 if target.engine == "cuda" else target.threads or torch.get_num_threads()
    target = Target(target.engine, target.precision, threads, target.batch)
    folder = usable_cache(cache)
    file = None if folder is None else folder / f"latency-{_key(model, sites, structures, statistics, target)}.json"
    stored = None if file is None else _as_written(file)
    if stored is not None:
        return stored
    if target.engine == "cuda":
        made = measure_on_gpu(model, sites, structures, statistics, target)
    else:
        files = files or VariantFiles(model, repeat_first(statistics.images, target.batch))
        made = measure_on_cpu(model, sites, structures, statistics, target, files)
    if file is not None:
        record = {"content": _content(file, made), "table": json.loads(made.to_json())}
        keep_in_cache(file, json.dumps(record, indent=1))
    return made


def _as_written(file: Path) -> LatencyTable | None:
    """The table in a cache file; None if it is not there or not as it was written (it is then measured again)."""
    try:
        record = parse(read_file(file), "this is no latency table") if file.is_file() else {}
        table = LatencyTable.from_json(json.dumps(record["table"]))
        return table if record["content"] == _content(file, table) else None
    except (GdwsError, OSError, LookupError, TypeError):
        return None


def _content(file: Path, table: LatencyTable) -> str:
    return values_hash([file.name, table.to_json()])


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
        architecture_identity(model),
        [[site.name, site.maps] for site in sites],
        [structure.name for structure in structures],
        sample_shapes(statistics.images),
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
