"""What is deployed of a network, to be evaluated with it: an ONNX file, or the network in half precision."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError
from gdws.core.execution import own_copy, placement
from gdws.deploy.interface import are_logits
from gdws.deploy.onnx.reading import images_together
from gdws.deploy.runtimes import OnnxRuntime


@dataclass(frozen=True)
class Deployed:
    """Another execution of the network called `of`: images in [0, 1] to logits, and what tells it from others."""

    of: str
    run: Callable[[Tensor], Tensor]
    identity: str


def deployed_half(model: nn.Module, name: str) -> Deployed:
    """The network of this name in half precision: weights, images and arithmetic in float16."""
    copied = own_copy(model).half().eval()
    device, _ = placement(copied)
    return Deployed(name, lambda images: copied(images.to(device, torch.float16)), "float16")


def deployed_file(path: Path, name: str) -> Deployed:
    """An ONNX file, in ONNX Runtime, of the network of this name."""
    session = OnnxRuntime(path)
    together = images_together(path)  # a small file may hold a very wide network

    def run(images: Tensor) -> Tensor:
        parts = images.split(together if session.batch is None else len(images))
        return torch.cat([_checked(session(part), part, path) for part in parts])

    return Deployed(name, run, hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest())


def _checked(logits: object, images: Tensor, path: Path) -> Tensor:
    if not isinstance(logits, Tensor) or not are_logits(logits, images):
        shown = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise GdwsError(f"{path} gives {shown} for {len(images)} images: expected logits ({len(images)}, classes)")
    return logits
