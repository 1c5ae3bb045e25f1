"""Statistics on disk, known by a hash of everything that they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from gdws.attacks.pgd import PGD
from gdws.calibration.method import Calibrated
from gdws.calibration.statistics import LayerStatistics, Statistics
from gdws.core.files import limit_cache, write_atomically
from gdws.core.sites import Site
from gdws.structures.base import Curve, Structure


def statistics_key(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
    names: list[str],
    structures: Sequence[Structure],
    attack: PGD | None,
    seed: int,
) -> str:
    """A hash of everything that the statistics depend on."""
    digest = hashlib.blake2b(digest_size=16)
    settings = [
        6,
        names,
        [structure.name for structure in structures],
        None if attack is None else asdict(attack),
        seed,
        str(model),
    ]
    digest.update(json.dumps(settings).encode())
    tensors = [*model.state_dict().items(), ("images", images), *([] if labels is None else [("labels", labels)])]
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b"")
    return digest.hexdigest()


def write_statistics(file: Path, statistics: Statistics) -> None:
    tensors = {"attacked": statistics.attacked, "temperature": torch.tensor(statistics.temperature, dtype=torch.float64)}
    for name, layer in statistics.layers.items():
        tensors |= {f"{name}|moment": layer.moment, f"{name}|gradient": layer.gradient}
        for structure, curves in statistics.curves[name].items():
            for group, found in enumerate(curves):
                own = {field: part for field, part in vars(found).items() if part is not None}
                tensors |= {f"{name}|{structure}|{group}|{field}": part for field, part in own.items()}
    write_atomically(file, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))
    limit_cache(file.parent)


def read_statistics(
    file: Path,
    images: Tensor,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    method: Calibrated,
    seed: int,
    device: torch.device,
) -> Statistics | None:
    """The statistics in a cache file; None if it is not there or not whole (they are then collected again)."""
    if not file.is_file():
        return None
    try:
        tensors = load_file(file, device=str(device))
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
        return Statistics(
            images=images,
            attacked=tensors["attacked"].cpu(),
            layers=layers,
            curves=curves,
            method=method,
            seed=seed,
            temperature=float(tensors["temperature"]),
        )
    except (SafetensorError, KeyError, TypeError, OSError):
        return None


def _read_curve(structure: Structure, tensors: dict[str, Tensor], name: str, group: int) -> Curve:
    prefix = f"{name}|{structure.name}|{group}|"
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    return structure.curve_from_tensors(own | {"losses": own["losses"].cpu()})
