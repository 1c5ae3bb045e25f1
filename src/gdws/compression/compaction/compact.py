"""A network with channels that are zero as the smaller network that computes the same function."""

from __future__ import annotations

import math

import torch
from torch import nn

from gdws.compression.compaction.channels import join_norms, remove_channels, split_norms
from gdws.compression.compaction.constants import merge_constants
from gdws.compression.compaction.rebuild import note_smaller, size_of, smaller_layers
from gdws.core.checks import check_weights
from gdws.core.errors import GdwsError
from gdws.core.execution import own_copy, placement
from gdws.core.inputs import Inputs, call_model, concatenate, floats_in, noise_like, place
from gdws.core.unwrap import unwrap
from gdws.structures.layers import FactoredConv2d

EXACT, ROUNDING = 1e-9, 100
"""Differences of the largest output in float64: where no weight was changed; and where some were, times what rounds them."""
SIZED = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d)
"""Layers that can become smaller."""


def compact(model: nn.Module, example: Inputs) -> nn.Module:
    """Make a pruned network really smaller: a dense network that computes the same function; `model` is untouched.

    model    a network with exact zeros: BatchNorm channels whose weight and bias are zero, filters that are zero, or weights
             that nothing makes use of. Factorize it afterwards, not before.
    example  images (B, C, H, W), or what else it is called with.

    Channels go from chains, sums and concatenations wherever that changes nothing, and of those that are constant one is left
    to stand for the others. Where a BatchNorm has zeros on a residual
    stream, which keeps its channels, it works on those that are left, and so do the convolutions beside it.

    Returns the smaller copy, in eval mode. It was compared with the original in float64, on the example and on noise. Raises
    GdwsError when torch-pruning is not installed or does not understand the network, or when the two differ.

    >>> import gdws, torch
    >>> model = gdws.zoo.build("vgg16").eval()
    >>> norm = model.features[1]
    >>> norm.weight.data[::2] = norm.bias.data[::2] = 0
    >>> gdws.compact(model, torch.rand(1, 3, 32, 32)).features[3]
    Conv2d(32, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
    """
    model = unwrap(model)
    check_weights(model)
    factored = [name for name, layer in model.named_modules() if isinstance(layer, FactoredConv2d)]
    if factored:
        raise GdwsError(f"{factored[0]} is factorized: expected a network to compact first, and to factorize afterwards")
    device, _ = placement(model)
    small = own_copy(model).eval().cpu()  # what goes is a matter of indices, and those are on the CPU
    trained = {name: parameter.requires_grad for name, parameter in small.named_parameters()}
    small.requires_grad_(True)  # gradients show what depends on what
    placed = placement(small)
    noise = noise_like(example, 1, torch.Generator().manual_seed(0))
    samples = concatenate([place(example[:1], *placed), place(noise, *placed)])
    before = {name: size_of(layer) for name, layer in small.named_modules() if isinstance(layer, SIZED)}
    _remove_all(small, samples)
    merged = merge_constants(small, samples)
    if merged:
        _remove_all(small, samples)
    split_norms(small, samples)
    _remove_all(small, samples)
    join_norms(small)
    for name, parameter in small.named_parameters():
        parameter.requires_grad_(trained.get(name, True))
    _check_same(model, small, samples, ROUNDING * torch.finfo(placed[1]).eps if merged else EXACT)
    changed = [name for name, size in before.items() if size != size_of(small.get_submodule(name))]
    note_smaller(small, dict.fromkeys((*smaller_layers(model), *changed)))
    return small.to(device)


def _remove_all(model: nn.Module, samples: Inputs) -> None:
    """What goes may have been the only reason for something else."""
    while remove_channels(model, samples):
        pass


def _check_same(model: nn.Module, small: nn.Module, samples: Inputs, tolerance: float) -> None:
    """Compare in float64."""
    answers = []
    for network in (model, small):
        wide = own_copy(network, torch.float64).eval()
        with torch.no_grad():
            answers.append([output.cpu() for output in floats_in(call_model(wide, place(samples, *placement(wide))))])
    for wanted, found in zip(*answers, strict=True):
        same = wanted.shape == found.shape
        difference, largest = float((wanted - found).abs().max()) if same else math.inf, float(wanted.abs().max())
        if not difference <= tolerance * max(1.0, largest):
            raise GdwsError(
                f"{type(model).__name__} without its zero channels differs by {difference:.2g} in an output of at most "
                f"{largest:.2g}: expected a network that Torch-Pruning understands; it stays as it is"
            )
