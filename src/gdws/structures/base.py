"""What a structure is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from gdws.core.sites import Site
from gdws.structures.layers import FactoredConv2d
from gdws.structures.scaling import within_range

Metric = tuple[Tensor, Tensor]
"""S and F of one group of a convolution (gdws.structures.metric): float64 (C kh kw, C kh kw) and (M, M)."""


class Curve(Protocol):
    """What a structure can make of one group of a convolution: a dataclass of tensors.

    Beside `losses`, its fields are what the structure needs to build a layer of any size.

    >>> import torch
    >>> from gdws.structures import STRUCTURES
    >>> metric = torch.eye(4 * 9, dtype=torch.float64), torch.eye(8, dtype=torch.float64)
    >>> curve = STRUCTURES["vertical"].curve(torch.rand(8, 4, 3, 3, dtype=torch.float64), metric)
    >>> bool((curve.losses.diff() <= 0).all())
    True
    """

    @property
    def losses(self) -> Tensor:
        """What is lost by a bank of size 0 ... n, in nats: (n + 1,), not increasing."""
        ...

    def scaled(self, factors: Tensor) -> Curve:
        """The same banks with losses multiplied by factors (n + 1,), and not increasing again."""
        ...

    def lasting(self) -> Curve:
        """Without what is large and only makes `build` faster."""
        ...


class Structure(ABC):
    """A way to factorize a convolution. Subclass it for one of your own (docs/how-to/add-a-structure.md).

    A layer is a bank of features and a mix of them; its size says how many features. Sizes are for one group: all groups of a
    convolution get the same. M is the outputs and C the input channels of one group.

    >>> import torch
    >>> from gdws.structures import STRUCTURES
    >>> vertical, conv = STRUCTURES["vertical"], torch.nn.Conv2d(8, 16, 3)
    >>> vertical.fits(conv), vertical.parameters(conv, size=4), conv.weight.numel()
    (True, 288, 1152)
    >>> vertical.build_empty(conv, ranks=(4,))(torch.rand(1, 8, 6, 6)).shape
    torch.Size([1, 16, 4, 4])
    """

    name: str
    """What plans, files and tables call it."""
    brittleness: float = 1.0
    """How much more a predicted loss counts against another structure's.

    An attack on the compressed network finds more in the errors of some than their divergence on given images tells.
    """
    plain: bool = True
    """Whether all its stages are plain convolutions: tensor cores run no others well."""
    narrow: bool = False
    """Whether tensor cores run it well also where it is small."""

    @abstractmethod
    def fits(self, conv: nn.Conv2d) -> bool:
        """Whether a convolution `conv` can have this structure at all."""

    @abstractmethod
    def curve(self, weight: Tensor, metric: Metric) -> Curve:
        """Banks of all sizes for one group of a convolution, and what is lost by each.

        weight  (M, C, kh, kw), float64.
        metric  S and F of the group.
        """

    @abstractmethod
    def sizes(self, curve: Curve) -> Sequence[int]:
        """The sizes on a `curve` that a plan may choose, rising."""

    @abstractmethod
    def curve_from_tensors(self, tensors: dict[str, Tensor]) -> Curve:
        """A curve from its `tensors` by the names of its fields, as a cache holds them."""

    @abstractmethod
    def parameters(self, conv: nn.Conv2d, size: int) -> int:
        """Weights of a layer of this `size` in the place of `conv`. The bias stays as it is and is not counted."""

    @abstractmethod
    def macs(self, site: Site, size: int) -> int:
        """Multiply-adds of a layer of this `size` for one image; `site` is the convolution in its network."""

    @abstractmethod
    def ranks(self, curves: Sequence[Curve], size: int) -> tuple[int, ...]:
        """What a plan records of a `size` on the `curves` of all groups: enough for `build`, and for people to edit."""

    def build(
        self, conv: nn.Conv2d, ranks: tuple[int, ...], curves: Sequence[Curve], metrics: Sequence[Metric]
    ) -> FactoredConv2d:
        """The layer in the place of a convolution, with the mix that is best in the metric.

        conv                the convolution.
        ranks               what a plan recorded (`ranks`).
        curves and metrics  of each group.
        """
        (layer,) = self.build_several(conv, [ranks], curves, metrics)
        return layer

    @abstractmethod
    def build_several(
        self,
        conv: nn.Conv2d,
        ranks: Sequence[tuple[int, ...]],
        curves: Sequence[Curve],
        metrics: Sequence[Metric],
        *,
        draft: bool = False,
    ) -> list[FactoredConv2d]:
        """The layers of several `ranks` in the place of one convolution: what they have in common is computed once.

        conv                the convolution.
        curves and metrics  of each group.
        draft               for trials: a search for good factors may end early.
        """

    @abstractmethod
    def build_empty(self, conv: nn.Conv2d, ranks: tuple[int, ...]) -> FactoredConv2d:
        """A layer of this size (`ranks`) in the place of `conv`, all its factors zero: enough to time it."""

    @abstractmethod
    def build_like(self, conv: nn.Conv2d, tensors: dict[str, Tensor]) -> FactoredConv2d:
        """A layer of the shape that saved tensors have, to load them into.

        conv     the convolution in whose place it stands.
        tensors  of the saved layer, by parameter name.

        Raises GdwsError when a tensor that tells the shape is missing.
        """

    @abstractmethod
    def is_layer(self, layer: nn.Module) -> bool:
        """Whether a module `layer` is a layer of this structure."""

    @abstractmethod
    def describe(self, ranks: tuple[int, ...]) -> str:
        """A planned layer of these `ranks` in a few words, for tables."""


@torch.no_grad()
def set_factors(layer: FactoredConv2d, filters: Tensor, mixing: Tensor) -> None:
    """Give a layer filters (N, a) and a mix (M, n) in float64, scaled where its type could not hold them as they are."""
    count, groups = len(layer.filters), layer.groups
    if count == 0:
        return
    per_filter = mixing.reshape(groups, layer.out_channels // groups, count // groups, -1).transpose(1, 2)
    first, second = within_range(filters.flatten(1), per_filter.flatten(0, 1).flatten(1), layer.filters.dtype)
    layer.filters.copy_(first.view_as(layer.filters))
    layer.mixing.copy_(second.view(per_filter.shape).transpose(1, 2).reshape(layer.mixing.shape))
