"""Our PGD against foolbox's: the same model, images, radius, step and number of steps, interleaved in one run.

    python benchmarks/attack_speed.py --norm l2 --n 1000 --model zoo:preactresnet18 --weights FILE --data cifar10:DIR \\
        --device cuda

The contenders take turns on every batch, in an order that turns too:
    passes       the forward and backward passes alone
    ours         every image and every step, as foolbox does it
    early exit   ours, each image stopping at its first wrong iterate
    foolbox      as it comes: its backward pass also computes the gradients of the weights
    frozen       foolbox on a model whose weights want no gradients
Each gives its median time for a batch and the accuracy that it leaves. Ours and foolbox's agree if they differ by at most
two standard errors of a difference of two proportions. Without foolbox its rows are left out; it is pure Python, so a folder
made elsewhere with `pip install --no-deps --target DIR foolbox eagerpy GitPython gitdb smmap requests urllib3 idna certifi
charset_normalizer` and put on PYTHONPATH will do, beside numpy and scipy.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gdws import data, models
from gdws.attacks import PGD
from gdws.attacks.base import optional, weights_without_gradients
from gdws.attacks.gradient_ascent import loss_gradient
from gdws.attacks.norm_balls import SPARSITY
from gdws.core.errors import GdwsError
from gdws.core.execution import full_precision

RADII = {"linf": (8 / 255, 2 / 255), "l2": (0.5, 0.1), "l1": (12.0, 2.0)}
CONTENDERS = ("passes", "ours", "early exit", "foolbox", "frozen")
Contender = Callable[[nn.Module, Tensor, Tensor], Tensor]


def foolbox_pgd(settings: PGD) -> Contender:
    """foolbox's attack with these settings, its l-1 step moving as many coordinates as ours."""
    foolbox = optional("foolbox", "the comparison")
    common: dict[str, Any] = {"abs_stepsize": settings.step, "steps": settings.steps, "random_start": True}

    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        if settings.norm == "l1":
            values = images[0].numel()
            attack = foolbox.attacks.SparseL1DescentAttack(quantile=(values - SPARSITY - 0.5) / (values - 1), **common)
        else:
            name = {"linf": "LinfProjectedGradientDescentAttack", "l2": "L2ProjectedGradientDescentAttack"}[settings.norm]
            attack = getattr(foolbox.attacks, name)(**common)
        bounded = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
        attacked: Tensor = attack(bounded, images, labels, epsilons=settings.eps)[1]
        return attacked

    return run


def passes(steps: int) -> Contender:
    """The forward and backward passes of an attack, and nothing else."""

    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        for _ in range(steps):
            loss_gradient(model, images, labels)
        return images

    return run


def frozen(contender: Contender) -> Contender:
    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        with weights_without_gradients(model):
            return contender(model, images, labels)

    return run


def ours(settings: PGD, seed: int) -> Contender:
    generator = torch.Generator().manual_seed(seed)
    return lambda model, images, labels: settings(model, images, labels, generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", default="demo")
    parser.add_argument("--only", nargs="+", default=CONTENDERS, choices=CONTENDERS, metavar="CONTENDER")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--norm", choices=RADII, default="linf")
    parser.add_argument("--eps", type=float)
    parser.add_argument("--step", type=float)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true", help="lay out the model so; the images follow it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)  # foolbox draws from the global generator
    model = models.resolve(options.model, options.weights).to(options.device)
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    eps, step = RADII[options.norm]
    settings = PGD(eps=options.eps or eps, step=options.step or step, steps=options.steps, norm=options.norm)
    contenders = {
        "passes": passes(options.steps),
        "ours": ours(settings, options.seed),
        "early exit": ours(replace(settings, early_exit=True), options.seed),
    }
    try:
        contenders |= {"foolbox": foolbox_pgd(settings), "frozen": frozen(foolbox_pgd(settings))}
    except GdwsError as error:
        print(f"no rows for foolbox: {error}")
    contenders = {name: run for name, run in contenders.items() if name in options.only}
    seconds, right = measure(model, data.load(options.data, "test").take(options.n, options.batch), contenders, options.device)
    report(options, settings, seconds, right)


def measure(
    model: nn.Module, test: data.Dataset, contenders: dict[str, Contender], device: str
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Median seconds a batch, and which images each contender leaves right. The order turns from batch to batch."""

    def now() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    right: dict[str, list[Tensor]] = {name: [] for name in contenders}
    with full_precision():
        for number, (images, labels) in enumerate(test):
            images, labels = images.to(device), labels.to(device)
            if number == 0:
                loss_gradient(model, images, labels)  # warms up
            for name in names[number % len(names) :] + names[: number % len(names)]:
                begin = now()
                attacked = contenders[name](model, images, labels)
                seconds[name].append(now() - begin)
                with torch.no_grad():
                    right[name].append((model(attacked).argmax(1) == labels).cpu())
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return medians, {name: torch.cat(parts) for name, parts in right.items()}


def report(options: argparse.Namespace, settings: PGD, seconds: dict[str, float], right: dict[str, Tensor]) -> None:
    shares = {name: float(parts.float().mean()) for name, parts in right.items()}
    rows = [{"name": name, "seconds_a_batch": seconds[name], "accuracy_percent": 100 * shares[name]} for name in seconds]
    count = len(next(iter(right.values())))
    print(f"{settings}, {count} images in batches of {options.batch}, {options.model} on {options.device}")
    for name, spent in seconds.items():
        times = spent / min(seconds.values())
        print(f"{name:12} {spent:8.3f} s a batch {times:6.2f} x the fastest   accuracy {100 * shares[name]:.2f} %")
    record: dict[str, Any] = {
        "model": options.model,
        "data": options.data,
        "images": count,
        "batch": options.batch,
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine(),
        "threads": options.threads,
        "channels_last": options.channels_last,
        "torch": torch.__version__,
        "attack": asdict(settings),
        "rows": rows,
    }
    if {"ours", "foolbox"} <= shares.keys():
        a, b = shares["ours"], shares["foolbox"]
        error = math.sqrt((a * (1 - a) + b * (1 - b)) / count)
        differ = int((right["ours"] != right["foolbox"]).sum())
        record |= {"difference_points": 100 * (a - b), "standard_error_points": 100 * error, "images_that_differ": differ}
        verdict = "agree" if abs(a - b) <= 2 * error else "DISAGREE"
        print(
            f"ours - foolbox: {100 * (a - b):+.2f} points, standard error {100 * error:.2f} ({verdict}); {differ} images differ"
        )
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
