"""What a file calls its inputs and outputs, and which of their sizes are free: kept from the file that a network came from, so
that the file that is made of it can stand in its place."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

_SIGNATURE = "gdws_signature"


@dataclass(frozen=True)
class Port:
    """One input or output.

    name   in the file.
    dtype  of its values, as numpy calls it: "float32", "int64", ...
    shape  its sizes; a free size is a name, such as "batch", or None where the file has none for it.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a file, in its order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def signature_of(model: nn.Module) -> Signature | None:
    """That of the file that a network came from; None for one that came from none."""
    found = getattr(model, _SIGNATURE, None)
    return found if isinstance(found, Signature) else None


def attach_signature(model: nn.Module, signature: Signature) -> None:
    setattr(model, _SIGNATURE, signature)
