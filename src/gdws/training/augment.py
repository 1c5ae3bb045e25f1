"""Random crops and flips of a whole batch at once, on the device that holds it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4, flip: bool = True) -> Tensor:
    """Each image moved by up to `padding` pixels, black coming in at the sides, and, if asked, mirrored with probability 1/2.

    images (B, C, H, W) of any type; the generator is on their device.
    """
    (count, channels, height, width), device = images.shape, images.device
    down, right = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=device)
    columns = torch.arange(width, device=device).expand(count, width)
    if flip:
        mirrored = torch.rand(count, 1, generator=generator, device=device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    rows = torch.arange(height, device=device) + down
    padded = F.pad(images, (padding,) * 4)
    return padded[
        torch.arange(count, device=device).view(-1, 1, 1, 1),
        torch.arange(channels, device=device).view(1, -1, 1, 1),
        rows.view(count, 1, height, 1),
        (columns + right).view(count, 1, 1, width),
    ]
