"""Let torch.compile fuse what follows a convolution (BatchNorm, activations, residual sums) into the convolution's kernel.

A convolution's kernel computes its output (B, C, H, W) by image, channel, row and column. A pointwise operation can be fused
into it if its own loop runs over these four axes in this order. Left to itself, torch.compile orders the loop as memory lies
(channels last), and nothing is fused. So it is told to keep the order of the axes (gdws.deploy.inductor). But then it merges
rows and columns into one axis where it can, and Triton no longer sees that neighboring channels are contiguous: each value is
loaded and stored alone (306 us instead of 36 for 64 channels of 32x32). So rows and columns are kept apart behind convolutions,
and every other pointwise operation is written in the order of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tag, Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from gdws.deploy.fx.graph import convolution_arguments
from gdws.deploy.inductor import force_strides

aten = torch.ops.aten
UNTAGGED = (aten.hardswish.default, aten.prelu.default)
"""Pointwise operations that PyTorch does not tag so."""
POOLS = (aten.max_pool2d.default, aten.avg_pool2d.default)


def fuse_epilogues(network: GraphModule, convs: Collection[Node]) -> None:
    """Rewrite the pointwise operations and poolings of feature maps in a functional graph (gdws.deploy.fx.graph).

    What follows one of `convs`, whose kernels torch.compile makes, loops over rows and columns; all else loops as memory lies.
    A 1x1 convolution of all pixels is a matrix product, whose kernel loops as memory lies too.
    """
    graph = network.graph
    pointwise = [node for node in graph.nodes if _is_feature_map(node) and _is_pointwise(node)]
    kernels = [conv for conv in convs if not _is_matrix_product(conv)]
    following = _followers(pointwise, kernels, {node: place for place, node in enumerate(graph.nodes)})
    others = [node for node in pointwise if node not in following]
    for kind in (following, others):
        ends = [node for node in kind if len(node.users) != 1 or next(iter(node.users)) not in kind]
        for node in ends:  # all else is computed where it is used
            _insert_after(
                node,
                materialize_in_memory_order if kind is others else keep_axes_apart if len(node.users) == 1 else materialize,
            )
    for node in [node for node in graph.nodes if _is_feature_map(node) and node.target in POOLS]:
        _insert_after(node, materialize_in_memory_order)
    network.recompile()


def _followers(pointwise: list[Node], convs: Collection[Node], places: dict[Node, int]) -> dict[Node, None]:
    """Those that can be fused into one of these convolutions: it can run last of all that they read."""
    found = dict[Node, None]()
    for node in pointwise:
        maps = [value for value in node.all_input_nodes if value.op != "get_attr"]
        last = max(maps, key=lambda value: places[value], default=None)
        if last in found or any(value in convs and (value is last or len(value.users) == 1) for value in maps):
            found[node] = None
    return found


def keep_axes_apart(maps: Tensor) -> Tensor:
    """The same values (B, C, H, W): a loop that asks for the number of a column cannot merge rows and columns."""
    columns = torch.arange(maps.shape[3], device=maps.device)
    return torch.where(columns >= 0, maps, 0)


def materialize(maps: Tensor) -> Tensor:
    """The same, computed once, into channels-last memory: torch.compile might compute it anew wherever it is used."""
    _, channels, height, width = maps.shape
    return force_strides(keep_axes_apart(maps), [height * width * channels, 1, width * channels, channels])


def materialize_in_memory_order(maps: Tensor) -> Tensor:
    """The same values (B, C, H, W), computed once, in the order of channels-last memory."""
    return materialize_pixels(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def materialize_pixels(pixels: Tensor) -> Tensor:
    """The same values (B, H, W, C), computed once, into memory in the order of their axes."""
    _, height, width, channels = pixels.shape
    return force_strides(pixels, [height * width * channels, width * channels, channels, 1])


def _is_feature_map(node: Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, Tensor) and value.ndim == 4 and value.is_floating_point()


def _is_pointwise(node: Node) -> bool:
    given: list[Any] = [value.meta["val"] for value in node.all_input_nodes]  # which may be numbers, such as the batch's size
    tagged = isinstance(node.target, OpOverload) and Tag.pointwise in node.target.tags and node.target is not aten.clone.default
    return (tagged or node.target in UNTAGGED) and all(isinstance(value, Tensor) for value in given)


def _is_matrix_product(conv: Node) -> bool:
    _, weight, _, stride, padding, _, groups = convolution_arguments(conv)
    return (*weight.meta["val"].shape[2:], *stride, *padding, groups) == (1, 1, 1, 1, 0, 0, 1)


def _insert_after(node: Node, function: Callable[[Tensor], Tensor]) -> None:
    """Have all that read this node read a function of it."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(function, (node,))
    made.meta.update(node.meta)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
