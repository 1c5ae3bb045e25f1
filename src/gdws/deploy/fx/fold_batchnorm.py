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
from torch.fx import GraphModule, Node

from gdws.deploy.fx.graph import add_constant, convolution_arguments, is_constant, is_plain, value_of

aten = torch.ops.aten
NORM = aten._native_batch_norm_legit_no_training.default
"""BatchNorm in eval mode, in a functional graph: the first of what it gives is its value."""
SMALLEST_SCALE, LARGEST_SHIFT = 0.01, 1e4
"""s below and t / s beyond are left alone: float16 ends at 65504 and is imprecise below 6e-5, where s times weights may be."""


def fold_into_previous(module: GraphModule) -> None:
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
            constants = (
                add_constant(module, scaled, conv.name, weight),
                add_constant(module, biased, f"{conv.name}_bias", weight),
            )
        conv.args = (source, *constants, *others)
        _replace(norm, conv)
    _clean(module)


def fold_into_next(module: GraphModule) -> None:
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
                conv.update_arg(1, add_constant(module, scaled, conv.name, weight))
        _replace(norm, _applied(module, norm, aten.add.Tensor, norm.all_input_nodes[0], shift / scale, "shift"))
    _clean(module)


def split_into_scale_and_shift(module: GraphModule) -> None:
    """Make each BatchNorm that is left a product and a sum, in the type of its input and not in float32."""
    for norm in _norms(module):
        scale, shift = _affine(module, norm)
        scaled = _applied(module, norm, aten.mul.Tensor, norm.all_input_nodes[0], scale, "scale")
        _replace(norm, _applied(module, norm, aten.add.Tensor, scaled, shift, "shift"))
    _clean(module)


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
        constant = add_constant(module, value.view(-1, 1, 1), f"{norm.name}_{name}", norm.args[3])
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
