"""Networks by name, with weights from public checkpoints. The architectures are in gdws.zoo.

>>> from gdws import models
>>> model = models.resolve("demo")
"""

from gdws.core.unwrap import Normalized
from gdws.models.names import embedded, resolve

__all__ = ["Normalized", "embedded", "resolve"]
