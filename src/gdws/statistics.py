"""What the calibration images say of a network: collected once, cached on disk, good for any budget.

One pass: attack the images, run them forward, send one random cotangent back for the metric of the calibrated method and one
for the paper's alpha (gdws.observe). Memory: 4 (C K^2)^2 bytes for
the patch moment of each layer (85 MB for 512 channels and 3x3 kernels, 0.4 GB for all of ResNet-18), the calibration images
twice, and the activations of one batch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from gdws import curvature, probing
from gdws.attacks import PGD
from gdws.contract import Batches, checked_logits, evaluating, full_precision, placement, unpack
from gdws.errors import GdwsError
from gdws.files import ensure_folder, write_atomically
from gdws.observe import Use, backward, random_signs, recording, sampled_class
from gdws.progress import track
from gdws.sensitivity import attacked, squared_gradient_norms
from gdws.structures import Curve, Metric, Structure
from gdws.surgery import Site, patches

CHUNK = 2**22
"""Elements of the largest temporary."""

KEPT_FILES = 4
"""Statistics files kept in a cache folder; the oldest beyond these are deleted."""


@dataclass(frozen=True)
class LayerStatistics:
    """Of one convolution with `groups` groups, float32.

    moment    (groups, CK, CK)  patches, each weighted by the squared length of the output gradient at its pixel
    gradient  (groups, M, M)    half of that of the output gradients, summed over the pixels of an image
    alpha     (C,)              the paper's channel weights, equation (8)
    """

    moment: Tensor
    gradient: Tensor
    alpha: Tensor

    def metrics(self) -> list[Metric]:
        """S and F of each group, conditioned, in float64."""
        return [
            (
                curvature.conditioned(moment, curvature.MOMENT_RIDGE),
                curvature.conditioned(gradient, curvature.GRADIENT_RIDGE),
            )
            for moment, gradient in zip(self.moment, self.gradient, strict=True)
        ]


@dataclass(frozen=True)
class Statistics:
    """images and attacked (N, C, H, W) on the CPU; by layer name its statistics and, by structure, a curve for each group."""

    images: Tensor
    attacked: Tensor
    layers: dict[str, LayerStatistics]
    curves: dict[str, dict[str, list[Curve]]]
    attack: PGD | None
    seed: int

    def image_hashes(self) -> tuple[str, ...]:
        return image_hashes(self.images)


def calibrate(
    model: nn.Module,
    batches: Batches,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    *,
    attack: PGD | None,
    seed: int,
    cache: Path | None = None,
) -> Statistics:
    """Statistics of these convolutions, and their curves for these structures.

    With a `cache` folder, read from there if nothing has changed.
    """
    images, labels = gather(batches)
    key = _key(model, images, labels, [site.name for site in sites], structures, attack, seed)
    file = None if cache is None else cache / f"statistics-{key}.safetensors"
    device, _ = placement(model)
    if file is not None:
        stored = _read(file, images, sites, structures, attack, seed, device)
        if stored is not None:
            return stored
    if cache is not None:
        ensure_folder(cache)
    with full_precision(), evaluating(model):
        layers, adversarial = _collect(model, images, labels, sites, attack, seed)
        curves = _curves(model, adversarial, sites, structures, layers, seed)
    statistics = Statistics(images, adversarial, layers, curves, attack, seed)
    if file is not None:
        _write(file, statistics)
    return statistics


def gather(batches: Batches) -> tuple[Tensor, Tensor | None]:
    """All images and, if every batch has them, labels, on the CPU."""
    pairs = [unpack(batch) for batch in batches]
    if not pairs:
        raise GdwsError("the calibration data is empty: expected at least one batch of images")
    labels = [label for _, label in pairs if label is not None]
    return (
        torch.cat([images.detach().cpu() for images, _ in pairs]),
        torch.cat([label.cpu() for label in labels]) if len(labels) == len(pairs) else None,
    )


def image_hashes(images: Tensor) -> tuple[str, ...]:
    """A short hash of each image as bytes (N, C, H, W), to tell whether two sets of images overlap."""
    pixels = images if images.dtype == torch.uint8 else (images * 255).round().to(torch.uint8)
    return tuple(hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=6).hexdigest() for image in pixels)


def _curves(
    model: nn.Module,
    adversarial: Tensor,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    layers: dict[str, LayerStatistics],
    seed: int,
) -> dict[str, dict[str, list[Curve]]]:
    """Losses in the metric, then corrected by trials on the attacked images."""
    curves: dict[str, dict[str, list[Curve]]] = {}
    tried: dict[str, dict[str, probing.Trials]] = {}
    for site in track(sites, "curves"):
        weights = site.conv.weight.detach().double().view(site.conv.groups, -1, *site.conv.weight.shape[1:])
        metrics = layers[site.name].metrics()
        curves[site.name], tried[site.name] = {}, {}
        for structure in structures:
            if structure.fits(site.conv):
                own = [structure.curve(weight, metric) for weight, metric in zip(weights, metrics, strict=True)]
                curves[site.name][structure.name] = own
                tried[site.name][structure.name] = probing.trials(site, structure, own, metrics)
    factors = probing.factors(model, adversarial, sites, tried, curves, torch.Generator().manual_seed(seed))
    return {
        name: {structure: [curve.scaled(factors[name][structure]) for curve in own] for structure, own in by_structure.items()}
        for name, by_structure in curves.items()
    }


def _collect(
    model: nn.Module, images: Tensor, labels: Tensor | None, sites: Sequence[Site], attack: PGD | None, seed: int
) -> tuple[dict[str, LayerStatistics], Tensor]:
    device, dtype = placement(model)
    generator = torch.Generator().manual_seed(seed)
    convolutions = {site.name: site.conv for site in sites}
    sums = {name: _zeros(conv) for name, conv in convolutions.items()}
    adversarial = []
    batch_size = 100  # tensors that malloc still recycles: larger ones are new memory every time
    chunks = range(0, len(images), batch_size)
    for start in track(chunks, "statistics", len(chunks)):
        part = slice(start, start + batch_size)
        truth = None if labels is None else labels[part]
        x = attacked(model, images[part].to(device, dtype), truth, attack, generator).requires_grad_(True)
        adversarial.append(x.detach().cpu())
        with recording(convolutions) as uses, torch.enable_grad():
            logits = checked_logits(model, x, truth)
            for _ in backward(logits, x, sampled_class(logits, generator)):
                found = {name: _moments(convolutions[name], calls) for name, calls in uses.items()}
            for _ in backward(logits, x, random_signs(logits, generator)):
                norms = {name: squared_gradient_norms(convolutions[name], calls) for name, calls in uses.items()}
        for name, moments in found.items():
            for total, value in zip(sums[name], (*moments, norms[name]), strict=True):
                total += value
    layers = {}
    for name, (moment, gradient, total_norms) in sums.items():
        conv = convolutions[name]
        energy = gradient.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
        layers[name] = LayerStatistics(
            moment / energy.clamp_min(torch.finfo(energy.dtype).tiny),
            gradient / (2 * len(images)),
            (total_norms / (len(images) * conv.weight[0, 0].numel() * conv.out_channels // conv.groups)).float(),
        )
    return layers, torch.cat(adversarial)


def _zeros(conv: nn.Conv2d) -> tuple[Tensor, Tensor, Tensor]:
    """Where moment, gradient and alpha of a convolution are summed up."""
    groups, inputs, outputs = conv.groups, conv.weight[0].numel(), conv.out_channels // conv.groups
    device = conv.weight.device
    return (
        torch.zeros(groups, inputs, inputs, device=device),
        torch.zeros(groups, outputs, outputs, device=device),
        torch.zeros(conv.in_channels, device=device, dtype=torch.float64),
    )


def _moments(conv: nn.Conv2d, uses: list[Use]) -> tuple[Tensor, Tensor]:
    """Sums over samples and pixels of |g|^2 x x^T and g g^T, for each group."""
    moment, gradient, _ = _zeros(conv)
    inputs, outputs = moment.shape[1], gradient.shape[1]
    for use in uses:
        if use.gradient is None:
            continue
        pixels = use.gradient[0, 0].numel()
        rows = max(1, CHUNK // (conv.groups * inputs * pixels))
        for x, g in zip(use.input.split(rows), use.gradient.split(rows), strict=True):
            x = patches(conv, x).float().permute(1, 2, 0, 3).flatten(2)
            g = g.float().view(len(g), conv.groups, outputs, pixels).permute(1, 2, 0, 3).flatten(2)
            x = x * g.norm(dim=1, keepdim=True)
            moment += x @ x.mT
            gradient += g @ g.mT
    return moment, gradient


def _key(
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
        4,
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


def _write(file: Path, statistics: Statistics) -> None:
    tensors = {"attacked": statistics.attacked}
    for name, layer in statistics.layers.items():
        tensors |= {f"{name}|moment": layer.moment, f"{name}|gradient": layer.gradient, f"{name}|alpha": layer.alpha}
        for structure, curves in statistics.curves[name].items():
            for group, found in enumerate(curves):
                tensors |= {f"{name}|{structure}|{group}|{field}": tensor for field, tensor in vars(found).items()}
    write_atomically(file, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))
    stale = sorted(file.parent.glob("statistics-*.safetensors"), key=os.path.getmtime)[:-KEPT_FILES]
    for old in stale:
        old.unlink(missing_ok=True)


def _read(
    file: Path,
    images: Tensor,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    attack: PGD | None,
    seed: int,
    device: torch.device,
) -> Statistics | None:
    """The statistics in a cache file; None if it is not there or not whole (they are then collected again)."""
    if not file.is_file():
        return None
    try:
        tensors = load_file(file, device=str(device))
        layers = {
            site.name: LayerStatistics(*(tensors[f"{site.name}|{part}"] for part in ("moment", "gradient", "alpha")))
            for site in sites
        }
        curves = {
            site.name: {
                structure.name: [_read_curve(structure, tensors, site.name, group) for group in range(site.conv.groups)]
                for structure in structures
                if structure.fits(site.conv)
            }
            for site in sites
        }
        return Statistics(images, tensors["attacked"].cpu(), layers, curves, attack, seed)
    except (SafetensorError, KeyError, TypeError, OSError):
        return None


def _read_curve(structure: Structure, tensors: dict[str, Tensor], name: str, group: int) -> Curve:
    prefix = f"{name}|{structure.name}|{group}|"
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    return structure.restored(own | {"losses": own["losses"].cpu()})
