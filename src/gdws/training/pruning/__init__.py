"""Robust pruning: which weights or channels of a network to keep, and adversarial training of what is left.

HYDRA and ADMM are what the paper compares GDWS with; pruning by magnitude is the baseline of both.

>>> from gdws.training import pruning
>>> sorted(pruning.PRUNINGS)
['admm', 'hydra', 'magnitude']
"""

from gdws.training.pruning.admm import Admm
from gdws.training.pruning.hydra import Hydra
from gdws.training.pruning.magnitude import Magnitude
from gdws.training.pruning.presets import PRUNINGS, pruning_for
from gdws.training.pruning.stages import Pruned, prune

__all__ = ["PRUNINGS", "Admm", "Hydra", "Magnitude", "Pruned", "prune", "pruning_for"]
