"""What a compression came to, measured here: speed relative to dense, cost in accuracy, multiply-adds and size of it all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from gdws.compression.compaction.rebuild import smaller_layers
from gdws.compression.fidelity import CheckImages, Metric, attack_of, build_check, refuse_calibration_images
from gdws.core.checks import AnyBatches, unpack_inputs
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, placement
from gdws.core.inputs import Inputs, map_tensors, place
from gdws.deploy.benchmark import bench
from gdws.deploy.engines import compile
from gdws.objectives import Classes
from gdws.planning.cost import PRUNED, Cost, network_cost
from gdws.planning.fidelity_records import AnyFidelity
from gdws.planning.latency.target import device_name
from gdws.planning.plan import Plan, plan_of

ENGINE, WARMUP, REPEATS = "auto", 5, 40
SLOWER = 0.98
"""A speed below this times dense is no noise of the measurement."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of a pass of both networks (lower quartiles), each in its fastest engine on this machine, interleaved."""

    device: str
    precision: str
    threads: int
    batch: int
    dense_engine: str
    dense_seconds: float
    engine: str
    seconds: float

    @property
    def speedup(self) -> float:
        return self.dense_seconds / self.seconds

    def __str__(self) -> str:
        threads = "" if self.engine == "cuda" else f", {self.threads} thread{'s' * (self.threads > 1)}"
        both = f"{1e3 * self.dense_seconds:.2f} ms dense in {self.dense_engine}, {1e3 * self.seconds:.2f} ms in {self.engine}"
        return f"{self.speedup:.2f}x dense ({both}; {self.precision}{threads}, batch {self.batch}, {self.device})"


@dataclass(frozen=True, kw_only=True)
class Report:
    """A compressed network beside its original. As text: a line each for speed, cost in decisions, multiply-adds and size, and
    one more where the original was pruned.

    before, after  of the whole network
    smaller        layers of the original that had been made smaller (gdws.compact)
    fidelity       what it cost on images that it was not calibrated on; None where there were none
    speed          None where it could not be timed, and `untimed` says why
    """

    before: Cost
    after: Cost
    fidelity: AnyFidelity | None
    speed: Speed | None
    untimed: str = ""
    smaller: int = 0

    @property
    def pruned(self) -> str:
        """What a pruning left of the original; empty where there was none."""
        share = self.before.nonzeros / self.before.parameters
        zeros = (
            [f"{100 * share:.1f} % of its {self.before.parameters / 1e6:.2f} M parameters are not zero"]
            if share < PRUNED
            else []
        )
        smaller = [f"{self.smaller} of its layers were made smaller"] if self.smaller else []
        return ", ".join(zeros + smaller)

    @property
    def warnings(self) -> list[str]:
        """What nobody should overlook."""
        found = []
        if self.speed is not None and self.speed.speedup < SLOWER:
            found.append(
                f"{self.speed.speedup:.2f}x: this is slower than dense; try --speedup 1.5 (gdws.Speedup), a budget that is "
                "measured where the network will run"
            )
        if self.fidelity is not None and self.fidelity.warning:
            found.append(self.fidelity.warning)
        return found

    def __str__(self) -> str:
        before, after = self.before, self.after
        cost = self.fidelity or "not known: give held-out images with check=, --check"
        macs = f"{before.macs / 1e6:.1f} M before, {after.macs / 1e6:.1f} M after: {after.macs / before.macs:.2f}"
        size = f"{before.size_mb:.2f} MB before, {after.size_mb:.2f} MB after: {after.size_mb / before.size_mb:.2f}"
        return "\n".join(
            [
                f"speed: {self.speed or f'not timed ({self.untimed})'}",
                f"cost: {cost}",
                f"MACs: {macs} of the whole network",
                f"size: {size} of the whole network",
                *([f"pruned before: {self.pruned}"] if self.pruned else []),
            ]
        )

    def record(self) -> dict[str, Any]:
        """As JSON, with what follows from the fields."""
        made = asdict(self) | {"warnings": self.warnings}
        if self.speed is not None:
            made["speed"]["speedup"] = self.speed.speedup
        if self.fidelity is not None:
            made["fidelity"] = self.fidelity.record()
        return made


def report(
    model: nn.Module,
    compressed: nn.Module,
    images: Inputs,
    *,
    check: AnyBatches | CheckImages | Metric | None = None,
    precision: str = "float32",
    threads: int | None = None,
) -> Report:
    """Measure what a compression came to: print it, or read its fields.

    model       the network as it was, and compressed: what gdws.compress made of it.
    images      (B, C, H, W), or other inputs, of the size and batch that will be run: both networks are timed on them, each in
                the fastest of the engines that are installed. A plan for a latency budget brings the time that it was measured
                at instead.
    check       held-out images, with labels or without, or a measure of your own, as in gdws.compress; without any the report
                has what the plan has recorded.
    precision   "float32", or "float16" on a GPU.
    threads     of a CPU; as many as PyTorch has, if None.

    Returns a Report; its warnings say what should not be shipped unseen. Raises GdwsError when images of `check` were
    calibrated on.

    >>> import gdws
    >>> model = gdws.models.embedded()
    >>> images = gdws.data.load("demo", "test").take(1).images.float() / 255
    >>> fast = gdws.apply(model, gdws.plan(model, [images], gdws.Macs(0.5), "uniform"))
    >>> found = gdws.report(model, fast, images)
    >>> str(found).splitlines()[2]
    'MACs: 124.6 M before, 63.2 M after: 0.51 of the whole network'
    """
    unpack_inputs(images)
    made = plan_of(compressed)
    fidelity = None if made is None else made.fidelity
    attack, objective = (None, Classes.name) if made is None else (attack_of(made), made.objective)
    if check is not None:
        given = CheckImages.gather(check)
        if given.images is not None:
            refuse_calibration_images({"the compressed network": compressed}, [given.images])
        fidelity = build_check(model, given, attack, objective).fidelity(compressed)
    example = place(images[:1], *placement(model))
    before, after = network_cost(model, example), network_cost(compressed, example)
    speed, untimed = _measured(made), ""
    if speed is None:
        if objective == Classes.name:  # which engines give images in [0, 1], and which takes as long for any
            images = map_tensors(images, lambda value: value.clamp(0, 1) if value.is_floating_point() else value)
        try:
            speed = _time(model, compressed, images, precision, threads or torch.get_num_threads())
        except GdwsError as error:  # no engine for it, or a network that none can read
            untimed = str(error)
    smaller = len(smaller_layers(model))
    return Report(before=before, after=after, fidelity=fidelity, speed=speed, untimed=untimed, smaller=smaller)


def _measured(made: Plan | None) -> Speed | None:
    """What a plan for a latency budget was measured at."""
    if made is None or made.measured is None:
        return None
    found = made.measured
    return Speed(
        device=found.device,
        precision=found.precision,
        threads=found.threads,
        batch=found.batch,
        dense_engine=found.dense_engine,
        dense_seconds=found.dense_seconds,
        engine=found.engine,
        seconds=found.latency * found.dense_seconds,
    )


def _time(model: nn.Module, compressed: nn.Module, images: Inputs, precision: str, threads: int) -> Speed:
    with evaluating(model), evaluating(compressed):
        runs = {
            name: compile(network, ENGINE, example=images, precision=precision, threads=threads)
            for name, network in {"dense": model, "compressed": compressed}.items()
        }
        timings = bench(runs, images, WARMUP, REPEATS)
    return Speed(
        device=device_name(placement(compressed)[0]),
        precision=precision,
        threads=threads,
        batch=len(images),
        dense_engine=runs["dense"].engine,
        dense_seconds=timings["dense"].quartile,
        engine=runs["compressed"].engine,
        seconds=timings["compressed"].quartile,
    )
