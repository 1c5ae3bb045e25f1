"""Where a network's convolutions are, what runs through them, and how to put others in their places."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.lazy import LazyModuleMixin
from torch.overrides import TorchFunctionMode

from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating
from gdws.core.inputs import Inputs, call_model

HOOKS = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook"),
)
"""Where a module has the hooks on its passes."""


@dataclass(frozen=True)
class Site:
    """A convolution in its network.

    maps    (H, W, H', W') of its input and output for one sample: one entry for each use, and for each map of the sample in it,
            such as the frames of a clip
    reason  why it stays dense; None if it may be replaced
    """

    name: str
    conv: nn.Conv2d = field(repr=False)
    maps: tuple[tuple[int, int, int, int], ...]
    reason: str | None

    @property
    def positions(self) -> int:
        """Output pixels of one sample, in all uses."""
        return sum(height * width for _, _, height, width in self.maps)


def find_convolutions(
    model: nn.Module,
    example: Inputs,
    *,
    exclude: Sequence[str] = (),
    keep_first: bool = True,
    keep_1x1: bool = True,
) -> list[Site]:
    """Every nn.Conv2d in the order in which they first run on `example`, with the reason to keep it dense.

    exclude: shell patterns of module names. The paper keeps the first and all 1x1 convolutions; so does the default.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    maps: dict[nn.Conv2d, tuple[tuple[int, int, int, int], ...]] = {}
    alone = set[nn.Conv2d]()

    def look(module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        given = input_of(inputs, named)
        if given.ndim == 3:
            alone.add(module)
        count = len(given) if given.ndim == 4 else 1
        maps[module] = maps.get(module, ()) + count * ((*given.shape[-2:], *output.shape[-2:]),)

    # Before hooks of others, which may change the output.
    handles = [module.register_forward_hook(look, prepend=True, with_kwargs=True) for module in names]
    try:
        with evaluating(model), torch.no_grad():
            call_model(model, example[:1])
    finally:
        for handle in handles:
            handle.remove()
    replaced = [f"{name or 'the model'} has a forward of its own" for name, m in model.named_modules() if "forward" in vars(m)]
    if not maps:
        why = f", since {replaced[0]}" if replaced and names else ""
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise GdwsError(f"the model {type(model).__name__} is or holds TorchScript: expected what it was made from")
        raise GdwsError(f"the model {type(model).__name__} runs no nn.Conv2d{why}: expected a CNN")

    first = next(iter(maps))
    unused = [pattern for pattern in exclude if not fnmatch.filter(names.values(), pattern)]
    if unused:
        raise GdwsError(f"no convolution is called {unused[0]!r}: expected a pattern such as {names[first]!r}")

    def reason(conv: nn.Conv2d) -> str | None:
        for pattern in exclude:
            if fnmatch.fnmatchcase(names[conv], pattern):
                return f"excluded by {pattern!r}"
        if conv not in maps:
            return f"never runs, since {replaced[0]}" if replaced else "never runs"
        if (special := why_not_plain(conv)) is not None:
            return special
        if conv in alone:
            return "called with a map (C, H, W) without a batch"
        if keep_first and conv is first:
            return "first layer"
        if keep_1x1 and conv.kernel_size == (1, 1):
            return "1x1"
        if conv.groups == conv.in_channels and conv.groups > 1:
            return "depthwise"
        return None

    ordered = [*maps, *(conv for conv in names if conv not in maps)]
    return [Site(names[conv], conv, maps.get(conv, ()), reason(conv)) for conv in ordered]


OTHER_KINDS = {
    nn.ConvTranspose2d: "a transposed convolution",
    nn.Conv1d: "a convolution in one dimension",
    nn.Conv3d: "a convolution in three dimensions",
    nn.ConvTranspose1d: "a transposed convolution in one dimension",
    nn.ConvTranspose3d: "a transposed convolution in three dimensions",
}
"""Convolutions that stay as they are, and why."""
AS_FUNCTIONS = "convolutions called as functions"


class _Functions(TorchFunctionMode):
    """Counts the convolutions that run, called as functions or by modules."""

    def __init__(self) -> None:
        self.calls = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.calls += function in (torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_transpose2d)
        return function(*args, **(kwargs or {}))


def other_convolutions(model: nn.Module, example: Inputs) -> dict[str, str]:
    """Convolutions that are no nn.Conv2d, by name, and why they stay as they are; those called as functions are counted."""
    found = {
        name: reason
        for name, module in model.named_modules()
        for kind, reason in OTHER_KINDS.items()
        if isinstance(module, kind) and not isinstance(module, LazyModuleMixin)
    }
    by_modules = 0

    def count(*_: Any) -> None:
        nonlocal by_modules
        by_modules += 1

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    handles = [module.register_forward_hook(count) for module in model.modules() if isinstance(module, kinds)]
    try:
        with evaluating(model), torch.no_grad(), _Functions() as functions:
            call_model(model, example[:1])
    finally:
        for handle in handles:
            handle.remove()
    if functions.calls > by_modules:
        found[AS_FUNCTIONS] = f"{functions.calls - by_modules} calls that no nn.Conv2d makes, which are not seen"
    return found


def why_not_plain(conv: nn.Conv2d) -> str | None:
    """Why no other layer can do what this one does; None if it does what every nn.Conv2d does."""
    if type(conv) is not nn.Conv2d:
        return f"a {type(conv).__name__}, not a plain Conv2d"
    if "forward" in vars(conv):
        return "has a forward of its own"
    if "weight" not in conv._parameters:
        return "its weight is computed"
    return None if conv.weight.is_floating_point() else f"weights in {conv.weight.dtype}"


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Swap modules in place, under every name that they have in the model. Hooks on their passes go with their places."""
    for old, new in replacements.items():
        for name in HOOKS:
            vars(old)[name], vars(new)[name] = vars(new)[name], vars(old)[name]
    for parent in list(model.modules()):
        # named_children would list a module that has two names in one parent only once
        for name, child in list(parent._modules.items()):
            if child is not None and child in replacements:
                setattr(parent, name, replacements[child])


def input_of(inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """The input of a convolution that was called as conv(x) or conv(input=x)."""
    given = inputs[0] if inputs else named["input"]
    assert isinstance(given, Tensor)
    return given


def patches(conv: nn.Conv2d, x: Tensor, rows: tuple[int, int] | None = None, drawn: Tensor | None = None) -> Tensor:
    """What each output pixel of a convolution sees: (B, groups, C / groups * kh * kw, H'W').

    rows   the first output row, and that after the last; all by default.
    drawn  of the pixels of these rows, the numbers of those that are wanted; all by default.
    """
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    padded = F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
    if rows is not None:
        stride, reach = conv.stride[0], conv.dilation[0] * (conv.kernel_size[0] - 1) + 1
        padded = padded[:, :, rows[0] * stride : (rows[1] - 1) * stride + reach]
    if drawn is None:
        columns = F.unfold(padded, conv.kernel_size, conv.dilation, 0, conv.stride)
    else:
        # What each tap of each drawn pixel reads: the other pixels' patches are never made.
        places = torch.arange(padded[0, 0].numel(), dtype=torch.float64, device=x.device).view(1, 1, *padded.shape[2:])
        read = F.unfold(places, conv.kernel_size, conv.dilation, 0, conv.stride)[0, :, drawn].long()
        columns = padded.flatten(2).gather(2, read.flatten().expand(*padded.shape[:2], -1)).view(len(x), -1, len(drawn))
    return columns.view(len(x), conv.groups, -1, columns.shape[2])
