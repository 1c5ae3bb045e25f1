"""Networks by name, with weights from public checkpoints. The architectures are in gdws.zoo.

>>> from gdws import models
>>> model = models.resolve("demo")
"""

from gdws.core.unwrap import Normalized
from gdws.models.names import embedded, resolve
from gdws.models.onnx.load import from_onnx

__all__ = ["Normalized", "embedded", "from_onnx", "resolve"]
