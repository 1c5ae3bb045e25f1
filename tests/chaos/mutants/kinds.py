"""The kinds of files: whole ones, what spoils them and what checks them.

Caches are stricter: what a spoiled one gives must be what gdws computes without one.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from chaos.case import Case, Family
from chaos.mutants import binary, datasets, graphs, jsonwise, networks, runs
from chaos.mutants.bytewise import Mutator, bytewise
from chaos.mutants.sources import content_of

Check = Callable[[Case, bytes, str], None]


@dataclass(frozen=True)
class Kind:
    """A kind of file: whole ones, what spoils them beside their bytes, and what reads and checks them."""

    count: int
    sources: Sequence[str]
    structural: Sequence[Mutator]
    check: Check


MANIFESTS = ("fast/gdws.json", "split/gdws.json")
PICTURES = (
    *("pictures/rgb.png", "pictures/palette.png", "pictures/gray.png", "pictures/alpha.png"),
    *("pictures/rgb.jpg", "pictures/cmyk.jpg", "pictures/progressive.jpg", "pictures/rgb.webp"),
    *("pictures/rgb.bmp", "pictures/rgb.ppm", "pictures/rgb.tif", "pictures/packed.tif"),
)
PLANS = ("plan-uniform.json", "plan-paper.json", "plan-calibrated.json", "plan-timed.json")


def _png_if_it_is(content: bytes, random: Random) -> bytes:
    return (binary.png if content.startswith(b"\x89PNG") else bytewise)(content, random)


KINDS = {
    "manifest": Kind(2500, MANIFESTS, [jsonwise.json_file], networks.manifest),
    "plan": Kind(2500, PLANS, [jsonwise.json_file], networks.plan),
    "saved": Kind(1200, ["fast/model.safetensors", "split/model.safetensors"], [binary.safetensors], networks.saved_weights),
    "safetensors": Kind(1500, ["weights.safetensors", "half.safetensors"], [binary.safetensors], networks.safetensors),
    "torch": Kind(2200, ["weights.pt", "nested.pt"], [binary.zipped], networks.torch_file),
    "legacy": Kind(1000, ["legacy.pt"], [binary.pickled], networks.torch_file),
    "onnx": Kind(2500, ["fast/model.onnx", "split/model.onnx", "int8.onnx"], [graphs.onnx_file], networks.onnx),
    "npz": Kind(2000, ["stored.npz", "packed.npz", "splits.npz"], [binary.zipped], datasets.npz),
    "npy": Kind(300, ["images.npy"], [binary.npy_header], datasets.npz),
    "mat": Kind(1200, ["plain.mat", "packed.mat"], [binary.compressed_mat], datasets.mat),
    "image": Kind(1500, PICTURES, [_png_if_it_is], datasets.image),
    "cifar": Kind(800, ["cifar/cifar-10-batches-py/test_batch"], [binary.pickle_file], datasets.cifar),
    "archive": Kind(500, ["cifar-10-python.tar.gz"], [binary.gzipped], datasets.archive),
    "checkpoint": Kind(500, ["training/checkpoint.safetensors"], [binary.safetensors], runs.checkpoint),
    "log": Kind(100, ["training/log.jsonl"], [jsonwise.json_lines], runs.checkpoint),
    "evaluation": Kind(900, ["evaluation.jsonl"], [jsonwise.json_lines], runs.evaluation),
    "statistics": Kind(300, ["statistics"], [binary.safetensors], runs.statistics),
    "latency": Kind(500, ["latency"], [jsonwise.json_file], runs.latency),
}
"""By the name of the family: 20,000 and somewhat more in all."""


def families() -> list[Family]:
    return [Family(f"mutants/{name}", kind.count, functools.partial(_attempt, kind), short=15) for name, kind in KINDS.items()]


def _attempt(kind: Kind, case: Case) -> None:
    source = case.random.choice(kind.sources)
    content = spoiled(kind, source, case.random)
    case.key = hashlib.sha256(source.encode() + content).hexdigest()
    case.tell(f"{source}, spoiled: {len(content)} bytes")
    kind.check(case, content, source)


def spoiled(kind: Kind, source: str, random: Random) -> bytes:
    content = content_of(source)
    if kind.structural and random.random() < 0.6:
        try:
            return random.choice(kind.structural)(content, random)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
            pass  # the change makes no file
    return bytewise(content, random)
