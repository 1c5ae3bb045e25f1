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
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten
SINGLE_VALUES = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.relu.default)
"""What works on single values."""
ORDERS = {"pick_loop_orders": False}
"""For torch.compile: values are gone through in the order of their axes."""


def join(network: GraphModule, convs: Collection[Node]) -> None:
    """Rewrite what works on single values of maps in a functional graph (gdws.folding).

    What follows one of `convs`, whose kernels torch.compile makes, goes by rows and columns, all else by memory.
    """
    graph = network.graph
    single = [node for node in graph.nodes if _is_on_maps(node)]
    following = _followers(single, convs, {node: place for place, node in enumerate(graph.nodes)})
    others = [node for node in single if node not in following]
    for kind in (following, others):
        ends = [node for node in kind if len(node.users) != 1 or next(iter(node.users)) not in kind]
        for node in ends:  # all else is computed where it is used
            function = laid if kind is others else by_rows_and_columns if len(node.users) == 1 else once
            _after(node, function)
    for node in others:
        for value in node.all_input_nodes:
            with graph.inserting_before(node):
                node.replace_input_with(value, graph.call_function(as_memory, (value,)))
        _after(node, as_maps)
    network.recompile()


def _followers(single: list[Node], convs: Collection[Node], places: dict[Node, int]) -> dict[Node, None]:
    """Those that can be joined to one of these convolutions: it can run last of all that they read."""
    found = dict[Node, None]()
    for node in single:
        maps = [value for value in node.all_input_nodes if value.op != "get_attr"]
        last = max(maps, key=lambda value: places[value])
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
    return as_maps(placed(as_memory(maps)))


def placed(pixels: Tensor) -> Tensor:
    """The same values (B, H, W, C), computed once, into memory in the order of their axes."""
    _, height, width, channels = pixels.shape
    return _strided(pixels, [height * width * channels, width * channels, channels, 1])


def as_memory(maps: Tensor) -> Tensor:
    """(B, C, H, W), or what is shared along some of its axes, as (B, H, W, C)."""
    return maps.reshape((1,) * (4 - maps.ndim) + maps.shape).permute(0, 2, 3, 1)


def as_maps(pixels: Tensor) -> Tensor:
    """(B, H, W, C) as (B, C, H, W)."""
    return pixels.permute(0, 3, 1, 2)


def _strided(values: Tensor, strides: list[int]) -> Tensor:
    if not torch.compiler.is_compiling():
        return values
    forced: Tensor = torch.ops.prims.inductor_force_stride_order(values, strides)
    return forced


def _is_on_maps(node: Node) -> bool:
    """Whether it works on single values and gives maps."""
    if node.target not in SINGLE_VALUES:
        return False
    given: list[Any] = [value.meta["val"] for value in node.all_input_nodes]  # which may be numbers, such as the batch's size
    return all(isinstance(value, Tensor) for value in given) and node.meta["val"].ndim == 4


def _after(node: Node, function: Callable[[Tensor], Tensor]) -> None:
    """Have all that read this node read a function of it."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(function, (node,))
    made.meta.update(node.meta)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
