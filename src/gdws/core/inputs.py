"""What a network is called with: one tensor, or several by position and by name.

All that is done with inputs here is to cut them into batches, to move them and to put them together. One tensor stays a
plain tensor; several are `Arguments`, which are cut, moved and put together alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError, first_line


class Arguments:
    """Several tensors that a network is called with: by position, by name, or both. Each has a row for every sample.

    positional  tensors (B, ...).
    named       tensors (B, ...), by the names that the network's forward pass has for them.

    Raises GdwsError when there is no tensor, or when they are not of one number of samples.

    >>> import torch
    >>> arguments = Arguments(torch.rand(4, 1, 8, 8), sigma=torch.rand(4))
    >>> len(arguments), [tuple(part.shape) for part in arguments[:2].tensors]
    (4, [(2, 1, 8, 8), (2,)])
    """

    def __init__(self, *positional: Tensor, **named: Tensor) -> None:
        self.positional, self.named = positional, named
        for value in self.tensors:
            if not isinstance(value, Tensor) or value.ndim == 0:
                given = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
                raise GdwsError(f"an argument of the network is {given}: expected tensors with a row for every sample")
        counts = sorted({len(value) for value in self.tensors})
        if len(counts) != 1:
            raise GdwsError(f"the arguments of the network have {counts} rows: expected tensors of one number of samples")

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, those by position first."""
        return [*self.positional, *self.named.values()]

    @property
    def names(self) -> list[str]:
        """What a file calls them."""
        return [*(f"input{index}" for index in range(len(self.positional))), *self.named]

    def map(self, change: Callable[[Tensor], Tensor]) -> Arguments:
        """The same arguments, each given to `change`."""
        return Arguments(*map(change, self.positional), **{name: change(value) for name, value in self.named.items()})

    def with_tensors(self, tensors: Sequence[Tensor]) -> Arguments:
        """The same arguments with other values, in the order of `tensors`."""
        count = len(self.positional)
        return Arguments(*tensors[:count], **dict(zip(self.named, tensors[count:], strict=True)))

    def call(self, model: nn.Module) -> Any:
        """What `model` gives for these arguments."""
        return model(*self.positional, **self.named)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, rows: slice) -> Arguments:
        return self.map(lambda value: value[rows])

    def split(self, rows: int) -> list[Arguments]:
        """Batches of so many `rows`; the last one may have fewer."""
        return [self[start : start + rows] for start in range(0, len(self), rows)]


Inputs = Tensor | Arguments


def tensors_of(inputs: Inputs) -> list[Tensor]:
    return [inputs] if isinstance(inputs, Tensor) else inputs.tensors


def names_of(inputs: Inputs) -> list[str]:
    """What a file calls them: one tensor has the name "images"."""
    return ["images"] if isinstance(inputs, Tensor) else inputs.names


def map_tensors(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    return change(inputs) if isinstance(inputs, Tensor) else inputs.map(change)


def place(inputs: Inputs, device: torch.device | str, dtype: torch.dtype) -> Inputs:
    """On a device, and floats in a type."""
    return map_tensors(inputs, lambda value: value.to(device, dtype if value.is_floating_point() else None))


def with_gradients(inputs: Inputs) -> Inputs:
    """The same values as leaves of a graph of gradients; integers as they are."""
    return map_tensors(inputs, lambda value: value.detach().clone().requires_grad_(value.is_floating_point()))


def noise_like(inputs: Inputs, count: int, generator: torch.Generator) -> Inputs:
    """So many samples of seeded noise of the same shapes and types, floats in [0, 1]; integers are zero."""

    def drawn(value: Tensor) -> Tensor:
        shape = count, *value.shape[1:]
        return torch.rand(shape, generator=generator) if value.is_floating_point() else value.new_zeros(shape)

    return map_tensors(inputs, drawn)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """All samples of several batches. Raises GdwsError when they are not called with the same arguments."""
    first = parts[0]
    if isinstance(first, Tensor):
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if len(tensors) == len(parts):
            return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    else:
        several = [part for part in parts if isinstance(part, Arguments) and part.names == first.names]
        if len(several) == len(parts):
            return first.with_tensors([torch.cat(column) for column in zip(*(p.tensors for p in several), strict=True)])
    raise GdwsError("the batches have different arguments: expected all of one kind")


def split_with_labels(images: Tensor, labels: Tensor | None, count: int) -> list[tuple[Tensor, Tensor | None]]:
    """Batches of so many images, each with its labels or None."""
    parts = images.split(count)
    return list(zip(parts, [None] * len(parts) if labels is None else labels.split(count), strict=True))


def repeat_first(inputs: Inputs, count: int) -> Inputs:
    """The first sample so many times, floats in float32: a batch to time a network with."""

    def repeated(value: Tensor) -> Tensor:
        own = value[:1].float() if value.is_floating_point() else value[:1]
        return own.repeat(count, *(1 for _ in own.shape[1:]))

    return map_tensors(inputs, repeated)


def sample_shapes(inputs: Inputs) -> list[tuple[int, ...]]:
    """The shape of each tensor without its first dimension."""
    return [tuple(value.shape[1:]) for value in tensors_of(inputs)]


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """model(inputs). Whatever it raises becomes one sentence: most of it comes of inputs of another size or number."""
    try:
        return model(inputs) if isinstance(inputs, Tensor) else inputs.call(model)
    except GdwsError:
        raise
    except TypeError as error:
        given = "one tensor" if isinstance(inputs, Tensor) else ", ".join(inputs.names)
        raise GdwsError(
            f"the model {type(model).__name__} cannot be called with {given} ({first_line(error)}): expected batches of what "
            "its forward pass takes; several tensors as a dictionary of arguments or gdws.Arguments(...)"
        ) from error
    except Exception as error:
        shapes = " and ".join(map(str, sample_shapes(inputs)))
        raise GdwsError(f"the model cannot run on images of shape {shapes}: {first_line(error)}") from error


def floats_in(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output: a tensor, or lists, tuples and dictionaries of some, nested."""
    return list(_floats(output))


def _floats(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _floats(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _floats(value)
    elif hasattr(output, "__dataclass_fields__"):
        for name in output.__dataclass_fields__:
            yield from _floats(getattr(output, name))
