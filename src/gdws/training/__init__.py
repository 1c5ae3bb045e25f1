"""Adversarial training of networks, tuning of compressed ones, and robust pruning.

>>> from gdws import training
>>> sorted(training.RECIPES)
['fast', 'fast-svhn', 'paper-cifar10', 'paper-lightweight', 'paper-svhn', 'tune', 'union']
"""

from gdws.training.loop import Trained, train
from gdws.training.pruning import Admm, Hydra, Magnitude, Pruned, prune, pruning_for
from gdws.training.recipes import RECIPES, Recipe, recipe, recipe_for
from gdws.training.tuning import tune

__all__ = [
    "RECIPES",
    "Admm",
    "Hydra",
    "Magnitude",
    "Pruned",
    "Recipe",
    "Trained",
    "prune",
    "pruning_for",
    "recipe",
    "recipe_for",
    "train",
    "tune",
]
