"""A training step beside the passes that it consists of: the same network, batch and precision, interleaved in one run.

    python benchmarks/training_speed.py zoo:preactresnet18 --device cuda --precision bfloat16

A step draws and augments a batch, attacks it, descends, and moves the average. Its passes are one forward and one backward pass
to the image for each of the attack's steps, in eval mode, and one of each to the weights, in train mode. Images are noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from gdws import models
from gdws.attacks.gradient_ascent import loss_gradient
from gdws.core.cuda_graphs import GraphedCallable
from gdws.core.distributed import SINGLE_PROCESS
from gdws.data import Dataset
from gdws.training.learner import Learner
from gdws.training.losses import Robust
from gdws.training.recipes import PRECISIONS, Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    noise = torch.randint(256, (4 * options.batch, 3, 32, 32), dtype=torch.uint8)
    data = Dataset("noise", noise, torch.randint(10, (len(noise),)))
    recipe = Recipe(batch=options.batch, precision=options.precision, rate=1e-6)
    learner = Learner(models.resolve(options.model).to(options.device), data, recipe, Robust(), SINGLE_PROCESS)
    x, _, labels = learner.drawn(0, 0)

    def to_the_image(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        learner.model.eval()
        with learner.precision():
            return loss_gradient(learner.model, x, labels)

    def to_the_weights(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        learner.model.train()
        with learner.precision():
            loss = F.cross_entropy(learner.model(x), labels)
        return torch.autograd.grad(loss, list(learner.parameters.values()))

    attack, descend = GraphedCallable(to_the_image), GraphedCallable(to_the_weights)

    def passes() -> None:
        for _ in range(recipe.attack.steps):
            attack(x, labels)
        descend(x, labels)

    def now() -> float:
        if options.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    contenders: dict[str, Callable[[], object]] = {"passes": passes, "step": lambda: learner.step(0, 0)}
    for run in contenders.values():
        for _ in range(4):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, run in contenders.items():
            begun = now()
            for _ in range(5 if options.device.startswith("cuda") else 1):
                run()
            seconds[name].append(now() - begun)
    medians = {
        name: statistics.median(times) / (5 if options.device.startswith("cuda") else 1) for name, times in seconds.items()
    }
    ratio = medians["step"] / medians["passes"]
    print(f"{options.model}, {options.precision}, batch {options.batch}, {recipe.attack}, on {options.device}")
    print(f"passes {1e3 * medians['passes']:.2f} ms, a whole step {1e3 * medians['step']:.2f} ms: {ratio:.3f} times")
    print(f"{options.batch / medians['step']:.0f} images a second")
    if options.json:
        options.json.write_text(json.dumps(vars(options) | medians | {"ratio": ratio}, default=str, indent=1) + "\n")


if __name__ == "__main__":
    main()
