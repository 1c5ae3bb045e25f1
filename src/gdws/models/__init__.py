"""Networks: by name, from public checkpoints, and the zoo of the paper's."""

from gdws.models.names import Normalized, embedded, resolve

__all__ = ["Normalized", "embedded", "resolve"]
