"""What the ways to prune have in common: choose what is kept, then train what is left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from torch import Tensor, nn

from gdws.core.errors import GdwsError
from gdws.training.losses import Loss
from gdws.training.pruning.masks import KINDS
from gdws.training.recipes import LOSSES, Recipe

Stage = Callable[[str, nn.Module, Recipe, Loss], nn.Module]
"""A training by its name, of a copy of a network, by a recipe, for a loss; it gives the network of its last epoch."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """keep      the share of each layer's groups (weights, filters, channels) that are kept.
    finetune  how what is left is trained, at last.
    """

    keep: float
    finetune: Recipe

    def __post_init__(self) -> None:
        keep: object = self.keep
        if not isinstance(keep, Real) or not 0 < float(keep) < 1:
            raise GdwsError(f"keep is {keep!r}: expected the share of each layer that is kept, between 0 and 1")
        if self.groups not in KINDS:
            raise GdwsError(f"kind is {self.groups!r}: expected one of {', '.join(KINDS)}")
        for name, recipe in self.recipes().items():
            if recipe.keep != "last":
                raise GdwsError(f"{name} has a recipe with keep={recipe.keep!r}: expected 'last', from which stages go on")

    @property
    @abstractmethod
    def groups(self) -> str:
        """The name in KINDS of what is pruned together."""

    @abstractmethod
    def choose(self, network: nn.Module, stage: Stage) -> tuple[nn.Module, dict[str, Tensor]]:
        """The network, which may have been trained for it by stages, and the masks of its parameters; it is not masked yet.

        network  as it was.
        stage    trains a copy of a network, by the name of the stage, a recipe and a loss, and gives it.
        """

    def recipes(self) -> dict[str, Recipe]:
        """The recipes of its stages by the names of the fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Recipe)}

    def record(self) -> dict[str, Any]:
        """The method as a dictionary for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        recipes = {name: recipe.record() for name, recipe in self.recipes().items()}
        return {"kind of method": type(self).__name__, **values, **recipes}


def loss_of(recipe: Recipe) -> Loss:
    """The loss that the recipe names."""
    return LOSSES[recipe.loss]()
