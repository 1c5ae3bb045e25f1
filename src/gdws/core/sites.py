"""Where a network's convolutions are, what runs through them, and how to put others in their places."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gdws.core.checks import run_model
from gdws.core.execution import evaluating
from gdws.errors import GdwsError


@dataclass(frozen=True)
class Site:
    """A convolution in its network.

    maps    (H, W, H', W') of its input and output for one image, one entry for each use
    reason  why it stays dense; None if it may be replaced
    """

    name: str
    conv: nn.Conv2d = field(repr=False)
    maps: tuple[tuple[int, int, int, int], ...]
    reason: str | None

    @property
    def positions(self) -> int:
        """Output pixels of all uses."""
        return sum(height * width for _, _, height, width in self.maps)

    @property
    def taps(self) -> int:
        return self.conv.kernel_size[0] * self.conv.kernel_size[1]


def find_convolutions(
    model: nn.Module,
    example: Tensor,
    *,
    exclude: Sequence[str] = (),
    keep_first: bool = True,
    keep_1x1: bool = True,
) -> list[Site]:
    """Every nn.Conv2d in the order in which they first run on `example` (B, C, H, W), with the reason to keep it dense.

    exclude: shell patterns of module names. The paper keeps the first and all 1x1 convolutions; so does the default.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    maps: dict[nn.Conv2d, tuple[tuple[int, int, int, int], ...]] = {}

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        maps[module] = (*maps.get(module, ()), (*inputs[0].shape[2:], *output.shape[2:]))

    handles = [module.register_forward_hook(count) for module in names]
    try:
        with evaluating(model), torch.no_grad():
            run_model(model, example[:1])
    finally:
        for handle in handles:
            handle.remove()
    if not maps:
        raise GdwsError(f"the model {type(model).__name__} runs no nn.Conv2d: expected a CNN")

    first = next(iter(maps))
    unused = [pattern for pattern in exclude if not fnmatch.filter(names.values(), pattern)]
    if unused:
        raise GdwsError(f"no convolution is called {unused[0]!r}: expected a pattern such as {names[first]!r}")

    def reason(conv: nn.Conv2d) -> str | None:
        for pattern in exclude:
            if fnmatch.fnmatchcase(names[conv], pattern):
                return f"excluded by {pattern!r}"
        if conv not in maps:
            return "never runs"
        if type(conv) is not nn.Conv2d:
            return f"a {type(conv).__name__}, not a plain Conv2d"
        if keep_first and conv is first:
            return "first layer"
        if keep_1x1 and conv.kernel_size == (1, 1):
            return "1x1"
        if conv.groups == conv.in_channels and conv.groups > 1:
            return "depthwise"
        return None

    ordered = [*maps, *(conv for conv in names if conv not in maps)]
    return [Site(names[conv], conv, maps.get(conv, ()), reason(conv)) for conv in ordered]


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Swap modules in place, under every name that they have in the model."""
    for parent in list(model.modules()):
        # named_children would list a module that has two names in one parent only once
        for name, child in list(parent._modules.items()):
            if child is not None and child in replacements:
                setattr(parent, name, replacements[child])


def patches(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """What each output pixel of a convolution sees: (B, groups, C / groups * kh * kw, H'W')."""
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    padded = F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
    columns = F.unfold(padded, conv.kernel_size, conv.dilation, 0, conv.stride)
    return columns.view(len(x), conv.groups, -1, columns.shape[2])
