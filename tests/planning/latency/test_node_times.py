"""Which node of a profiled network belongs to which layer."""

import onnx
import torch
from onnx import TensorProto, helper

from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.runtimes import NodeTime
from gdws.planning.latency.node_times import layer_seconds, owners


def test_nodes_are_given_to_the_layers_they_were_fused_from():
    """Two convolutions are added: the sum's name stands for the one that does not appear under its own."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "block.conv1"),
        helper.make_node("Relu", ["a"], ["b"], "r"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "block.conv2"),
        helper.make_node("Conv", ["x", "w3"], ["d"], "short"),
        helper.make_node("Add", ["c", "d"], ["e"], "sum"),
        helper.make_node("Gather", ["e", "i"], ["f"], "block.conv3.gather"),
        helper.make_node("Conv", ["f", "w4"], ["g"], "block.conv3.depthwise"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "g")]
    names = owners(helper.make_graph(nodes, "graph", values[:1], values[1:]))
    one_pass = [
        NodeTime("ReorderInput", "ReorderInput", 100.0),
        NodeTime("b_nchwc", "Conv", 1.0),
        NodeTime("d_nchwc", "Conv", 2.0),
        NodeTime("e_token_7", "Conv", 4.0),
        NodeTime("Transpose_token_9", "Transpose", 8.0),
        NodeTime("block.conv3.gather", "Gather", 16.0),
        NodeTime("e_acdb_abcd", "Reorder", 32.0),
        NodeTime("block.conv3.depthwise/WithoutBiases", "GroupConvolution", 64.0),
        NodeTime("Transpose", "Transpose", 1000.0),
        NodeTime("head", "Gemm", 2000.0),
    ]
    layers = ["block.conv1", "block.conv2", "block.conv3"]
    found = layer_seconds([one_pass] * 2, names, layers)
    assert found == {"block.conv1": [101, 101], "block.conv2": [4, 4], "block.conv3": [120, 120]}


def test_a_layer_that_is_used_twice_counts_twice(residual, tmp_path):
    to_onnx(residual[0], tmp_path / "model.onnx", torch.zeros(1, 3, 32, 32))
    names = owners(onnx.load(tmp_path / "model.onnx").graph)
    passes = [[NodeTime("twice", "Conv", 1.0), NodeTime("twice.use2", "Conv", 2.0)]]
    assert names["twice.use2"] == {"twice.use2"}
    assert layer_seconds(passes, names, ["twice"]) == {"twice": [3]}
