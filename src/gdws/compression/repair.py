"""Tuning without labels: the original teaches the compressed network its outputs and what its convolutions give.

Each step takes some of the samples, mirrored at random, or the next batch of a stream, and descends on

    loss(outputs) / its first value  +  mean over the layers that were replaced of the relative error of what they give / its
    first value,

the loss being the objective's. All parameters of the compressed network move, its running statistics do not. Learning rates are
in proportion to the size of each tensor's values, to the nearest power of two, so that one rate suits all networks.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gdws.calibration.collect import gather_inputs, settle
from gdws.calibration.method import Repair, Uniform
from gdws.calibration.sensitivity import attacked
from gdws.core.checks import AnyBatches, check_seed, unpack_inputs
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, full_precision, own_copy, placement
from gdws.core.inputs import Inputs, call_model, map_tensors, place
from gdws.core.progress import note, track
from gdws.core.unwrap import unwrap
from gdws.objectives import AUTO, Objective
from gdws.objectives.base import relative_error
from gdws.planning.plan import attach_plan, plan_of
from gdws.structures.balance import balance, unbalance
from gdws.structures.layers import FactoredConv2d

SMALLEST = 1e-3
"""The size of values that the learning rate of a tensor of smaller ones, such as a bias of zeros, goes by."""
HELD_BACK = 0.1
"""Share of the samples that tell whether it did any good."""
SETTLED_ON = 64
"""Samples, at most, whose answers the objective learns from."""
AT_ONCE = 8
"""Samples, where nothing is learned."""
WARMUP = 0.05
"""Share of the steps, or of the time, in which the rate rises."""

DEFAULT = Repair()


def repair(
    model: nn.Module,
    compressed: nn.Module,
    images: AnyBatches,
    settings: Repair = DEFAULT,
    *,
    objective: str | Objective | None = None,
    check: AnyBatches | None = None,
    seed: int = 0,
) -> nn.Module:
    """Tune a compressed network without labels, toward the original's outputs and what its convolutions give.

    model       the original, which teaches.
    compressed  what gdws.compress made of it. It is left as it was found.
    images      batches as in gdws.compress; targets are not used. The calibration images will do; more of them are better.
    settings    steps or seconds, batch, rate and so on.
    objective   what must be kept; by default what the plan says. One of your own must be given again.
    check       batches that are not learned from. The images are then a stream: each step takes a batch as it comes, and at the
                end it starts again, so that a DataLoader may change its images or make new ones.
    seed        of everything random.

    Without `check` a tenth of the samples is held back. Returns the tuned copy, in eval mode and with its plan; or an untuned
    one, if it was no worse on those. On a GPU it learns in TF32 and is judged in float32. Raises GdwsError when the networks
    do not belong together or there are fewer than two samples.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(12)
    >>> fast = gdws.compress(model, images, gdws.Macs(0.5), "uniform")
    >>> better = gdws.repair(model, fast, images, gdws.Repair(steps=2, batch=4))
    >>> gdws.plan_of(better) == gdws.plan_of(fast)
    True
    """
    check_seed(seed)
    teacher = own_copy(unwrap(model)).eval().requires_grad_(False)
    samples, _ = gather_inputs(images if check is None else check)
    plan = plan_of(compressed)
    named = AUTO if plan is None else plan.objective
    samples, _, settled = settle(teacher, samples, None, Uniform(objective=objective or named), is_collected=False)
    objective = settled.settled_objective
    if settings.attack is not None and not (objective.attackable and isinstance(samples, Tensor)):
        raise GdwsError(f"the objective {objective.name!r} got an attack to repair under: expected attack=None")
    drawn: Callable[[], Inputs]
    if check is None:
        if len(samples) < 2:
            raise GdwsError(f"there is {len(samples)} sample: expected at least 2, one of which is held back")
        held = max(1, round(HELD_BACK * len(samples)))
        few, seen = samples[: len(samples) - held], samples[len(samples) - held :]
        drawn = partial(_drawn, few, settings.batch, torch.Generator().manual_seed(seed))
    else:
        few, seen, drawn = samples, samples, partial(next, _again_and_again(images))
    moving = own_copy(unwrap(compressed), torch.float32).eval().requires_grad_(True)
    scales = balance(moving)
    layers = {layer: module for layer, module in moving.named_modules() if isinstance(module, FactoredConv2d)}
    taught = {layer: _same_place(teacher, layer) for layer in layers}
    with full_precision(), evaluating(teacher):
        objective = objective.settled(_answers(teacher, few[:SETTLED_ON], objective))
        before = _held_back_loss(teacher, moving, seen, objective)
        with full_precision(tf32=True):
            _descend(teacher, moving, taught, layers, drawn, objective, settings, seed)
        after = _held_back_loss(teacher, moving, seen, objective)
    unbalance(moving, scales)
    result = own_copy(moving, placement(compressed)[1]) if after < before else own_copy(unwrap(compressed))
    for original, tuned in zip(compressed.parameters(), result.parameters(), strict=True):
        tuned.requires_grad_(original.requires_grad)
    if plan is not None:
        attach_plan(result, plan)
    return result.eval()


def _descend(
    teacher: nn.Module,
    moving: nn.Module,
    taught: Mapping[str, nn.Module],
    layers: Mapping[str, nn.Module],
    drawn: Callable[[], Inputs],
    objective: Objective,
    settings: Repair,
    seed: int,
) -> None:
    """Train `moving`, in place, toward `teacher`, on what `drawn` gives for each step."""
    sizes = defaultdict(list)
    for value in moving.parameters():
        sizes[round(math.log2(max(SMALLEST, float(value.detach().square().mean().sqrt()))))].append(value)
    groups: list[dict[str, Any]] = [{"params": values, "largest": settings.rate * 2.0**size} for size, values in sizes.items()]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(seed)
    firsts: tuple[float, float] | None = None
    for done in track(_shares_done(settings), "repair", None if settings.seconds else settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = group["largest"] * _share_of_rate(done)
        x = place(drawn(), *placement(teacher))
        if settings.attack is not None:
            assert isinstance(x, Tensor)
            with torch.no_grad():
                decided = objective.answers(teacher, x)[0].argmax(1)
            x = attacked(moving, x, decided, settings.attack, generator)
        with torch.no_grad(), _noted(taught) as wanted:
            goal = objective.answers(teacher, x)
        with torch.enable_grad(), _noted(layers) as given:
            found = objective.outputs(call_model(moving, place(x, placement(moving)[0], torch.float32)))
            outputs = objective.loss(goal, found)
            errors = [
                relative_error(w, g) for name in layers for w, g in zip(wanted[name], given[name], strict=True) if w.numel()
            ]
            inside = torch.stack(errors).mean() if errors else outputs.new_zeros(())
        if firsts is None:
            tiny = torch.finfo(torch.float32).tiny
            firsts = max(tiny, float(outputs.detach())), max(tiny, float(inside.detach()))
        total = outputs / firsts[0] + settings.activations * inside / firsts[1]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        note(f"loss {float(outputs.detach()) / firsts[0]:.2f} of the first")


def _shares_done(settings: Repair) -> Iterator[float]:
    """How much is done at the middle of each step: of the steps, or of the time by as much as the step before took."""
    if settings.seconds is None:
        yield from ((step + 0.5) / settings.steps for step in range(settings.steps))
        return
    start = now = time.perf_counter()
    step = 0.0
    while now + step - start <= settings.seconds:
        yield (now + step / 2 - start) / settings.seconds
        before, now = now, time.perf_counter()
        step = now - before


def _share_of_rate(done: float) -> float:
    """Up in a straight line and down along a cosine; `done` goes from 0 to 1."""
    return done / WARMUP if done < WARMUP else (1 + math.cos(math.pi * (done - WARMUP) / (1 - WARMUP))) / 2


def _answers(teacher: nn.Module, samples: Inputs, objective: Objective) -> list[list[Tensor]]:
    """On the CPU, a few samples at a time."""
    with torch.no_grad():
        parts = [objective.answers(teacher, place(part, *placement(teacher))) for part in samples.split(AT_ONCE)]
    return [[value.float().cpu() for value in part] for part in parts]


def _held_back_loss(teacher: nn.Module, moving: nn.Module, samples: Inputs, objective: Objective) -> float:
    losses: list[float] = []
    with torch.no_grad():
        for part in samples.split(AT_ONCE):
            goal = objective.answers(teacher, place(part, *placement(teacher)))
            found = objective.outputs(call_model(moving, place(part, placement(moving)[0], torch.float32)))
            losses.append(float(objective.loss(goal, found)) * len(part))
    return sum(losses) / len(samples)


def _again_and_again(batches: AnyBatches) -> Iterator[Inputs]:
    """The inputs of each batch, without an end."""
    while True:
        count = 0
        for batch in batches:
            yield unpack_inputs(batch)[0]
            count += 1
        if not count:
            raise GdwsError("the images to learn from have ended: expected batches that can be gone through again")


def _drawn(samples: Inputs, count: int, generator: torch.Generator) -> Inputs:
    """Some of the samples, with repetition; pictures are mirrored, all of a sample alike."""
    rows = torch.randint(len(samples), (count,), generator=generator)
    flip = bool(torch.rand((), generator=generator) < 0.5)

    def picked(value: Tensor) -> Tensor:
        chosen = value[rows]
        return chosen.flip(-1) if flip and chosen.ndim == 4 else chosen

    return map_tensors(samples, picked)


@contextmanager
def _noted(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """What each module gives in the forward passes inside, call by call."""
    found: dict[str, list[Tensor]] = {name: [] for name in modules}
    handles = [
        module.register_forward_hook(lambda _, __, output, own=found[name]: own.append(output))
        for name, module in modules.items()
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _same_place(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise GdwsError(f"the original has no layer {name!r}: expected the network that was compressed") from None
