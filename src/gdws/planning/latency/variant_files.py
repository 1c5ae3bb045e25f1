"""ONNX files of the networks that are timed. An export takes seconds and there are a dozen, so only the dense one is exported.

In its graph, the node of a convolution gives way to the nodes of the layer that is in its place, under the names that an export
would give them. Where a layer is not made of plain convolutions alone, its network is exported after all.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from gdws.core.files import scratch_folder
from gdws.core.inputs import Inputs
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.packages import require
from gdws.structures.layers import FactoredConv2d
from gdws.structures.stages import Stage, stages_of


class VariantFiles:
    """Writes networks that differ from a dense `model` in factored layers only. example: what it takes, of the size."""

    def __init__(self, model: nn.Module, example: Inputs) -> None:
        self._model, self._example = model, example

    @cached_property
    def _dense(self) -> Any:
        with scratch_folder() as folder:
            file = folder / "dense.onnx"
            to_onnx(self._model, file, self._example)
            return require("onnx").load(file)

    def write(self, network: nn.Module, file: Path) -> Any:
        """Write the ONNX file of a network; the onnx.ModelProto in it is given back."""
        made = with_factored_layers(self._dense, network)
        if made is None:
            to_onnx(network, file, self._example)
            return require("onnx").load(file)
        require("onnx").save(made, file)
        return made


def with_factored_layers(dense: Any, network: nn.Module) -> Any:
    """A copy of the dense network's onnx.ModelProto with the factored layers of `network`, or None if it cannot be made so."""
    onnx = require("onnx")
    layers = {name: stages_of(layer) for name, layer in network.named_modules() if isinstance(layer, FactoredConv2d)}
    made = onnx.ModelProto()
    made.CopyFrom(dense)
    graph, nodes = made.graph, []
    uses = dict.fromkeys(layers, 0)
    for node in graph.node:
        owner = next((name for name in layers if node.op_type == "Conv" and node.input[1].startswith(f"{name}.")), None)
        if owner is None:
            nodes.append(node)
            continue
        # A use with a weight of its own, or a layer that is no stages.
        if node.input[1] != f"{owner}.weight" or not layers[owner]:
            return None
        uses[owner] += 1
        nodes += _nodes(onnx, node, owner, layers[owner], uses[owner])
    if not all(uses.values()):
        return None
    kept = [value for value in graph.initializer if value.name not in {f"{name}.weight" for name in layers}]
    for name, stages in layers.items():
        for stage in stages:
            kept.append(onnx.numpy_helper.from_array(stage.weight.detach().numpy(), f"{name}.{stage.name}.weight"))
            if stage.channels is not None:
                kept.append(onnx.numpy_helper.from_array(stage.channels.numpy(), f"{name}.channels"))
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    return made


def _nodes(onnx: Any, conv: Any, name: str, stages: tuple[Stage, ...], use: int) -> list[Any]:
    """What stands in the place of a dense Conv: for each stage a Conv, and a Gather where it reads some channels only."""
    again = f".use{use}" if use > 1 else ""
    made, value = [], conv.input[0]
    for stage in stages:
        own = f"{name}.{stage.name}{again}"
        if stage.channels is not None:
            gather = f"{name}.gather{again}"
            made.append(onnx.helper.make_node("Gather", [value, f"{name}.channels"], [f"{gather}.output"], gather, axis=1))
            value = f"{gather}.output"
        last = stage is stages[-1]
        inputs = [value, f"{name}.{stage.name}.weight", *(conv.input[2:] if last else ())]
        value = conv.output[0] if last else f"{own}.output"
        attributes: dict[str, Any] = {"kernel_shape": list(stage.weight.shape[2:]), "group": stage.groups}
        attributes |= {"strides": stage.stride, "pads": stage.padding, "dilations": stage.dilation}
        made.append(onnx.helper.make_node("Conv", inputs, [value], own, **attributes))
    return made
