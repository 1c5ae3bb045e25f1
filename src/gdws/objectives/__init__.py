"""What a compressed network must keep of the original's outputs.

>>> from gdws import objectives
>>> sorted(objectives.OBJECTIVES)
['classes', 'pixels', 'values']
"""

from gdws.objectives.base import Objective
from gdws.objectives.classes import Classes
from gdws.objectives.fitting import AUTO, OBJECTIVES, choose_objective
from gdws.objectives.own import Own
from gdws.objectives.pixels import Pixels
from gdws.objectives.values import Values

__all__ = ["AUTO", "OBJECTIVES", "Classes", "Objective", "Own", "Pixels", "Values", "choose_objective"]
