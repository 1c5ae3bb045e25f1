"""Where a compression spends its time: the CPU seconds of each stage of `gdws.compress` under a latency budget, from nothing.

    OMP_NUM_THREADS=1 python benchmarks/compress_stages.py --model zoo:vgg16 --data cifar10:DIR --images 24

CPU seconds of the whole process, all threads together, as other processes do not change them much. With one thread: two wait
for each other by spinning. The stages are those of the progress bar.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch

import gdws
from gdws import data, models
from gdws.core.progress import shown


class Stages:
    """A progress display that adds up the CPU seconds between a stage's start and its stop."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[tuple[str, float]] = []

    def start(self, label: str, total: int | None) -> None:
        self._running.append((label, time.process_time()))

    def advance(self, note: str) -> None:
        pass

    def stop(self) -> None:
        label, began = self._running.pop()
        if not self._running:
            self.seconds[label] = self.seconds.get(label, 0.0) + time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", default="demo")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--speedup", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    model = models.resolve(arguments.model, arguments.weights)
    images = data.load(arguments.data, "train").take(arguments.images)
    stages, began, wall = Stages(), time.process_time(), time.perf_counter()
    with shown(stages):
        compressed = gdws.compress(model, images, gdws.Speedup(arguments.speedup))
    plan = gdws.plan_of(compressed)
    assert plan is not None
    assert plan.measured is not None
    total = time.process_time() - began
    rows = {**stages.seconds, "the rest": total - sum(stages.seconds.values()), "in all": total}
    for label, seconds in rows.items():
        print(f"{label:26} {seconds:8.1f} s  {seconds / total:5.0%}")
    print(f"{torch.get_num_threads()} threads, {time.perf_counter() - wall:.0f} s by the clock")
    print(f"{1 / plan.measured.latency:.2f}x in {plan.measured.engine}, {plan.macs:.3f} of the MACs, loss {plan.loss:.5f}")
    record = {"arguments": {key: str(value) for key, value in vars(arguments).items()}, "seconds": rows}
    record |= {"threads": torch.get_num_threads(), "torch": torch.__version__, "machine": platform.processor()}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
