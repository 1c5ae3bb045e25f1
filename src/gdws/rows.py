"""A network whose rows of pixels are images of their own between vertical pairs, so that torch.compile can join more of it.

torch.compile puts what follows a convolution into the convolution's kernel, if that is fast. On images (B, C, H, W) in
channels-last memory it is not: the kernel computes addresses from one number for both H and W, and Triton cannot see that
neighbouring channels lie next to each other, so that each value is read and written alone. On rows (B * H, C, 1, W), which are
the same values in the same places, there is nothing to compute. A convolution of 1xk can run on rows; so can all that works on
single values: BatchNorm as a scale and a shift, ReLU, sums. Everything else gets images.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten
SINGLE_VALUES = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.relu.default)
"""What works on single values."""
JOINING = {"pick_loop_orders": False, "benchmark_epilogue_fusion": False}
"""For torch.compile: loops over channels, then pixels, as a convolution's kernel has them; and what can be joined is. (By its
own timings it leaves things alone that then take a third longer.)"""
ON_ROWS = "on rows"
"""Marks what is, in its `meta`."""


def on_rows(network: GraphModule) -> bool:
    """Rewrite a network's functional graph (gdws.folding), if it has such pairs; and say so.

    It computes the same: images (B, C, H, W) to logits, for any B, and C, H and W as they were when it was traced.
    """
    graph = network.graph
    convs = set(graph.find_nodes(op="call_function", target=aten.conv2d.default))
    pairs = any(_runs_on_rows(conv) and conv.args[0] in convs for conv in convs)
    if pairs:
        _rewrite(graph)
    network.recompile()
    return pairs


def is_on_rows(conv: Node) -> bool:
    """Whether this convolution of a rewritten graph runs on rows."""
    return ON_ROWS in conv.meta


def as_rows(images: Tensor) -> Tensor:
    """(B, C, H, W) as (B * H, C, 1, W)."""
    _, channels, _, width = images.shape
    return images.permute(0, 2, 3, 1).reshape(-1, 1, width, channels).permute(0, 3, 1, 2)


def as_images(rows: Tensor, height: int) -> Tensor:
    """(B * H, C, 1, W) as (B, C, H, W)."""
    _, channels, _, width = rows.shape
    return laid(rows).permute(0, 2, 3, 1).reshape(-1, height, width, channels).permute(0, 3, 1, 2)


def laid(rows: Tensor) -> Tensor:
    """The same values, in channels-last memory: torch.compile might choose another order, or compute them twice."""
    _, channels, height, width = rows.shape
    return _strided(rows, [height * width * channels, 1, width * channels, channels])


def placed(pixels: Tensor) -> Tensor:
    """The same values (B, H, W, C), in memory in the order of their axes."""
    _, height, width, channels = pixels.shape
    return _strided(pixels, [height * width * channels, width * channels, channels, 1])


def _strided(values: Tensor, strides: list[int]) -> Tensor:
    if not torch.compiler.is_compiling():
        return values
    forced: Tensor = torch.ops.prims.inductor_force_stride_order(values, strides)
    return forced


def _rewrite(graph: Graph) -> None:
    """Give a twin on rows to each convolution that can have one, and to what works on its values; the rest reads images."""
    rows: dict[Node, Node] = {}
    twins: dict[Node, Node] = {}

    def in_rows(value: Node) -> Node:
        if value not in rows:
            with graph.inserting_after(value):
                rows[value] = graph.call_function(as_rows, (value,))
        return rows[value]

    for node in list(graph.nodes):
        if _runs_on_rows(node):
            maps = node.all_input_nodes[:1]
        elif _follows(node, twins):
            maps = [value for value in node.all_input_nodes if _is_map(value, node)]
        else:
            continue
        sources = [in_rows(value) for value in maps]
        with graph.inserting_after(node):
            twin = graph.call_function(node.target, node.args, node.kwargs)
        twin.meta[ON_ROWS] = True
        for value, source in zip(maps, sources, strict=True):
            twin.replace_input_with(value, source)
        if len(node.users) > 1:
            with graph.inserting_after(twin):
                twin = graph.call_function(laid, (twin,))
        rows[node] = twins[node] = twin
    for node, twin in twins.items():
        if others := [user for user in node.users if user not in twins]:
            with graph.inserting_after(twin):
                back = graph.call_function(as_images, (twin, node.meta["val"].shape[2]))
            for user in others:
                user.replace_input_with(node, back)
    graph.eliminate_dead_code()
    graph.lint()


def _runs_on_rows(node: Node) -> bool:
    """A convolution of 1xk, k > 1, that leaves the rows as they are."""
    if node.target is not aten.conv2d.default:
        return False
    before, weight = (value.meta["val"].shape for value in node.all_input_nodes[:2])
    after, stride = node.meta["val"].shape, node.args[3] if len(node.args) > 3 else (1, 1)
    assert isinstance(stride, list | tuple)
    return bool(len(before) == 4 and stride[0] == weight[2] == 1 and weight[3] > 1 and before[2] == after[2])


def _follows(node: Node, twins: dict[Node, Node]) -> bool:
    """Works on single values, some of which are on rows."""
    values = node.all_input_nodes
    if node.target not in SINGLE_VALUES or not any(value in twins for value in values):
        return False
    tensors = all(isinstance(value.meta["val"], Tensor) for value in values)  # and no numbers, such as the batch's size
    return tensors and all(_is_map(value, node) or _is_for_all(value) for value in values)


def _is_map(value: Node, node: Node) -> bool:
    """Whether it has an image, with as many pixels, for each image of the result."""
    own, made = value.meta["val"].shape, node.meta["val"].shape
    return len(own) == 4 and bool(own[0] == made[0]) and tuple(own[2:]) == tuple(made[2:])


def _is_for_all(value: Node) -> bool:
    """Whether it is the same for all images and rows."""
    shape = value.meta["val"].shape
    return (len(shape) < 4 or shape[0] == 1) and (len(shape) < 2 or shape[-2] == 1)
