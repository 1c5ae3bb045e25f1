"""What follows a convolution, such as BatchNorm, ReLU and sums, written so that torch.compile puts it into the same kernel.

A kernel for a convolution has the image, channel, row and column of each value (B, C, H, W) that it computes. What is joined to
it uses them if it goes through its own values in this order. Left to itself torch.compile prefers the order of memory, in which
nothing is joined. Told to keep the order of the axes it takes rows and columns as one, where it can, and computes places from
that; then Triton no longer sees that neighbouring channels lie next to each other in memory, and each value is read and
written alone (306 us instead of 36 for 64 channels of 32x32). So it is told to keep the order of the axes, rows and columns
are kept apart behind convolutions, and everything else is written in the order of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tag, Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from gdws.deploy.fx.graph import convolution_arguments

aten = torch.ops.aten
UNTAGGED = (aten.hardswish.default, aten.prelu.default)
"""What works on single values and is not marked so in PyTorch."""
POOLS = (aten.max_pool2d.default, aten.avg_pool2d.default)
ORDERS = {"pick_loop_orders": False}
"""For torch.compile: values are gone through in the order of their axes."""


def fuse_epilogues(network: GraphModule, convs: Collection[Node]) -> None:
    """Rewrite what works on single values of maps, or pools them, in a functional graph (gdws.deploy.fx.graph).

    What follows one of `convs`, whose kernels torch.compile makes, goes by rows and columns, all else by memory. A 1x1
    convolution of all pixels is a product, whose kernel goes by memory too.
    """
    graph = network.graph
    single = [node for node in graph.nodes if _gives_maps(node) and _is_of_single_values(node)]
    kernels = [conv for conv in convs if not _is_product(conv)]
    following = _followers(single, kernels, {node: place for place, node in enumerate(graph.nodes)})
    others = [node for node in single if node not in following]
    for kind in (following, others):
        ends = [node for node in kind if len(node.users) != 1 or next(iter(node.users)) not in kind]
        for node in ends:  # all else is computed where it is used
            _after(node, laid if kind is others else by_rows_and_columns if len(node.users) == 1 else once)
    for node in [node for node in graph.nodes if _gives_maps(node) and node.target in POOLS]:
        _after(node, laid)
    network.recompile()


def _followers(single: list[Node], convs: Collection[Node], places: dict[Node, int]) -> dict[Node, None]:
    """Those that can be joined to one of these convolutions: it can run last of all that they read."""
    found = dict[Node, None]()
    for node in single:
        maps = [value for value in node.all_input_nodes if value.op != "get_attr"]
        last = max(maps, key=lambda value: places[value], default=None)
        if last in found or any(value in convs and (value is last or len(value.users) == 1) for value in maps):
            found[node] = None
    return found


def by_rows_and_columns(maps: Tensor) -> Tensor:
    """The same values (B, C, H, W): what asks for the number of a column cannot take rows and columns as one."""
    columns = torch.arange(maps.shape[3], device=maps.device)
    return torch.where(columns >= 0, maps, 0)


def once(maps: Tensor) -> Tensor:
    """The same, computed once, into channels-last memory: torch.compile might compute it anew wherever it is used."""
    _, channels, height, width = maps.shape
    return _strided(by_rows_and_columns(maps), [height * width * channels, 1, width * channels, channels])


def laid(maps: Tensor) -> Tensor:
    """The same values (B, C, H, W), computed once, in the order of channels-last memory."""
    return placed(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def placed(pixels: Tensor) -> Tensor:
    """The same values (B, H, W, C), computed once, into memory in the order of their axes."""
    _, height, width, channels = pixels.shape
    return _strided(pixels, [height * width * channels, width * channels, channels, 1])


def _strided(values: Tensor, strides: list[int]) -> Tensor:
    if not torch.compiler.is_compiling():
        return values
    forced: Tensor = torch.ops.prims.inductor_force_stride_order(values, strides)
    return forced


def _gives_maps(node: Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, Tensor) and value.ndim == 4 and value.is_floating_point()


def _is_of_single_values(node: Node) -> bool:
    given: list[Any] = [value.meta["val"] for value in node.all_input_nodes]  # which may be numbers, such as the batch's size
    tagged = isinstance(node.target, OpOverload) and Tag.pointwise in node.target.tags and node.target is not aten.clone.default
    return (tagged or node.target in UNTAGGED) and all(isinstance(value, Tensor) for value in given)


def _is_product(conv: Node) -> bool:
    _, weight, _, stride, padding, _, groups = convolution_arguments(conv)
    return (*weight.meta["val"].shape[2:], *stride, *padding, groups) == (1, 1, 1, 1, 0, 0, 1)


def _after(node: Node, function: Callable[[Tensor], Tensor]) -> None:
    """Have all that read this node read a function of it."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(function, (node,))
    made.meta.update(node.meta)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
