"""Export a compressed network to ONNX, check the file, quantize it to int8 and run it.

python examples/onnx_and_int8.py
"""

import tempfile
from pathlib import Path

import torch

import gdws

model = gdws.models.embedded()
calibration = gdws.data.load("demo", "train").take(32)  # take a few hundred: the more, the better
fast = gdws.compress(model, calibration, gdws.Macs(0.5), gdws.Calibrated(structures="separable"))
images = next(iter(gdws.data.load("demo", "test").take(100)))[0]

with tempfile.TemporaryDirectory() as folder:
    file, int8 = Path(folder, "fast.onnx"), Path(folder, "int8.onnx")
    gdws.to_onnx(fast, file, images[:1])
    parity = gdws.verify(file, fast, images)  # raises if the file predicts otherwise than the model
    print(f"float32: {file.stat().st_size / 2**20:.2f} MB, largest difference of a logit {parity.difference:.1e}")

    gdws.quantize(file, int8, next(iter(calibration))[0])
    parity = gdws.verify(int8, fast, images, tolerance=None)  # int8 differs by design: only measured
    print(f"int8: {int8.stat().st_size / 2**20:.2f} MB, {parity.changed} of {parity.images} predictions changed")

    run = gdws.compile(int8, "onnxruntime", example=images[:1], threads=1)
    print(f"{run.name}: classes {run(images[:5]).argmax(1).tolist()}")

with torch.no_grad():
    print(f"the model:         classes {fast(images[:5]).argmax(1).tolist()}")
