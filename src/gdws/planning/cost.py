"""What a network costs on paper: multiply-adds, parameters, size.

A MAC count says nothing of memory traffic, launch overhead or how well a kernel runs: it ranks plans, it is not a time.
`gdws bench` measures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gdws.core.checks import check_values
from gdws.core.execution import evaluating, placement, private_copy
from gdws.core.inputs import Inputs, call_model, map_tensors, place, tensors_of
from gdws.core.sites import Site
from gdws.core.unwrap import unwrap

PRUNED = 0.99
"""A larger share of non-zeros is no pruned network's: zeros come by chance, too, and in channels that training let die."""


@dataclass(frozen=True)
class Cost:
    """What a network costs on paper.

    macs        multiply-adds for one image.
    parameters  number of all weights and biases.
    size_mb     size in MB: parameters x 4 / 2^20, of weights only the non-zero ones.
    nonzeros    how many these are: non-zero weights, and all norms and biases.
    """

    macs: int
    parameters: int
    size_mb: float
    nonzeros: int


def network_cost(model: nn.Module, example: Inputs) -> Cost:
    """Count the multiply-adds and parameters of a whole network.

    model    a network. It is left as it was found.
    example  images (B, C, H, W) of the size in question, or what else it is called with. Only shapes are used.

    Returns Cost, with fields macs (for one image), parameters, nonzeros (of weights only the non-zero ones) and size_mb
    (nonzeros x 4 / 2^20). torch.utils.flop_counter counts, two flops a multiply-add. This is not a time: gdws.bench measures.

    >>> import gdws, torch
    >>> cost = gdws.network_cost(gdws.models.embedded(), torch.rand(1, 3, 32, 32))
    >>> cost.macs, cost.parameters
    (124617984, 991658)
    """
    for value in tensors_of(example):
        check_values(value, "the example is", "images (B, C, H, W), or what the network is called with")
    model = private_copy(unwrap(model))
    device, dtype = placement(model)
    with evaluating(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        call_model(model, place(map_tensors(example[:1], torch.zeros_like), device, dtype))
    parameters = list(model.parameters())
    # Norms and biases that happen to be zero are still stored; pruned weights are not.
    stored = sum(int(p.count_nonzero()) if p.ndim > 1 else p.numel() for p in parameters)
    return Cost(counter.get_total_flops() // 2, sum(p.numel() for p in parameters), stored * 4 / 2**20, stored)


def dense_macs(site: Site) -> int:
    """H'W' M C K^2 of a convolution, for one image."""
    return site.positions * site.conv.weight.numel()


def dense_parameters(site: Site) -> int:
    """Weights of a convolution; its bias stays as it is and is not counted."""
    return site.conv.weight.numel()
