"""Pruning by magnitude: the largest weights of the network as it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from gdws.training.pruning.masks import masks_of, prunable_layers
from gdws.training.pruning.method import Method, Stage
from gdws.training.pruning.recipes import FINETUNE
from gdws.training.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class Magnitude(Method):
    """Keep the largest weights of each layer and train them: the baseline of the others.

    keep        the share of each layer that is kept.
    structured  prune the channels of every BatchNorm, by |gamma|, instead of single weights.
    finetune    how what is left is trained.

    Raises GdwsError when keep is not between 0 and 1, or the recipe does not keep its last epoch.

    >>> from gdws import training
    >>> training.Magnitude(keep=0.1).finetune.epochs
    40
    """

    structured: bool = False
    finetune: Recipe = FINETUNE["fast-magnitude"]

    @property
    def groups(self) -> str:
        return "batchnorm" if self.structured else "irregular"

    def choose(self, network: nn.Module, stage: Stage) -> tuple[nn.Module, dict[str, Tensor]]:
        return network, masks_of(prunable_layers(network, self.groups, self.keep), self.groups, self.keep)
