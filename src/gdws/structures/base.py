"""What a structure is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from gdws.core.sites import Site
from gdws.structures.layers import FactoredConv2d

Metric = tuple[Tensor, Tensor]
"""S and F of a group of a convolution (gdws.structures.metric), float64."""


class Curve(Protocol):
    """A dataclass of tensors. losses (n + 1,), not increasing: what is lost by a bank of size 0 ... n, for one group."""

    @property
    def losses(self) -> Tensor: ...

    def scaled(self, factors: Tensor) -> Curve:
        """The same banks with losses multiplied by factors (n + 1,), and not increasing again."""
        ...

    def lasting(self) -> Curve:
        """Without what is large and only makes `build` faster."""
        ...


class Structure(ABC):
    """Sizes are for one group: all groups of a convolution get the same."""

    name: str
    brittleness: float = 1.0
    """How much more a predicted loss counts against another structure's: an attack on the compressed network finds more in the
    errors of some than their divergence on given images tells."""
    plain: bool = True
    """Whether all its stages are plain convolutions: tensor cores run no others well."""
    narrow: bool = False
    """Whether tensor cores run it well also where it is small."""

    @abstractmethod
    def fits(self, conv: nn.Conv2d) -> bool:
        """Whether a convolution can have this structure at all."""

    @abstractmethod
    def curve(self, weight: Tensor, metric: Metric) -> Curve:
        """Banks of all sizes for the weight (M, C, kh, kw) of one group, float64."""

    @abstractmethod
    def sizes(self, curve: Curve) -> Sequence[int]:
        """The sizes on a curve that a plan may choose."""

    @abstractmethod
    def curve_from_tensors(self, tensors: dict[str, Tensor]) -> Curve:
        """A curve from its tensors, by name."""

    @abstractmethod
    def parameters(self, conv: nn.Conv2d, size: int) -> int:
        """Weights; the bias stays as it is and is not counted."""

    @abstractmethod
    def macs(self, site: Site, size: int) -> int:
        """Multiply-adds for one image."""

    @abstractmethod
    def ranks(self, curves: Sequence[Curve], size: int) -> tuple[int, ...]:
        """What a plan records of a size: enough for `build`, and for people to edit."""

    def build(
        self, conv: nn.Conv2d, ranks: tuple[int, ...], curves: Sequence[Curve], metrics: Sequence[Metric]
    ) -> FactoredConv2d:
        """The layer in the convolution's place, with the mix that is best in the metric."""
        (layer,) = self.build_several(conv, [ranks], curves, metrics)
        return layer

    @abstractmethod
    def build_several(
        self, conv: nn.Conv2d, ranks: Sequence[tuple[int, ...]], curves: Sequence[Curve], metrics: Sequence[Metric]
    ) -> list[FactoredConv2d]:
        """The same for several `ranks`: what they have in common is computed once."""

    @abstractmethod
    def build_empty(self, conv: nn.Conv2d, ranks: tuple[int, ...]) -> FactoredConv2d:
        """A layer of this size in the convolution's place, all its factors zero."""

    @abstractmethod
    def build_like(self, conv: nn.Conv2d, tensors: dict[str, Tensor]) -> FactoredConv2d:
        """A layer of the shape that saved tensors (by parameter name) have, to load them into."""

    @abstractmethod
    def is_layer(self, layer: nn.Module) -> bool:
        """Whether a module is a layer of this structure."""

    @abstractmethod
    def describe(self, ranks: tuple[int, ...]) -> str:
        """A planned layer in a few words."""
