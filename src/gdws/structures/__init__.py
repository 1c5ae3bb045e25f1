"""The structures: the ways to factorize a convolution that a plan can choose from.

For a layer, a structure proposes sets of filters of increasing size with the loss of each, tells the cost of each, and builds
the layer. The allocation, the refit, plans, files and export are common to all structures: no code outside this package depends
on a single one.

>>> from gdws import structures
>>> list(structures.STRUCTURES)
['gdws', 'vertical', 'horizontal', 'project']
>>> structures.FAMILIES["separable"]
('vertical', 'horizontal')
"""

from __future__ import annotations

from collections.abc import Sequence

from gdws.core.errors import GdwsError
from gdws.structures.base import Curve, Metric, Structure
from gdws.structures.gdws import GDWS
from gdws.structures.two_stage import Split

STRUCTURES: dict[str, Structure] = {
    structure.name: structure
    for structure in (
        GDWS(),
        Split("vertical", (0,)),
        Split("horizontal", (1,)),
        Split("project", ()),
    )
}
"""Every structure by its name. A new one is a new entry (docs/how-to/add-a-structure.md)."""

FAMILIES = {
    "auto": tuple(STRUCTURES),
    "separable": ("vertical", "horizontal"),
}
"""Names that stand for several structures, of which each layer takes the best: "auto" and "separable"."""


def select_structures(structures: str | Sequence[str]) -> tuple[Structure, ...]:
    """The structures that these names stand for, each once.

    structures  a name or several, of STRUCTURES or FAMILIES.

    Returns a tuple of Structure. Raises GdwsError when a name is unknown, or there is none.

    >>> from gdws import structures
    >>> [structure.name for structure in structures.select_structures(["separable", "gdws"])]
    ['vertical', 'horizontal', 'gdws']
    """
    names = [structures] if isinstance(structures, str) else list(structures)
    single = dict.fromkeys(member for name in names for member in FAMILIES.get(name, (name,)))
    unknown = [name for name in single if name not in STRUCTURES]
    if unknown or not single:
        expected = ", ".join((*FAMILIES, *STRUCTURES))
        raise GdwsError(f"structures are {', '.join(names) or 'none'}: expected one or more of {expected}")
    return tuple(STRUCTURES[name] for name in single)


__all__ = ["FAMILIES", "STRUCTURES", "Curve", "Metric", "Structure", "select_structures"]
