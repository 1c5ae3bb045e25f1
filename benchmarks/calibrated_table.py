"""The calibrated method compared with the paper's, and with one part taken out at a time.

    python benchmarks/calibrated_table.py MODEL [--weights FILE] --train DATA --test DATA [--device cuda] --json OUT

Natural and PGD-20 accuracy (eps 8/255, step 2/255, one random start, float32) on the first --n test images, at 0.60, 0.45, 0.30
and 0.20 of the MACs of the convolutions that the paper would replace; calibration on the first --images training images.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import gdws
from gdws import data, models
from gdws.attacks import PGD
from gdws.calibration import collect
from gdws.calibration.hooks import Use, random_signs
from gdws.calibration.method import ATTACK, Method
from gdws.evaluation.accuracy import evaluate
from gdws.objectives import Classes
from gdws.structures import kernel_elimination, mego_lego


def add_unweighted_moments(
    conv: nn.Conv2d, uses: list[Use], moment: Tensor, gradient: Tensor, share: float, generator: torch.Generator
) -> None:
    """The patch moment of all pixels alike, scaled as the weighted one is."""
    unweighted, own = torch.zeros_like(moment), torch.zeros_like(gradient)
    with mock.patch.object(Tensor, "norm", lambda self, dim, keepdim: torch.ones_like(self[:, :1])):
        ADD_MOMENTS(conv, uses, unweighted, own, share, generator)
    pixels = sum(len(use.input) * use.gradient[0, 0].numel() for use in uses if use.gradient is not None) * share
    moment += unweighted * own.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] / max(pixels, 1)
    gradient += own


ADD_MOMENTS = collect._add_moments


def all_signs(_: Classes, outputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """The cotangent of equation (8), which knows no temperature, in the place of the metric's."""
    return list(random_signs(outputs[0], generator))


def channel_curve(weight: Tensor, moment: Tensor, gradient: Tensor) -> kernel_elimination.Curve:
    """Kernels in the order of their own channel's singular values, blind to what the channels share."""
    _, channels, taps = weight.shape
    kernels, gains = kernel_elimination.candidate_kernels(weight, moment, gradient)
    spectrum = mego_lego.rank_kernels(gains.clamp_min(0) + 1e-30)
    ranked = spectrum.order[0]
    seen = torch.zeros(channels, dtype=torch.long)
    order = []
    for channel in ranked.tolist():
        order.append(channel * taps + int(seen[channel]))
        seen[channel] += 1
    return kernel_elimination.Curve(kernels, torch.tensor(order, device=weight.device), spectrum.errors.cpu())


PAPER = gdws.Paper(attack=ATTACK)
GDWS, SEPARABLE, PROJECT, AUTO = (
    gdws.Calibrated(structures=structures, attack=ATTACK) for structures in ("gdws", "separable", "project", "auto")
)


@dataclass(frozen=True)
class Column:
    """A column of the table: a method, and what is replaced in the package while it plans and applies."""

    method: Method = GDWS
    patch: Callable[[], AbstractContextManager[object]] = nullcontext


COLUMNS = {
    "paper": Column(PAPER),
    "gdws": Column(),
    "separable": Column(SEPARABLE),
    "project": Column(PROJECT),
    "auto": Column(AUTO),
    "no refit": Column(patch=lambda: mock.patch("gdws.compression.apply.refit")),
    "refit without attack term": Column(patch=lambda: mock.patch("gdws.compression.refit.ATTACK_WEIGHT", 0.0)),
    "no elimination": Column(patch=lambda: mock.patch("gdws.structures.kernel_elimination.curve", channel_curve)),
    "no trials": Column(patch=lambda: mock.patch("gdws.calibration.trials._interpolated", lambda *a: torch.ones(a[3]))),
    "all pixels alike": Column(patch=lambda: mock.patch("gdws.calibration.collect._add_moments", add_unweighted_moments)),
    "equation (8)'s gradients": Column(patch=lambda: mock.patch.object(Classes, "cotangents", all_signs)),
    "auto, filters not refined": Column(AUTO, patch=lambda: mock.patch("gdws.structures.filter_splitting.STEPS", 0)),
}


def bits(right: Tensor) -> str:
    """Which images were classified correctly, one bit each, for paired tests."""
    return np.packbits(right.cpu().numpy()).tobytes().hex()


def peak(device: str) -> float:
    """GiB on the GPU since the last call."""
    if not torch.cuda.is_available() or not device.startswith("cuda"):
        return float("nan")
    used = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return used


def options_for(description: str | None) -> argparse.ArgumentParser:
    """The options of a script that scores a network: which one, on what data, where."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--train", default="demo")
    parser.add_argument("--test", default="demo")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    return parser


def main() -> None:
    parser = options_for(__doc__)
    parser.add_argument("--columns", nargs="*", default=list(COLUMNS))
    parser.add_argument("--budgets", nargs="*", type=float, default=[0.60, 0.45, 0.30, 0.20])
    parser.add_argument("--save", type=Path, help="folder for the compressed networks")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    model = models.resolve(options.model, options.weights).to(options.device)
    train = data.load(options.train, "train").take(options.images)
    test = data.load(options.test, "test").take(options.n, options.batch)
    base = evaluate(model, test, PGD())
    print(f"base: {base.natural_percent:.2f} / {base.robust_percent:.2f}", flush=True)
    rows: list[dict[str, object]] = [
        {
            "column": "base",
            "natural": base.natural_percent,
            "robust": base.robust_percent,
            "natural right": bits(base.natural),
            "robust right": bits(base.attacked) if base.attacked is not None else "",
        }
    ]
    for name in options.columns:
        column = COLUMNS[name]
        statistics: gdws.Statistics | None = None
        for fraction in options.budgets:
            peak(options.device)
            start = time.time()
            with column.patch():
                if isinstance(column.method, gdws.Calibrated) and statistics is None:
                    statistics = gdws.calibrate(model, train, column.method)
                made = gdws.plan(model, statistics or train, gdws.Macs(fraction), column.method)
                planned, plan_memory = time.time(), peak(options.device)
                compressed = gdws.apply(model, made, statistics)
            done, apply_memory = time.time(), peak(options.device)
            found = evaluate(compressed, test, PGD())
            assert found.attacked is not None
            if options.save and column.patch is nullcontext:
                gdws.save(compressed, options.save / f"{name}-{fraction:.2f}", force=True, base=options.model)
            rows.append(
                {
                    "column": name,
                    "budget": fraction,
                    "macs": made.macs,
                    "predicted": made.loss,
                    "natural": found.natural_percent,
                    "robust": found.robust_percent,
                    "natural right": bits(found.natural),
                    "robust right": bits(found.attacked),
                    "layers": {layer.name: [layer.structure, sum(layer.ranks)] for layer in made.layers},
                    "plan s": planned - start,
                    "apply s": done - planned,
                    "plan GiB": plan_memory,
                    "apply GiB": apply_memory,
                }
            )
            if options.json:
                options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
            print(
                f"{name:26s} {fraction:.2f} ({made.macs:.4f}): {found.natural_percent:.2f} / {found.robust_percent:.2f}"
                f"   plan {planned - start:.1f} s {plan_memory:.1f} GiB, apply {done - planned:.1f} s {apply_memory:.1f} GiB, "
                f"predicted {made.loss:.3g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
