"""Make the demo model and images that come with the package, on one GPU in a few minutes.

    python benchmarks/make_embedded.py --data cifar10:DIR [--package src/gdws] [--epochs 40]

Trains zoo:tiny adversarially (the recipe `fast`) and prints natural and PGD-20 accuracy on the first 1,000 test images. Writes

    models/demo/model.safetensors   the weights
    models/demo/CARD.md             how they were made, and what they reach
    data/demo/images.npz            those test images and the first 500 training images

The model that is in the package was made by an earlier version of this script: the same attack and schedule, the weights of the
last epoch, no average.
"""

from __future__ import annotations

import argparse
import tempfile
import textwrap
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

import gdws
from gdws import data
from gdws.attacks import PGD
from gdws.core.files import write_atomically
from gdws.core.reading.weights import contiguous_copies
from gdws.models import zoo
from gdws.planning.latency.target import device_name
from gdws.training import Recipe, recipe

CARD = """
`model.safetensors`: `zoo:tiny`, a pre-activation ResNet with 3x3 layers of 32, 64 and 128 channels ({parameters:,} parameters,
{macs:.1f} M multiply-adds for a 32x32 image), adversarially trained on {trained:,} CIFAR-10 training images by the recipe
`fast`: {attack}, {epochs} epochs, peak rate {rate:g}, batch {batch}, {precision}, seed {seed}, {seconds:.0f} s on {machine}
with PyTorch {torch} ({date:%Y-%m-%d}). Input: NCHW floats in [0, 1]; the network normalizes inside and returns ten logits.

`gdws/data/demo/images.npz`: the first {tests:,} CIFAR-10 test images and the first {few:,} training images (uint8, N x 32 x 32
x 3) with labels. The model was trained on those {few:,}; they serve for calibration, never for a reported accuracy.

On the {tests:,} test images, float32: {natural:.1f} % natural, {robust:.1f} % PGD-20 (eps 8/255, step 2/255, one random start).

Made by `python benchmarks/make_embedded.py --data cifar10:DIR`. CIFAR-10: Krizhevsky, "Learning multiple layers of features
from tiny images", 2009.
"""
TEST, TRAIN = 1000, 500
"""Images of each split that come with the package."""


def card(settings: Recipe, **facts: object) -> str:
    """The text of CARD.md, wrapped anew."""
    values = {name: getattr(settings, name) for name in ("attack", "epochs", "rate", "batch", "precision", "seed")}
    paragraphs = CARD.format(**values, **facts, torch=torch.__version__, date=datetime.now(UTC)).strip().split("\n\n")
    return "# The embedded model and images\n\n" + "\n\n".join(textwrap.fill(text, 127) for text in paragraphs) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="cifar10:DIR")
    parser.add_argument("--package", type=Path, default=Path("src/gdws"), help="folder that gets models/demo and data/demo")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, test = data.load(options.data, "train"), data.load(options.data, "test").take(TEST)
    torch.manual_seed(options.seed)
    settings = replace(recipe("fast"), epochs=options.epochs, seed=options.seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = gdws.train(zoo.build("tiny").to(device), images, settings, Path(folder)).model
    seconds = time.monotonic() - begun
    found = gdws.evaluate(model, test, PGD())
    print(f"natural {found.natural_percent:.1f} %, PGD-20 {found.robust_percent:.1f} % on the first {TEST:,} test images")

    model_folder, data_folder = (options.package / room / "demo" for room in ("models", "data"))
    for made in (model_folder, data_folder):
        made.mkdir(parents=True, exist_ok=True)
    metadata = {"arch": "tiny", "dataset": "cifar10"}
    write_atomically(model_folder / "model.safetensors", save(contiguous_copies(model.state_dict()), metadata))
    arrays, few = {}, images.take(TRAIN)
    for split, part in (("test", test), ("train", few)):
        arrays[f"{split}_images"] = part.images.permute(0, 2, 3, 1).numpy()
        arrays[f"{split}_labels"] = part.labels.numpy().astype(np.uint8)
    np.savez_compressed(data_folder / "images.npz", allow_pickle=False, **arrays)
    cost = gdws.network_cost(model, test.take(1).images.to(device) / 255)
    facts = {
        "parameters": cost.parameters,
        "macs": cost.macs / 1e6,
        "trained": len(images),
        "seconds": seconds,
        "machine": device_name(torch.device(device)),
        "tests": len(test),
        "few": len(few),
        "natural": found.natural_percent,
        "robust": found.robust_percent,
    }
    (model_folder / "CARD.md").write_text(card(settings, **facts))


if __name__ == "__main__":
    main()
