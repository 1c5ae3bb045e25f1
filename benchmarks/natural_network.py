"""A naturally trained network at three budgets, with default settings: is it noticed, and what does it lose?

    python benchmarks/natural_network.py --data DIR [--images 500] [--n 2000] [--out natural.json]

The network is a ResNet-18 for CIFAR-10 that nobody of this project made: the example of the package pyautoattack (extra
`attacks`). DIR holds CIFAR-10 as `gdws.data.load("cifar10:DIR", ...)` reads it. It is calibrated on the first training images,
which it knows by heart, and judged on the first test images.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import torch
from torch import nn

import gdws
from gdws.core.files import write_atomically
from gdws.core.reading.weights import load_weights, read_weights

FRACTIONS = (0.5, 0.3, 0.2)


def natural_resnet18() -> nn.Module:
    """The example network: its architecture from the package's own file, its weights without running anything in theirs."""
    package = importlib.util.find_spec("pyautoattack")
    if package is None or package.origin is None:
        raise SystemExit("pyautoattack is not installed: expected it here (pip install 'gdws[attacks]')")
    folder = Path(package.origin).parent / "examples"
    specification = importlib.util.spec_from_file_location("resnet", folder / "resnet.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    model: nn.Module = module.ResNet18()
    load_weights(model, read_weights(folder / "model_test.pt"), "the example of pyautoattack")
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of CIFAR-10")
    parser.add_argument("--images", type=int, default=500, help="training images to calibrate on")
    parser.add_argument("--n", type=int, default=2000, help="test images to judge on")
    parser.add_argument("--out", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    model = natural_resnet18()
    train = gdws.data.load(f"cifar10:{options.data}", "train").take(options.images)
    test = gdws.data.load(f"cifar10:{options.data}", "test").take(options.n, 50)
    statistics = gdws.calibrate(model, train)
    record = {
        "attack": None if statistics.attack is None else str(statistics.attack),
        "learnt": {name: value.tolist() for name, value in statistics.objective.tensors().items()},
        "dense": gdws.evaluate(model, test).natural_percent,
    }
    print(record, flush=True)
    for fraction in FRACTIONS:
        fast = gdws.apply(model, gdws.plan(model, statistics, gdws.Macs(fraction)), statistics)
        record[f"{fraction:g} of the MACs"] = gdws.evaluate(fast, test).natural_percent
        print(f"{fraction:g} of the MACs: {record[f'{fraction:g} of the MACs']:.2f} %", flush=True)
    if options.out is not None:
        write_atomically(options.out, json.dumps({**record, "torch": str(torch.__version__)}, indent=1))


if __name__ == "__main__":
    main()
