"""Adversarial tuning of a compressed network in its factored form: its factors and norms move, and it stays what it is."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from gdws.core.checks import Batches, checked_logits
from gdws.core.distributed import SINGLE_PROCESS, ProcessGroup
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, own_copy, placement
from gdws.data import Dataset
from gdws.structures.balance import balance, unbalance
from gdws.structures.layers import FactoredConv2d
from gdws.training.loop import Trained, in_memory, train
from gdws.training.losses import Taught
from gdws.training.recipes import Recipe

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def tune(
    model: nn.Module,
    data: Dataset | Batches,
    recipe: Recipe,
    folder: Path,
    *,
    teacher: nn.Module | None = None,
    resume: bool = False,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> Trained:
    """Train the factors and norms of a copy of a compressed network adversarially; its dense layers stay as they are.

    model      what gdws.compress, gdws.apply or gdws.load returned. It is left as it was found.
    data       as in gdws.train.
    recipe     such as gdws.training.recipe("tune").
    folder     as in gdws.train.
    teacher    usually the original network: the tuned one then learns to classify attacked images as the teacher does
               (gdws.training.losses.Taught), and recipe.loss is not used.
    resume     continue from the checkpoint in the folder.
    processes  as in gdws.train.

    During training each filter has the norm of the weights that mix it, so that one learning rate suits both (`balance`).

    Returns Trained, with the network before as epoch 0. Raises GdwsError when the model has no factored layer, the teacher has
    other classes, or gdws.train would.

    >>> from pathlib import Path
    >>> import gdws
    >>> model, few = gdws.models.embedded(), gdws.data.load("demo", "train").take(20)
    >>> fast = gdws.compress(model, few, gdws.Macs(0.5), "uniform")
    >>> recipe = gdws.training.recipe_for("demo", name="tune", epochs=1, batch=8, steps=1)
    >>> [line["epoch"] for line in gdws.tune(fast, few, recipe, Path("tuned"), teacher=model).history]
    [0, 1]
    """
    data = in_memory(data)
    moving = trainable_copy(model)
    scales = balance(moving)
    if teacher is not None:
        teacher = own_copy(teacher).eval().requires_grad_(False)
        _check_same_classes(model, teacher, data)
    loss = None if teacher is None else Taught(teacher)
    trained = train(moving, data, recipe, folder, objective=loss, before=True, resume=resume, processes=processes)
    unbalance(trained.model, scales)
    for before, after in zip(model.parameters(), trained.model.parameters(), strict=True):
        after.requires_grad_(before.requires_grad)
    return trained


def _check_same_classes(model: nn.Module, teacher: nn.Module, data: Dataset) -> None:
    image = next(iter(data.take(1)))[0].to(placement(model)[0])
    with torch.no_grad(), evaluating(model):
        given, expected = (checked_logits(network, image).shape[1] for network in (teacher, model))
    if given != expected:
        raise GdwsError(f"the teacher has {given} classes: expected the {expected} of the network that is tuned")


def trainable_copy(model: nn.Module) -> nn.Module:
    """A copy of which only the factors and the norms require gradients."""
    copied = own_copy(model).requires_grad_(False)
    factored = [module for module in copied.modules() if isinstance(module, FactoredConv2d)]
    if not factored:
        raise GdwsError("the model has no factored layer: expected one that gdws.apply or gdws compress made")
    for module in [*factored, *(module for module in copied.modules() if isinstance(module, NORMS))]:
        module.requires_grad_(True)
    return copied
