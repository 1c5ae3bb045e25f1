"""What was found before, on disk: known by a hash of everything that it depends on, and by one of what it says.

A cache is a convenience. A file that is not word for word what was written is found anew, and a folder that nothing can be
written to costs a warning, never the work.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from gdws.calibration.method import Calibrated
from gdws.calibration.statistics import LayerStatistics, Statistics
from gdws.core.errors import GdwsError
from gdws.core.files import ensure_folder, limit_cache, write_atomically
from gdws.core.hashing import network_identity, values_hash
from gdws.core.inputs import Inputs, names_of, tensors_of
from gdws.core.sites import Site
from gdws.structures.base import Curve, Structure

FORMAT = "gdws statistics 8"
"""Changes with how statistics are collected, so that what is cached is collected again."""


def usable_cache(folder: Path | None) -> Path | None:
    """The folder, made if need be; None, after a warning, if nothing can be written there."""
    try:
        if folder is not None:
            ensure_folder(folder)
        return folder
    except GdwsError as error:
        warnings.warn(f"nothing is kept for the next time: {error}", stacklevel=2)
        return None


def keep_in_cache(file: Path, content: bytes | str) -> None:
    """Write a file, or warn; and delete the oldest where there are too many."""
    try:
        write_atomically(file, content)
    except GdwsError as error:
        warnings.warn(f"nothing is kept for the next time: {error}", stacklevel=2)
    else:
        limit_cache(file.parent)


def statistics_key(
    model: nn.Module,
    images: Inputs,
    labels: Tensor | None,
    names: list[str],
    structures: Sequence[Structure],
    method: Calibrated,
    seed: int,
) -> str:
    """A hash of everything that the statistics depend on."""
    kinds = [structure.name for structure in structures]
    attack, objective = method.settled_attack, method.settled_objective
    settings = [FORMAT, names, kinds, None if attack is None else asdict(attack), objective.name, objective, seed]
    return values_hash([settings, network_identity(model, images[:1]), names_of(images), tensors_of(images), labels])


def write_statistics(file: Path, statistics: Statistics) -> None:
    tensors = {f"attacked|{index}": value for index, value in enumerate(tensors_of(statistics.attacked))}
    tensors |= {f"objective|{name}": value for name, value in statistics.objective.tensors().items()}
    for name, layer in statistics.layers.items():
        tensors |= {f"{name}|moment": layer.moment, f"{name}|gradient": layer.gradient}
        for structure, curves in statistics.curves[name].items():
            for group, found in enumerate(curves):
                own = {field: part for field, part in vars(found).items() if part is not None}
                tensors |= {f"{name}|{structure}|{group}|{field}": part for field, part in own.items()}
    tensors = {name: tensors[name].cpu().contiguous() for name in sorted(tensors)}
    keep_in_cache(file, save(tensors, {"content": values_hash([file.name, tensors])}))


def read_statistics(
    file: Path,
    images: Inputs,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    method: Calibrated,
    seed: int,
    device: torch.device,
) -> Statistics | None:
    """The statistics in a cache file; None if it is not there or not as it was written (they are then collected again)."""
    tensors = _as_written(file)
    if tensors is None:
        return None
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    layers = {
        site.name: LayerStatistics(*(tensors[f"{site.name}|{part}"] for part in ("moment", "gradient"))) for site in sites
    }
    curves = {
        site.name: {
            structure.name: [_read_curve(structure, tensors, site.name, group) for group in range(site.conv.groups)]
            for structure in structures
            if structure.fits(site.conv)
        }
        for site in sites
    }
    attacked = [tensors[f"attacked|{index}"].cpu() for index in range(len(tensors_of(images)))]
    learned = {key.removeprefix("objective|"): value.cpu() for key, value in tensors.items() if key.startswith("objective|")}
    return Statistics(
        images=images,
        attacked=attacked[0] if isinstance(images, Tensor) else images.with_tensors(attacked),
        layers=layers,
        curves=curves,
        method=replace(method, objective=method.settled_objective.with_tensors(learned)),
        seed=seed,
    )


def _as_written(file: Path) -> dict[str, Tensor] | None:
    """The tensors of a file under their own name for them all, or None."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, "pt") as opened:
            stored = (opened.metadata() or {}).get("content")
            tensors = {name: opened.get_tensor(name) for name in sorted(opened.keys())}
    except Exception:  # there is no end to how a file can be damaged
        return None
    return tensors if stored == values_hash([file.name, tensors]) else None


def _read_curve(structure: Structure, tensors: dict[str, Tensor], name: str, group: int) -> Curve:
    prefix = f"{name}|{structure.name}|{group}|"
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    return structure.curve_from_tensors(own | {"losses": own["losses"].cpu()})
