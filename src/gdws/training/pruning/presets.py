"""The ways to prune by name, with their published settings and with short ones."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from gdws.core.errors import GdwsError
from gdws.training.pruning.admm import Admm
from gdws.training.pruning.hydra import Hydra
from gdws.training.pruning.magnitude import Magnitude
from gdws.training.pruning.method import Method
from gdws.training.pruning.recipes import FINETUNE, PERIOD
from gdws.training.recipes import suited

PRUNINGS: dict[str, dict[str, Method]] = {
    "hydra": {"fast": Hydra(keep=0.1), "paper": Hydra(keep=0.1, finetune=FINETUNE["paper-hydra"])},
    "admm": {
        "fast": Admm(keep=0.5),
        "paper": Admm(keep=0.5, rho=0.001, periods=10, prune=PERIOD["paper"], finetune=FINETUNE["paper-admm"]),
    },
    "magnitude": {"fast": Magnitude(keep=0.1), "paper": Magnitude(keep=0.1, finetune=FINETUNE["paper-magnitude"])},
}
"""{method: {preset: it}} (docs/reference/presets.md)."""


def pruning_for(
    name: str,
    data_name: str,
    device: str = "cpu",
    *,
    keep: float | None = None,
    recipe: str = "fast",
    prune_epochs: int | None = None,
    epochs: int | None = None,
    kind: str | None = None,
    structured: bool | None = None,
    **changes: Any,
) -> Method:
    """A way to prune as it suits data and a device, with some settings changed.

    name          "hydra", "admm" or "magnitude".
    data_name     as in gdws.data.load. Digits (svhn:DIR) are not mirrored.
    device        "cuda" lets the passes be bfloat16.
    keep          the share of each layer that is kept; by default a tenth, or half with "admm".
    recipe        "fast" or "paper".
    prune_epochs  of HYDRA's scores, or of each period of ADMM.
    epochs        of the training of what is left.
    kind          what "admm" prunes together.
    structured    whether "magnitude" prunes channels.
    changes       of all stages: eps and steps of the attack, and fields of gdws.Recipe, as in gdws.training.recipe_for; None
                  leaves a field as it is.

    Returns Hydra, Admm or Magnitude. Raises GdwsError when there is none of this name, it has no such setting, or a number is
    out of its range.

    >>> from gdws import training
    >>> training.pruning_for("hydra", "cifar10:DIR", keep=0.05, recipe="paper").finetune.epochs
    100
    """
    if name not in PRUNINGS:
        raise GdwsError(f"unknown method {name!r}: expected one of {', '.join(PRUNINGS)}")
    if recipe not in PRUNINGS[name]:
        raise GdwsError(f"unknown recipe {recipe!r}: expected one of {', '.join(PRUNINGS[name])}")
    base, own = PRUNINGS[name][recipe], {field.name for field in fields(PRUNINGS[name][recipe])}
    given = {"kind": kind, "structured": structured, "keep": keep}
    chosen: dict[str, Any] = {setting: value for setting, value in given.items() if value is not None}
    stages = {"prune": prune_epochs, "finetune": epochs}
    asked = {**chosen, **{stage: value for stage, value in stages.items() if value is not None}}
    if unknown := sorted(asked.keys() - own):
        words = {"prune": "prune_epochs"}.get(unknown[0], unknown[0])
        raise GdwsError(f"{words} is {asked[unknown[0]]!r} with {name}: expected it with a method that has it")
    for stage, settings in base.recipes().items():
        chosen[stage] = suited(settings, data_name, device, epochs=stages[stage], **changes)
    return replace(base, **chosen)
