"""The ways to factorise a convolution that a plan can choose from. Nothing outside this package knows one from another.

A structure proposes banks of features of growing size for a layer, with the loss that each leaves; says what each costs; and
makes the layer. The allocation, the refit, plans, files and export are shared by all.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdws.errors import GdwsError
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

FAMILIES = {
    "auto": tuple(STRUCTURES),
    "separable": ("vertical", "horizontal"),
}
"""Names that stand for several structures, of which each layer takes the best."""


def select_structures(structures: str | Sequence[str]) -> tuple[Structure, ...]:
    """The structures of these names, families taken apart, each once."""
    names = [structures] if isinstance(structures, str) else list(structures)
    single = dict.fromkeys(member for name in names for member in FAMILIES.get(name, (name,)))
    unknown = [name for name in single if name not in STRUCTURES]
    if unknown or not single:
        expected = ", ".join((*FAMILIES, *STRUCTURES))
        raise GdwsError(f"structures are {', '.join(names) or 'none'}: expected one or more of {expected}")
    return tuple(STRUCTURES[name] for name in single)


__all__ = ["FAMILIES", "STRUCTURES", "Curve", "Metric", "Structure", "select_structures"]
