"""Small ONNX files made on the spot, and what ONNX Runtime makes of them."""

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(0)


def save(path, nodes, inputs, outputs, constants=None, opset=18):
    """A file; inputs and outputs: {name: shape} of floats, or {name: (type, shape)}."""

    def value(name, given):
        kind, shape = given if isinstance(given, tuple) else (TensorProto.FLOAT, given)
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "graph",
        [value(*item) for item in inputs.items()],
        [value(*item) for item in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    made = onnx.shape_inference.infer_shapes(made, data_prop=True)
    path.write_bytes(made.SerializeToString())
    return path


def runtime(path, *tensors):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {port.name: tensor.numpy() for port, tensor in zip(session.get_inputs(), tensors, strict=True)}
    return [torch.from_numpy(each) for each in session.run(None, given)]


def floats(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def whole(*numbers):
    return np.array(numbers, np.int64)
