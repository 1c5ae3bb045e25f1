"""Adversarial training of networks, and tuning of compressed ones.

>>> from gdws import training
>>> sorted(training.RECIPES)
['fast', 'fast-svhn', 'paper-cifar10', 'paper-lightweight', 'paper-svhn', 'tune', 'union']
"""

from gdws.training.loop import Trained, train
from gdws.training.recipes import RECIPES, Recipe, recipe, recipe_for
from gdws.training.tuning import tune

__all__ = ["RECIPES", "Recipe", "Trained", "recipe", "recipe_for", "train", "tune"]
