"""Frames per second, and times of networks beside each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from gdws.deploy.benchmark import bench
from gdws.deploy.engines import compile
from gdws.planning.latency.search import build_engine
from gdws.planning.latency.target import Target, device_name
from gdws.reproduce.place import NetworkStep, Place, Step

ROUNDS = 10, 60
"""Warm-up and timed passes where two networks are timed side by side."""


@dataclass(frozen=True)
class Timed(Step):
    """The paper's protocol, single images through eager PyTorch; and the same in an engine of the device."""

    network: NetworkStep
    passes: tuple[int, int]
    in_engines: bool = True

    @property
    def title(self) -> str:
        return self.network.title

    @property
    def architecture(self) -> str:
        return self.network.architecture

    @property
    def measures_time(self) -> bool:
        return True

    def run(self, place: Place) -> dict[str, Any]:
        model, example = self.network.network(place), self.network.example(place)
        runs: dict[str, Callable[..., Any]] = {"eager": model}
        if self.in_engines:
            engine = "cuda" if place.device.type == "cuda" else "torch"
            runs[engine] = compile(model, engine, example=example, threads=1)
        timings = bench(runs, example, *self.passes)
        found = {name: asdict(timing) | {"fps": timing.fps} for name, timing in timings.items()}
        return {"device": device_name(place.device), "timings": found}

    def work(self, place: Place) -> float:
        return 2 * sum(self.passes)


def speed_target(place: Place) -> Target:
    """Where networks of one speed are compared: the engine of this GPU, or the fastest of one CPU core."""
    if place.device.type == "cuda":
        return Target("cuda")
    return Target("onnxruntime" if place.scale.is_smoke else "auto", threads=1)


def time_share(place: Place, network: nn.Module, dense: nn.Module, example: Tensor) -> float:
    """The time of a network as a fraction of the dense one's, each as it runs fastest."""
    target = speed_target(place)
    runs = {
        name: build_engine(each, target.engine, target, example, example) for name, each in (("dense", dense), ("it", network))
    }
    timings = bench(runs, example, *ROUNDS)
    return timings["it"].quartile / timings["dense"].quartile
