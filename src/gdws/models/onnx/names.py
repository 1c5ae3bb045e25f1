"""What the layers of a file's network are called: as its author called them, as far as the file knows that."""

from __future__ import annotations

import re

from torch import nn

LONGEST = 120
"""Characters of a name. A file may have names of any length."""
_PLAIN = nn.Module()


class Names:
    """Names of modules, each given once; none is inside of a layer."""

    def __init__(self) -> None:
        self._layers: set[str] = set()
        self._folders: set[str] = {"constants"}

    def of_layer(self, node: str, weight: str, operator: str) -> str:
        """`layer1.0.conv1` of a weight `layer1.0.conv1.weight` or of a node `/layer1/layer1.0/conv1/Conv`, where there is one
        of these; else what the node or its operator is called."""
        if weight.endswith(".weight") and weight != ".weight":
            wanted = _sanitized(weight.removesuffix(".weight"))
        else:
            wanted = _sanitized(node.removesuffix(f"/{operator}").strip("/").replace("/", "."))
        return self._once(wanted or operator)

    def _once(self, wanted: str) -> str:
        name, count = wanted, 1
        while self._is_taken(name):
            count += 1
            name = f"{wanted}_{count}"
        parts = name.split(".")
        self._folders.update(".".join(parts[: k + 1]) for k in range(len(parts) - 1))
        self._layers.add(name)
        return name

    def _is_taken(self, name: str) -> bool:
        parts = name.split(".")
        above = {".".join(parts[: k + 1]) for k in range(len(parts) - 1)} | {name}
        return bool(above & self._layers) or name in self._folders or parts[0] == "constants"


def _sanitized(name: str) -> str:
    """Words of letters, digits and underscores between dots, none of which is something that every module has."""
    words = [re.sub(r"\W", "_", word, flags=re.ASCII) for word in name[:LONGEST].split(".") if word]
    return ".".join(f"{word}_" if hasattr(_PLAIN, word) else word for word in words)


def constant_name(name: str, taken: set[str]) -> str:
    """The name of a constant, in which there may be no dots."""
    wanted = _sanitized(name.replace(".", "_").replace("/", "_")) or "constant"
    found, count = wanted, 1
    while found in taken:
        count += 1
        found = f"{wanted}_{count}"
    taken.add(found)
    return found
