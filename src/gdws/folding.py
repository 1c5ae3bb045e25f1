"""A traced network as a graph of functions, with its BatchNorms folded into the convolutions around them.

In eval mode BatchNorm is s x + t for each channel. After a convolution that nothing else reads, s goes into its weights and t
is its bias. Before a ReLU and convolutions, where s > 0 and not small, relu(s x + t) = s relu(x + t / s): s goes into the
weights that come next, and a sum is left. Everything is exact but for rounding; elsewhere it is a product and a sum.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from gdws.export import quiet

aten = torch.ops.aten
NORM = aten._native_batch_norm_legit_no_training.default
"""BatchNorm in eval mode, in a functional graph: the first of what it gives is its value."""
SMALLEST_SCALE, LARGEST_SHIFT = 0.01, 1e4
"""s below and t / s beyond are left alone: float16 ends at 65504 and is imprecise below 6e-5, where s times weights may be."""


def functional(program: ExportedProgram) -> GraphModule:
    """The graph of a traced model, with nothing in place and no checks of sizes, types and devices; it may be moved."""
    with quiet():
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


def fold_back(module: GraphModule) -> None:
    """Fold each BatchNorm into the convolution before it, if nothing else reads that."""
    for norm in _norms(module):
        conv = norm.all_input_nodes[0]
        if not is_plain(conv) or len(conv.users) > 1:
            continue
        scale, shift = _affine(module, norm)
        source, weight, bias, *others = convolution_arguments(conv)
        biased = shift if bias is None else shift + value_of(module, bias).double() * scale
        scaled = value_of(module, weight).double() * scale.view(-1, 1, 1, 1)
        with module.graph.inserting_before(conv):
            constants = kept(module, scaled, conv.name, weight), kept(module, biased, f"{conv.name}_bias", weight)
        conv.args = (source, *constants, *others)
        _replace(norm, conv)
    _clean(module)


def fold_ahead(module: GraphModule) -> None:
    """Fold the scale of each BatchNorm before a ReLU into the convolutions that read it: what is left is a sum."""
    for norm in _norms(module):
        scale, shift = _affine(module, norm)
        (value,) = norm.users
        readers = list(value.users)
        if len(readers) != 1 or readers[0].target is not aten.relu.default:
            continue
        convs = list(readers[0].users)
        if not bool((scale >= SMALLEST_SCALE).all() and ((shift / scale).abs() <= LARGEST_SHIFT).all()):
            continue
        if not all(is_plain(conv) and convolution_arguments(conv)[-1] == 1 for conv in convs):
            continue
        for conv in convs:
            weight = conv.args[1]
            scaled = value_of(module, weight).double() * scale.view(1, -1, 1, 1)
            with module.graph.inserting_before(conv):
                conv.update_arg(1, kept(module, scaled, conv.name, weight))
        _replace(norm, _applied(module, norm, aten.add.Tensor, norm.all_input_nodes[0], shift / scale, "shift"))
    _clean(module)


def scale_and_shift(module: GraphModule) -> None:
    """Make each BatchNorm that is left a product and a sum, in the type of its input and not in float32."""
    for norm in _norms(module):
        scale, shift = _affine(module, norm)
        scaled = _applied(module, norm, aten.mul.Tensor, norm.all_input_nodes[0], scale, "scale")
        _replace(norm, _applied(module, norm, aten.add.Tensor, scaled, shift, "shift"))
    _clean(module)


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


def kept(module: GraphModule, value: Tensor, name: str, like: Any) -> Node:
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


def _norms(module: GraphModule) -> list[Node]:
    """BatchNorms of images in the type of their statistics, which are constants, and of which only the value is used."""
    return [
        norm
        for norm in module.graph.find_nodes(op="call_function", target=NORM)
        if all(part is None or is_constant(part) for part in norm.args[1:5])
        and [(user.target, user.args[1]) for user in norm.users] == [(operator.getitem, 0)]
        and _is_like(norm.all_input_nodes[0].meta["val"], value_of(module, norm.args[3]))
    ]


def _is_like(images: Tensor, statistics: Tensor) -> bool:
    return images.ndim == 4 and images.dtype == statistics.dtype


def _affine(module: GraphModule, norm: Node) -> tuple[Tensor, Tensor]:
    """s and t (channels,) of BatchNorm as s x + t, in float64."""
    arguments: tuple[Any, ...] = norm.args
    _, weight, bias, mean, variance, _, epsilon = arguments
    scale = (value_of(module, variance).double() + epsilon).rsqrt()
    if weight is not None:
        scale = scale * value_of(module, weight).double()
    shift = -value_of(module, mean).double() * scale
    return scale, shift if bias is None else shift + value_of(module, bias).double()


def _applied(module: GraphModule, norm: Node, function: Any, source: Node, value: Tensor, name: str) -> Node:
    """The function of a source and one number for each channel."""
    with module.graph.inserting_before(norm):
        constant = kept(module, value.view(-1, 1, 1), f"{norm.name}_{name}", norm.args[3])
        node = module.graph.call_function(function, (source, constant))
    node.meta["val"] = source.meta["val"]
    return node


def _replace(norm: Node, other: Node) -> None:
    (value,) = norm.users
    value.replace_all_uses_with(other)


def _clean(module: GraphModule) -> None:
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
