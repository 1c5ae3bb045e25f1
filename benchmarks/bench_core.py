"""Ratios of the core's speed to the plain way of doing it, one thread, interleaved: a part of `make bench`.

    python benchmarks/bench_core.py

Decomposition of every 3x3 layer of a ResNet-50 against a loop of torch.linalg.svd over channels; sensitivity (one backward
pass) against a loop over samples and classes with autograd's weight gradients.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import gdws
from gdws.models import zoo

RESNET50 = [(64, 64)] * 3 + [(128, 128)] * 4 + [(256, 256)] * 6 + [(512, 512)] * 3


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def decomposition() -> None:
    weights = [torch.randn(outputs, inputs, 3, 3) for outputs, inputs in RESNET50]

    def ours() -> None:
        for weight in weights:
            gdws.lego(weight, None, 0.1 * float(weight.square().sum()))

    def loop(dtype: torch.dtype, full: bool) -> None:
        for weight in weights:
            for channel in range(weight.shape[1]):
                torch.linalg.svd(weight[:, channel].flatten(1).to(dtype), full_matrices=full)

    loops = [(torch.float64, True), (torch.float64, False), (torch.float32, True), (torch.float32, False)]
    ours()
    times = [[seconds(ours), *(seconds(lambda kind=kind: loop(*kind)) for kind in loops)] for _ in range(2)]  # type: ignore[misc]
    mine, *others = (min(column) for column in zip(*times, strict=True))
    print(f"LEGO (float64 inside) on the 16 3x3 layers of ResNet-50: {mine:.3f} s")
    for (dtype, full), taken in zip(loops, others, strict=True):
        print(f"  loop of torch.linalg.svd, {dtype}, full_matrices={full}: {taken:.2f} s, {taken / mine:.1f}x")


def plain_loop(model: nn.Module, images: Tensor) -> None:
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    for image in images:
        z = model(image[None])[0]
        predicted = int(z.argmax())
        for j in range(len(z)):
            if j != predicted:
                torch.autograd.grad(z[j] - z[predicted], weights, retain_graph=True)


def sensitivity(classes: int, batch: int, looped: int) -> None:
    torch.manual_seed(0)
    model, images = zoo.build("preactresnet18", num_classes=classes), torch.rand(batch, 3, 32, 32)
    gdws.sensitivity(model, [images[:1]])
    mine = seconds(lambda: gdws.sensitivity(model, [images])) / batch
    loop = seconds(lambda: plain_loop(model, images[:looped])) / looped
    print(f"sensitivity of ResNet-18, {classes} classes: {mine:.3f} s an image, loop {loop:.2f} s, {loop / mine:.0f}x")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, one thread")
    decomposition()
    sensitivity(classes=10, batch=32, looped=4)
    sensitivity(classes=1000, batch=32, looped=1)


if __name__ == "__main__":
    main()
