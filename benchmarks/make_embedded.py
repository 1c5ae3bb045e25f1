"""Make the embedded demo model and images, on one GPU in a few minutes.

    python scripts/make_embedded.py --data cifar10:DIR [--out src/gdws/embedded] [--epochs 40]

Trains zoo:tiny adversarially (the recipe `fast`) and writes model.safetensors and images.npz, the first 1,000 test and the
first 500 training images; prints natural and PGD-20 accuracy on those test images. The model that is in the package was made by
an earlier version of this script: the same attack and schedule, the weights of the last epoch, no average.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from gdws import data
from gdws.attacks import PGD
from gdws.evaluation.accuracy import evaluate
from gdws.models import zoo
from gdws.training import recipe, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="cifar10:DIR")
    parser.add_argument("--out", type=Path, default=Path("src/gdws/embedded"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, test = data.load(options.data, "train"), data.load(options.data, "test").take(1000)
    torch.manual_seed(options.seed)
    plan = replace(recipe("fast"), epochs=options.epochs, seed=options.seed)
    with tempfile.TemporaryDirectory() as folder:
        model = train(zoo.build("tiny").to(device), images, plan, Path(folder)).model
    found = evaluate(model, test, PGD())
    print(f"natural {found.natural_percent:.1f} %, PGD-20 {found.robust_percent:.1f} % on the first 1,000 test images")

    options.out.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(state, options.out / "model.safetensors", {"arch": "tiny", "dataset": "cifar10"})
    arrays = {}
    for split, part in (("test", test), ("train", images.take(500))):
        arrays[f"{split}_images"] = part.images.permute(0, 2, 3, 1).numpy()
        arrays[f"{split}_labels"] = part.labels.numpy().astype(np.uint8)
    np.savez_compressed(options.out / "images.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
