"""The fastest float32 PyTorch that needs no compiler: convolutions with their weights packed once, for oneDNN.

Eager `conv2d` packs its weights again on every call, which at few pixels and many channels takes longer than the convolution.
Here the traced graph runs as eager PyTorch does, but each convolution is folded with the BatchNorm and fused with the ReLU
that alone read it, and its weight is packed in advance. Outputs are channels-last.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from gdws.core.inputs import Inputs, call_model, place
from gdws.deploy.fx.fold_batchnorm import fold_into_previous
from gdws.deploy.fx.graph import convolution_arguments, functional_graph, has_fixed_size, is_plain, only_reader, value_of
from gdws.deploy.interface import Outputs, unpacked
from gdws.deploy.onnx.signature import Port, wrong_shape

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn


class PackedModel:
    """A traced model with packed convolutions, for inputs of the shapes that it was traced for.

    It gives one tensor, or of several {name: tensor}.
    """

    def __init__(self, program: ExportedProgram, threads: int | None = None) -> None:
        self._module = pack_weights(program)
        self._threads = threads or torch.get_num_threads()
        values = [node.meta["val"] for node in self._module.graph.find_nodes(op="placeholder")]
        self._ports = [
            Port(f"input {index}", "", tuple(size if isinstance(size, int) else None for size in value.shape))
            for index, value in enumerate(values)
        ]

    def __call__(self, inputs: Inputs) -> Outputs:
        if told := wrong_shape(inputs, self._ports):
            raise told
        threads = torch.get_num_threads()
        if threads != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.no_grad():
                found = call_model(self._module, place(inputs, "cpu", torch.float32))
                return unpacked(found) if isinstance(found, dict) else found
        finally:
            if threads != self._threads:
                torch.set_num_threads(threads)


def pack_weights(program: ExportedProgram) -> GraphModule:
    """The graph of a traced model with its convolutions packed."""
    module = functional_graph(program)
    fold_into_previous(module)
    if torch.backends.mkldnn.is_available():
        with torch.no_grad():
            for node in module.graph.find_nodes(op="call_function", target=aten.conv2d.default):
                _pack(module, node)
    module.graph.eliminate_dead_code()
    return GraphModule(module, module.graph)  # without the weights that are not read any more


def _pack(module: GraphModule, node: Node) -> None:
    source, weight, bias, stride, padding, dilation, groups = convolution_arguments(node)
    shape = source.meta["val"].shape
    if not is_plain(node) or not has_fixed_size(source):
        return
    relu = only_reader(node, aten.relu.default)
    last, activation = (node, "none") if relu is None else (relu, "relu")
    windows = padding, stride, dilation
    packed = mkldnn._reorder_convolution_weight(value_of(module, weight), *windows, groups, [1, *shape[1:]])
    name = f"packed_{node.name}"
    module.register_buffer(name, packed)
    with module.graph.inserting_before(last):
        fused = module.graph.call_function(
            mkldnn._convolution_pointwise.default,
            (source, module.graph.get_attr(name), bias, *windows, groups, activation, [], ""),
        )
    fused.meta["val"] = last.meta["val"]
    last.replace_all_uses_with(fused)
