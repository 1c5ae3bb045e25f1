"""What wins back the accuracy of a compressed classifier: the closed-form refit, repair without labels, tuning with them.

    python benchmarks/without_labels.py --out OUT [--macs 0.15] [--steps 400] [--epochs 10]

The robust network and the images of the demo, so that a CPU does it in minutes. Everybody gets the same training images, which
is far fewer than anyone would tune on. Judged on test images by PGD-20.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from restoration import Records
from torch import nn

import gdws
from gdws.attacks import PGD
from gdws.planning.latency.target import device_name

IMAGES, TEST, BATCH = 200, 300, 25
"""Training images for all, test images, and images in a batch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--macs", type=float, default=0.15)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    records = Records(options.out / "record.json")
    records.get("machine", lambda: {"device": device_name(), "torch": torch.__version__, "gdws": gdws.__version__})
    model = gdws.models.embedded()
    few, test = gdws.data.load("demo", "train").take(IMAGES, BATCH), gdws.data.load("demo", "test").take(TEST, BATCH)
    images = [batch for batch, _ in few]
    recipe = replace(gdws.training.recipe("tune"), epochs=options.epochs, batch=BATCH, held=IMAGES // 10, average=0.9)
    repairing = gdws.Repair(steps=options.steps, batch=BATCH)

    def record(name: str, make: Callable[[], nn.Module]) -> None:
        """Make a network, keep it, and judge it."""
        folder = options.out / name
        if not folder.exists():
            start = time.perf_counter()
            made = make()
            gdws.save(made, folder, base="demo")
            records.get(f"{name}, seconds", lambda: time.perf_counter() - start)
        records.get(name, partial(judged, gdws.load(folder, model)))

    def judged(network: nn.Module) -> dict[str, float]:
        found = gdws.evaluate(network, test, PGD(steps=20))
        return {"natural": found.natural_percent, "robust": found.robust_percent}

    records.get("dense", partial(judged, model))
    record("refit", lambda: gdws.compress(model, few, gdws.Macs(options.macs), cache=options.out / "statistics"))
    fast = gdws.load(options.out / "refit", model)
    record("repaired, clean", lambda: gdws.repair(model, fast, images, repairing))
    record("repaired, attacked", lambda: gdws.repair(model, fast, images, replace(repairing, attack=PGD(steps=7))))
    record("tuned with labels", lambda: gdws.tune(fast, few, recipe, options.out / "with-labels").model)
    record("tuned with the original", lambda: gdws.tune(fast, few, recipe, options.out / "taught", teacher=model).model)


if __name__ == "__main__":
    main()
