"""Networks: by name, from public checkpoints, and the zoo of the paper's."""

from gdws.core.unwrap import Normalized
from gdws.models.names import BaseNeeded, embedded, resolve

__all__ = ["BaseNeeded", "Normalized", "embedded", "resolve"]
