"""Adversarial training: epochs, images held back that judge them, and a folder that keeps it all."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gdws.attacks import MSD, PGD
from gdws.core.checks import Batches, check_differentiable, check_weights, checked_logits, logits_of
from gdws.core.distributed import SINGLE_PROCESS, ProcessGroup
from gdws.core.errors import GdwsError, first_line
from gdws.core.execution import evaluating, full_precision, own_copy, placement
from gdws.core.hashing import architecture_identity, data_hash, values_hash
from gdws.core.progress import note, track
from gdws.core.reading.weights import contiguous_copies, load_weights
from gdws.data import Dataset
from gdws.evaluation.compare import random_starts
from gdws.evaluation.comparison import percent
from gdws.planning.significance import paired_change
from gdws.training.learner import Learner
from gdws.training.losses import Loss
from gdws.training.recipes import LOSSES, Recipe
from gdws.training.runs import open_run

NOISE = 0.5
"""Points of accuracy that are less than chance moves them: the standard error of 1,000 images is 1.2 to 1.6."""


@dataclass(frozen=True)
class Trained:
    """What `train` and `tune` return.

    model    the network of the epoch that is kept, in eval mode.
    history  a line for each epoch: a dictionary with its number, rate, loss, and accuracies on held-back images in percent.
    best     the line of the epoch that is kept.
    harmed   whether the last epoch does worse on those images than the network before (epoch 0), by more than chance explains;
             False where that was not judged.

    >>> import torch
    >>> from gdws import training
    >>> line = {"epoch": 1, "natural": 80.0, "robust": 45.0}
    >>> training.Trained(torch.nn.Identity(), history=[line], best=line, harmed=False).best["robust"]
    45.0
    """

    model: nn.Module
    history: list[dict[str, Any]]
    best: dict[str, Any]
    harmed: bool


def train(
    model: nn.Module,
    data: Dataset | Batches,
    recipe: Recipe,
    folder: Path,
    *,
    objective: Loss | None = None,
    before: bool = False,
    resume: bool = False,
    processes: ProcessGroup = SINGLE_PROCESS,
    checkpoint_seconds: float = 60,
) -> Trained:
    """Train a copy of a model adversarially, on the device that it is on.

    Parameters that require gradients and running statistics change in the copy. The model itself is left as it was found.

    model               takes images (B, C, H, W) in [0, 1] and returns logits (B, classes); float32.
    data                the training split as gdws.data.load gives it, or a DataLoader or other batches of (images, labels) that
                        neither shuffle nor augment: images are read once, and cropped and mirrored here. recipe.held of them
                        judge every epoch.
    recipe              of gdws.training.recipe, or of your own.
    folder              gets the log, the weights and a checkpoint after an epoch (gdws.training.runs).
    objective           a loss of your own instead of recipe.loss (gdws.training.losses.Loss).
    before              judge the model as it was too, as epoch 0.
    resume              continue from the checkpoint in the folder.
    processes           several processes that share each batch; each is given the same arguments
                        (gdws.core.distributed.join_processes).
    checkpoint_seconds  least time between two checkpoints.

    Returns Trained: the network of the epoch that is kept, and a line for each epoch. Raises GdwsError when the model cannot be
    trained on this data, the folder holds something else, what is resumed had other settings, or the loss is not finite.

    >>> from pathlib import Path
    >>> import gdws
    >>> few = gdws.data.load("demo", "train").take(20)
    >>> recipe = gdws.training.recipe_for("demo", epochs=1, batch=8, steps=1)
    >>> trained = gdws.train(gdws.models.embedded(), few, recipe, Path("trained"))
    >>> [line["epoch"] for line in trained.history]
    [1]
    """
    data = in_memory(data)
    check_trainable(model, data, recipe)
    # The same images for every seed: those held back from a base are held back from what is tuned after it.
    rest, held = data.split(max(1, min(recipe.held, len(data.labels) // 5)))
    objective = objective or LOSSES[recipe.loss]()
    identity = {
        "recipe": recipe.record(),
        "data": data_hash(data.images, data.labels),
        "network": {name: list(value.shape) for name, value in model.state_dict().items()},
        "code or constants": values_hash([architecture_identity(model), objective, type(objective)]),
        "moving parameters": [name for name, value in model.named_parameters() if value.requires_grad],
        "objective": objective.record(),
    }
    with open_run(folder, identity, resume, processes.first()) as run:
        learner = Learner(own_copy(model), rest, recipe, objective, processes)
        history: list[dict[str, Any]] = []
        best: dict[str, Tensor] = {}
        continued = run.continued() if resume else None
        if continued is not None:
            record, tensors = continued
            history = record["history"]
            learner.restore(tensors)
            best = {name.removeprefix("best."): value for name, value in tensors.items() if name.startswith("best.")}
            run.keep_best(best)
        saved = time.monotonic()
        done = history[-1]["epoch"] if history else 0
        lines = _epochs(learner, held, done, before and not history)
        for line in () if _impatient(history, recipe.patience) else lines:
            history.append(line)
            run.write(history)
            if chosen_epoch(history, recipe.keep) is line:
                best = contiguous_copies(learner.averaged.state_dict())
                run.keep_best(best)
            impatient = _impatient(history, recipe.patience)
            due = line["epoch"] > 0 and time.monotonic() - saved > checkpoint_seconds
            if impatient or line["epoch"] == recipe.epochs or due:
                run.keep({"history": history}, learner.tensors() | {f"best.{name}": value for name, value in best.items()})
                saved = time.monotonic()
            if impatient:
                break
        processes.wait()
    trained = own_copy(model).eval()
    load_weights(trained, best, str(run.best))
    return Trained(trained, history, chosen_epoch(history, recipe.keep), was_harmed(history, len(held.labels)))


def in_memory(data: Dataset | Batches) -> Dataset:
    """Images as bytes: those that are files are read once, and so are those of a DataLoader."""
    if not isinstance(data, Dataset):
        return Dataset.from_batches("the data", data)
    held = Dataset(data.name, data.images, data.labels)
    return held if held.images.dtype == torch.uint8 else Dataset.from_batches(data.name, held)


def check_trainable(model: nn.Module, data: Dataset, recipe: Recipe) -> None:
    """Refuse what could not be trained on this data, before hours are spent: classes, gradients, what train mode changes."""
    (images, labels), (device, dtype) = next(iter(data.take(min(2, recipe.batch)))), placement(model)
    if len(data.labels) < 5:
        raise GdwsError(f"{data.name} has {len(data.labels)} images: expected at least 5 to train on and to hold back from")
    if dtype != torch.float32:
        raise GdwsError(f"the model is {dtype}: expected float32 to be trained (the recipe's precision rounds the passes)")
    check_weights(model)
    contiguous_copies(model.state_dict())  # as a checkpoint will want them
    with evaluating(model):
        checked_logits(model, images.to(device), data.labels.max().repeat(len(labels)))
        check_differentiable(logits_of(model), images[:1].to(device))
    try:
        logits = own_copy(model).train()(images.to(device))
    except (ValueError, TypeError, RuntimeError) as error:
        raise GdwsError(f"the model fails in train mode on {len(images)} images: {first_line(error)}") from None
    if not isinstance(logits, Tensor):
        raise GdwsError(f"the model returns a {type(logits).__name__} in train mode: expected logits, as in eval mode")


class Rounded(nn.Module):
    """A network in the precision of a training's passes."""

    def __init__(self, model: nn.Module, learner: Learner) -> None:
        super().__init__()
        self.model, self.learner = model, learner

    def forward(self, x: Tensor) -> Tensor:
        with self.learner.precision():
            logits: Tensor = self.model(x)
        return logits.float()


def validate(learner: Learner, held: Dataset) -> dict[str, Any]:
    """Natural and robust accuracy of the averaged network in percent, in float32, under at least ten of the attack's steps,
    and how many classes natural images get: one, where a training has collapsed.

    Where the passes of the training are rounded, the attack is made once more with such passes and judged in float32: if it
    finds less, the training may be hiding its gradients from itself. `rounding` is the p-value of that (McNemar, two-sided).
    """
    recipe, model, processes = learner.recipe, learner.averaged, learner.processes
    attack: PGD | MSD = replace(recipe.attack, steps=max(10, recipe.attack.steps))
    makers = {"robust": model}
    if recipe.precision != "float32":
        makers["robust_rounded"] = Rounded(model, learner)
    rows, decisions = [], []
    for number, (images, labels) in enumerate(held.take(None, 250)):
        right, classes = torch.zeros(1 + len(makers), len(labels), dtype=torch.uint8), torch.zeros_like(labels)
        if processes.owns(number):
            x, y = images.to(learner.device, memory_format=learner.layout), labels.to(learner.device)
            with full_precision(), torch.no_grad():
                attacked = [attack(maker, x, y, random_starts(attack, recipe.seed, number)) for maker in makers.values()]
                classes, *others = (model(tried).argmax(1) for tried in (x, *attacked))
            right = torch.stack([classes == y, *((classes == y) & (other == y) for other in others)]).to(torch.uint8).cpu()
        rows.append(right)
        decisions.append(classes.cpu())
    natural, robust, *rounded = processes.merged(torch.cat(rows, 1)).bool()
    found = {"natural": percent(natural), "robust": percent(robust)}
    found["classes"] = len(processes.merged(torch.cat(decisions)).unique())
    if rounded:
        found |= {"robust_rounded": percent(rounded[0]), "rounding": paired_change(robust, rounded[0]).p_value}
    return found


def _epochs(learner: Learner, held: Dataset, first: int, before: bool) -> Iterator[dict[str, Any]]:
    """A line for each epoch from number `first` on, as it is done. Seconds are those of the steps, without validation.

    before: and one, without a rate and a loss, for the network as it is.
    """
    if before:
        line: dict[str, Any] = {"epoch": 0} | validate(learner, held)
        yield line
        note(f"before: natural {line['natural']:.1f} %, robust {line['robust']:.1f} %")
    epochs, begun, totals = learner.recipe.epochs, time.monotonic(), torch.zeros(2, device=learner.device)
    schedule = ((epoch, step) for epoch in range(first, epochs) for step in range(learner.steps))
    for epoch, step in track(schedule, "training", (epochs - first) * learner.steps):
        rate, found = learner.step(epoch, step)
        totals += found
        if step + 1 < learner.steps:
            continue
        images = learner.steps * learner.batch
        loss, right = (totals / images).tolist()  # waits for the device
        seconds = time.monotonic() - begun
        if not math.isfinite(loss):
            raise GdwsError(f"the loss is {loss} in epoch {epoch + 1}: expected a rate below {learner.recipe.rate}")
        line = {"epoch": epoch + 1, "rate": rate, "loss": loss, "attacked": 100 * right}
        line |= validate(learner, held)
        yield line | {"seconds": seconds, "images_per_second": images / seconds}
        note(f"epoch {epoch + 1}: loss {loss:.3f}, natural {line['natural']:.1f} %, robust {line['robust']:.1f} %")
        begun, totals = time.monotonic(), torch.zeros_like(totals)


def chosen_epoch(history: Sequence[dict[str, Any]], keep: str) -> dict[str, Any]:
    """The line of the epoch that is kept, as Recipe.keep says."""
    return history[-1] if keep == "last" else best_epoch(history)


def was_harmed(history: Sequence[dict[str, Any]], held: int) -> bool:
    """Whether the last epoch does worse than the network did before, as epoch 0, on the `held` images held back: by more than
    two standard errors of the difference between two such accuracies, natural or robust.
    """

    def lost(kind: str) -> bool:
        before, after = (line[kind] / 100 for line in (history[0], history[-1]))
        return bool(before - after > 2 * math.sqrt((before * (1 - before) + after * (1 - after)) / held))

    return history[0]["epoch"] == 0 and (lost("natural") or lost("robust"))


def best_epoch(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The latest epoch, whose rate has fallen furthest, of those within NOISE of the highest robust accuracy and, among these,
    of the highest natural accuracy.

    Decided as the epochs come, since only the best so far is kept: an epoch takes the place of the last best one if that is no
    longer within NOISE of the highest robust accuracy, or if both are and its natural accuracy is within NOISE of the highest
    that an epoch kept since then had.
    """
    best, robust, natural = history[0], history[0]["robust"], history[0]["natural"]
    for line in history[1:]:
        robust = max(robust, line["robust"])
        if line["robust"] < robust - NOISE:
            continue
        if best["robust"] < robust - NOISE:
            best, natural = line, line["natural"]
        elif line["natural"] >= natural - NOISE:
            best, natural = line, max(natural, line["natural"])
    return best


def _impatient(history: list[dict[str, Any]], patience: int | None) -> bool:
    """Whether the highest robust accuracy is `patience` epochs old."""
    if patience is None or not history:
        return False
    return int(history[-1]["epoch"] - max(history, key=lambda line: float(line["robust"]))["epoch"]) >= patience
