"""The fastest float32 PyTorch that needs no compiler: convolutions with their weights packed once, for oneDNN.

Eager `conv2d` packs its weights again on every call, which at few pixels and many channels takes longer than the convolution.
Here the traced graph runs as eager PyTorch does, but each convolution is folded with the BatchNorm and fused with the ReLU
that alone read it, and its weight is packed in advance. Outputs are channels-last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.nn.utils.fusion import fuse_conv_bn_weights

from gdws.runtimes import misfit

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn


class Packed:
    """A traced model with packed convolutions, for any batch size: float32 (B, C, H, W) to (B, classes)."""

    def __init__(self, program: ExportedProgram, threads: int | None = None) -> None:
        self._module = prepacked(program)
        self._threads = threads or torch.get_num_threads()
        (images,) = (node.meta["val"] for node in self._module.graph.find_nodes(op="placeholder"))
        self._shape = tuple(images.shape)[1:]

    def __call__(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self._shape:
            raise misfit(images, ("B", *self._shape))
        threads = torch.get_num_threads()
        if threads != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.no_grad():
                logits: Tensor = self._module(images.to("cpu", torch.float32))
                return logits
        finally:
            if threads != self._threads:
                torch.set_num_threads(threads)


def prepacked(program: ExportedProgram) -> GraphModule:
    """The graph of a traced model with its convolutions packed."""
    module = program.module()
    assert isinstance(module, GraphModule)
    for node in module.graph.find_nodes(op="call_module", target="_guards_fn"):  # checks of the input, on every call
        module.graph.erase_node(node)
    if torch.backends.mkldnn.is_available():
        with torch.no_grad():
            for node in module.graph.find_nodes(op="call_function", target=aten.conv2d.default):
                _pack(module, node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _pack(module: GraphModule, node: Node) -> None:
    source, weight, bias, stride, padding, dilation, groups = _filled(node, (None, (1, 1), (0, 0), (1, 1), 1), start=2)
    shape = source.meta["val"].shape
    if len(shape) != 4 or not _constant(weight) or not (bias is None or _constant(bias)):
        return
    weights, biases = _value(module, weight), None if bias is None else _value(module, bias)
    last = node
    if (norm := _only_reader(last, aten.batch_norm.default)) is not None:
        (scale, shift, mean, variance), training, epsilon = norm.args[1:5], norm.args[5], norm.args[7]
        if not training and all(_constant(part) for part in (scale, shift, mean, variance)):
            affine = _value(module, scale), _value(module, shift)
            weights, biases = fuse_conv_bn_weights(
                weights, biases, _value(module, mean), _value(module, variance), epsilon, *affine
            )
            last = norm
    activation = "none"
    for relu in (aten.relu.default, aten.relu_.default):
        if (reader := _only_reader(last, relu)) is not None:
            last, activation = reader, "relu"
            break
    pairs = [_pair(padding), _pair(stride), _pair(dilation)]
    packed = mkldnn._reorder_convolution_weight(weights.detach(), *pairs, groups, [1, *shape[1:]])
    name = f"packed_{node.name}"
    module.register_buffer(name, packed)
    if biases is not None:
        module.register_buffer(f"{name}_bias", biases.detach())
    with module.graph.inserting_before(last):
        arguments = [module.graph.get_attr(name), None if biases is None else module.graph.get_attr(f"{name}_bias")]
        fused = module.graph.call_function(
            mkldnn._convolution_pointwise.default, (source, *arguments, *pairs, groups, activation, [], "")
        )
    fused.meta["val"] = last.meta["val"]
    last.replace_all_uses_with(fused)


def _filled(node: Node, defaults: tuple[Any, ...], start: int) -> tuple[Any, ...]:
    """The arguments of a call with those left out filled in."""
    return (*node.args, *defaults[len(node.args) - start :])


def _only_reader(node: Node, target: Any) -> Any:
    """The one node that reads this one, if it is a call of `target`."""
    readers = list(node.users)
    return readers[0] if len(readers) == 1 and readers[0].target is target else None


def _constant(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "get_attr"


def _value(module: GraphModule, node: Any) -> Tensor:
    parent, _, leaf = str(node.target).rpartition(".")
    value: Tensor = getattr(module.get_submodule(parent), leaf)
    return value


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else [*value] * (2 // len(value))
