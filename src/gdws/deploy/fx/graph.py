"""A traced network as a graph of functions, and what is asked of its nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from gdws.deploy.tracing import silence_exporter

aten = torch.ops.aten


def functional_graph(program: ExportedProgram) -> GraphModule:
    """The graph of a traced model, with nothing in place and no checks of sizes, types and devices; it may be moved."""
    with silence_exporter():
        module = program.run_decompositions({}).module()
    assert isinstance(module, GraphModule)
    graph = module.graph
    for node in [
        *graph.find_nodes(op="call_module", target="_guards_fn"),
        *graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default),
    ]:
        graph.erase_node(node)
    for node in [
        *graph.find_nodes(op="call_function", target=aten.view.default),
        *graph.find_nodes(op="call_function", target=aten._unsafe_view.default),
    ]:
        node.target = aten.reshape.default  # a view of memory that may lie otherwise now
    for node in graph.find_nodes(op="call_function", target=aten.conv2d.padding):
        _pad_by_numbers(node)
    module.recompile()
    return module


def convolution_arguments(conv: Node) -> tuple[Any, ...]:
    """Source, weight, bias, stride, padding, dilation and groups, with those left out filled in and numbers as pairs."""
    given = (*conv.args, *(None, (1, 1), (0, 0), (1, 1), 1)[len(conv.args) - 2 :])
    source, weight, bias, *windows, groups = given
    return source, weight, bias, *map(_pair, windows), groups


def is_plain(node: Node) -> bool:
    """A convolution of images by constant weights."""
    if node.target is not aten.conv2d.default or node.all_input_nodes[0].meta["val"].ndim != 4:
        return False
    return all(part is None or is_constant(part) for part in node.args[1:3])


def has_fixed_size(maps: Node) -> bool:
    """Whether maps have the same channels, rows and columns for all sizes of a batch."""
    return all(isinstance(size, int) for size in maps.meta["val"].shape[1:])


def only_reader(node: Node, target: Any) -> Node | None:
    """The one node that reads this one, if it is a call of `target`."""
    readers = list(node.users)
    return readers[0] if len(readers) == 1 and readers[0].target is target else None


def is_constant(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "get_attr"


def value_of(module: GraphModule, node: Any) -> Tensor:
    """The tensor that a constant stands for."""
    parent, _, leaf = str(node.target).rpartition(".")
    value: Tensor = getattr(module.get_submodule(parent), leaf)
    return value.detach()


def add_constant(module: GraphModule, value: Tensor, name: str, like: Any) -> Node:
    """A new constant of the graph, in the type of another."""
    name = f"folded_{name}"
    value = value.to(value_of(module, like).dtype)
    module.register_buffer(name, value)
    node = module.graph.get_attr(name)
    node.meta["val"] = value
    return node


def _pair(value: Any) -> Any:
    return [value, value] if isinstance(value, int) else value if isinstance(value, str) else [*value] * (2 // len(value))


def _pad_by_numbers(conv: Node) -> None:
    """Write "valid" and, where both sides get as much, "same" as numbers."""
    source, weight, bias, stride, padding, dilation, groups = convolution_arguments(conv)
    reach = [each * (taps - 1) for each, taps in zip(dilation, weight.meta["val"].shape[2:], strict=True)]
    if padding == "same" and any(each % 2 for each in reach):
        return
    numbers = [each // 2 if padding == "same" else 0 for each in reach]
    conv.target, conv.args = aten.conv2d.default, (source, weight, bias, stride, numbers, dilation, groups)
