"""How a model is run: in eval mode, in true float32, on its own device and in its own type."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from gdws.errors import GdwsError

LARGEST_TEMPORARY = 2**22
"""Elements of the largest temporary tensor that a pass over many pixels makes at once."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own flag restored after."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def full_precision(*, tf32: bool = False) -> Iterator[None]:
    """True float32 on NVIDIA GPUs inside: PyTorch's default lets convolutions round their inputs to TF32. Or TF32, if asked."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device and floating type of the model's parameters."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.device, parameter.dtype
    raise GdwsError(f"the model {type(model).__name__} has no floating-point parameters: expected a CNN")


def at_least_float32(model: nn.Module) -> nn.Module:
    """The model itself, or a float32 copy where its own type is narrower."""
    return copy.deepcopy(model).float() if placement(model)[1] in (torch.float16, torch.bfloat16) else model
