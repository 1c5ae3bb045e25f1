"""Robust pruning: the stages of a method one after another, each a training with a folder of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from gdws.core.checks import Batches
from gdws.core.distributed import SINGLE_PROCESS, ProcessGroup
from gdws.core.errors import GdwsError
from gdws.core.execution import own_copy
from gdws.core.files import ensure_folder, write_atomically
from gdws.core.reading.limits import read_file
from gdws.core.reading.schema import from_json
from gdws.data import Dataset
from gdws.training.loop import check_trainable, in_memory, train
from gdws.training.losses import Loss
from gdws.training.pruning.losses import Masked
from gdws.training.pruning.masks import groups_left, prunable_layers, set_zeros
from gdws.training.pruning.method import Method, loss_of
from gdws.training.recipes import Recipe

FORMAT = "gdws pruning 1"
OTHERS = ("gdws.json", "model", "model.safetensors", "checkpoint.safetensors", "log.jsonl")
"""What a folder holds that a compression, a tuning or a training wrote."""


@dataclass(frozen=True)
class _Stored:
    """pruning.json."""

    format: Literal["gdws pruning 1"]
    method: dict[str, Any]


@dataclass(frozen=True)
class Pruned:
    """What `prune` returns.

    model   an ordinary network of the original architecture, with zeros, in eval mode.
    stages  what each stage's training says of its epochs, by its name (gdws.training.Trained.history). The first begins with
            epoch 0: as the network was, or with the weights masked that its scores began with or that magnitude chose.
    groups  what was pruned together: "irregular" (single weights), "batchnorm", "filter" or "column".
    kept    for every layer by name, how many groups it has kept, and of how many.

    >>> import torch
    >>> from gdws import training
    >>> training.Pruned(torch.nn.Identity(), {}, "irregular", {"a": (1, 10), "b": (4, 10)}).sparsity
    {'a': 0.9, 'b': 0.6}
    """

    model: nn.Module
    stages: dict[str, list[dict[str, Any]]]
    groups: str
    kept: dict[str, tuple[int, int]]

    @property
    def sparsity(self) -> dict[str, float]:
        """The share of each layer's groups that is zero."""
        return {name: 1 - kept / groups for name, (kept, groups) in self.kept.items()}

    @property
    def last(self) -> dict[str, Any]:
        """The line of the last epoch, whose network it is."""
        return list(self.stages.values())[-1][-1]


def prune(
    model: nn.Module,
    data: Dataset | Batches,
    method: Method,
    folder: Path,
    *,
    resume: bool = False,
    processes: ProcessGroup = SINGLE_PROCESS,
    checkpoint_seconds: float = 60,
) -> Pruned:
    """Prune a copy of a model under adversarial training, on the device that it is on.

    model               as for gdws.train; its layers have weights of their own.
    data                as for gdws.train.
    method              gdws.training.Hydra, Admm or Magnitude, or what gdws.training.pruning_for makes.
    folder              gets pruning.json, which says what is done, and a folder for each stage's training.
    resume              continue what is in the folder; stages that are complete are not done again.
    processes           as for gdws.train.
    checkpoint_seconds  least time between two checkpoints.

    Returns Pruned. Its model has exact zeros, and no masks, hooks or parametrizations: of a layer with n weights (filters,
    BatchNorm channels), max(1, round(keep n)) are not zero. A BatchNorm channel that is pruned has neither weight nor bias.
    Raises GdwsError when the model has nothing to prune, the folder holds another pruning or something else, or gdws.train
    would.

    >>> from pathlib import Path
    >>> import gdws
    >>> model, few = gdws.models.embedded(), gdws.data.load("demo", "train").take(20)
    >>> method = gdws.training.pruning_for("magnitude", "demo", keep=0.1, epochs=1, batch=8, steps=1)
    >>> pruned = gdws.training.prune(model, few, method, Path("pruned"))
    >>> pruned.kept["linear"], int(pruned.model.linear.weight.count_nonzero())
    ((128, 1280), 128)
    """
    data = in_memory(data)
    check_trainable(model, data, method.finetune)
    prunable_layers(model, method.groups, method.keep)  # or refuse, before anything is written
    if processes.first():
        _begin(folder, method, resume)
    network, stages = own_copy(model), dict[str, list[dict[str, Any]]]()
    processes.take_from_first(network.state_dict().values())

    def stage(name: str, start: nn.Module, recipe: Recipe, loss: Loss) -> nn.Module:
        trained = train(
            start,
            data,
            recipe,
            folder / name,
            objective=loss,
            before=not stages,
            resume=resume,
            processes=processes,
            checkpoint_seconds=checkpoint_seconds,
        )
        stages[name] = trained.history
        return trained.model

    network, masks = method.choose(network, stage)
    set_zeros(network, masks)
    network = stage("finetune", network, method.finetune, Masked(loss_of(method.finetune), masks))
    for before, after in zip(model.parameters(), network.parameters(), strict=True):
        after.requires_grad_(before.requires_grad)
    return Pruned(network, stages, method.groups, groups_left(network, method.groups))


def _begin(folder: Path, method: Method, resume: bool) -> None:
    """Write down what is done in the folder, or refuse what is there."""
    ensure_folder(folder)
    path, record = folder / "pruning.json", json.loads(json.dumps(method.record()))
    if path.exists():
        if not resume:
            raise GdwsError(f"{folder} holds a pruning: expected another folder, or to continue that one (--resume)")
        problem = f"{path} is not of gdws prune"
        stored: _Stored = from_json(_Stored, read_file(path).decode(errors="replace"), problem)
        if changed := [name for name in {**record, **stored.method} if record.get(name) != stored.method.get(name)]:
            raise GdwsError(f"{folder} was pruned with another {', '.join(changed)}: expected that again")
        return
    if taken := [name for name in OTHERS if (folder / name).exists()]:
        raise GdwsError(f"{folder} holds {taken[0]}, which is no pruning's: expected another folder")
    write_atomically(path, json.dumps({"format": FORMAT, "method": record}, indent=1))
