"""Short hashes by which a network, a batch of data and single images are known again."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn


def weights_hash(model: nn.Module) -> str:
    """Of the kinds and names of the modules, and of every tensor."""
    digest = hashlib.blake2b(repr(model).encode(), digest_size=8)
    tensors = dict(model.named_buffers()) | model.state_dict()  # what images are normalized by is in no state dict
    for name, value in tensors.items():
        digest.update(name.encode())
        digest.update(_content(value))
    return digest.hexdigest()


def data_hash(images: Tensor, labels: Tensor) -> str:
    """Of one batch."""
    digest = hashlib.blake2b(str(tuple(images.shape)).encode(), digest_size=8)
    digest.update(_content(images))
    digest.update(_content(labels.long()))
    return digest.hexdigest()


def image_hashes(images: Tensor) -> tuple[str, ...]:
    """A short hash of each image as bytes (N, C, H, W), to tell whether two sets of images overlap."""
    pixels = images if images.dtype == torch.uint8 else (images * 255).round().to(torch.uint8)
    return tuple(hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=6).hexdigest() for image in pixels)


def _content(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
