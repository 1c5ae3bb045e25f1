"""What an attack is, how its label is written, and what the attacks of other libraries need around them."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError

NAMES = {"linf": "l-inf", "l2": "l-2", "l1": "l-1"}
"""How labels write the norms."""
LONGEST = 1e30
"""Radius and step: float32 holds what they are multiplied with."""


class Attack(Protocol):
    """What every attack is: a frozen dataclass of settings that is called like a function.

    str() gives a short label, dataclasses.asdict() a record for JSON. An attack draws the random numbers of a batch for the
    whole batch, whatever the model predicts. So two networks are attacked from the same starts.

    >>> from dataclasses import asdict
    >>> from gdws import attacks
    >>> attack: attacks.Attack = attacks.MSD(steps=2)
    >>> str(attack)
    'MSD-2 (l-inf, l-2, l-1, eps 0.03, 0.5, 12)'
    >>> asdict(attack)["steps"]
    2
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator | None = None, /) -> Tensor:
        """Make adversarial images.

        model      takes images (B, C, H, W) in [0, 1] and returns logits (B, classes).
        images     floats (B, C, H, W) in [0, 1], on the model's device.
        labels     integers (B,), the true classes.
        generator  all the randomness there is; without one, every call draws the same numbers.

        Returns images of the same shape, type and device, in [0, 1].
        """


def default_generator() -> torch.Generator:
    """For a call that got none: never the global one, which belongs to whoever called."""
    return torch.Generator().manual_seed(0)


def pixels(value: float) -> str:
    """8/255 for what is a whole number of 8-bit levels, and the plain number for the rest."""
    levels = value * 255
    return f"{round(levels)}/255" if 0 < value < 1 and abs(levels - round(levels)) < 1e-6 else f"{value:g}"


@contextmanager
def weights_without_gradients(model: nn.Module) -> Iterator[None]:
    """Other libraries call backward(): without this they would compute gradients of the weights and leave them there."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def optional(name: str, wanted_by: str) -> Any:
    """The module of an optional package."""
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # foolbox's zoo, which is not used here, wants git to be installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # foolbox uses old names of scipy's
            return importlib.import_module(name)
    except ImportError as error:
        raise GdwsError(f"{wanted_by} needs the package {name} ({error}): expected `pip install gdws[attacks]`") from None
