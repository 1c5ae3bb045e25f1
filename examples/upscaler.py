"""Compress a network that is not a classifier, repair it without labels, and export it.

    python examples/upscaler.py

The upscaler is trained here for a few seconds, on squares cut from the demo's images. What must be kept are the pixels
themselves: gdws sees that from the shape of the output.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate

import gdws


class Upscaler(nn.Module):
    """Takes pictures (B, 3, H, W) of any size and returns them twice as large: bicubic enlargement, and what is learned."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 24, 3, padding=1), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(24, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, small: Tensor) -> Tensor:
        return interpolate(small, scale_factor=2, mode="bicubic") + self.body(small)


large = gdws.data.load("demo", "train").take(200).images.float() / 255
test = gdws.data.load("demo", "test").take(50).images.float() / 255

torch.manual_seed(0)
model = Upscaler()
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
for part in [part for _ in range(8) for part in large.split(25)]:
    optimizer.zero_grad()
    (model(avg_pool2d(part, 2)) - part).square().mean().backward()
    optimizer.step()
model.eval()

small = [avg_pool2d(part, 2) for part in large.split(25)]  # the calibration needs inputs alone, no truth
fast = gdws.compress(model, small, gdws.Macs(0.2))
better = gdws.repair(model, fast, small, gdws.Repair(steps=50))  # label-free distillation from the original
print(f"objective: {gdws.plan_of(fast).objective}; dense: {gdws.quality(model, [(avg_pool2d(test, 2), test)])}")
for name, network in {"compressed": fast, "repaired": better}.items():
    truth = gdws.quality(network, [(avg_pool2d(test, 2), test)])
    print(f"{name}: {truth}; {gdws.fidelity(model, network, [avg_pool2d(test, 2)])}")

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "upscaler.onnx")
    gdws.to_onnx(better, file, small[0][:1])  # batch, height and width are dynamic axes
    print(f"ONNX file, on another size: {gdws.verify(file, better, torch.rand(2, 3, 20, 28))}")
