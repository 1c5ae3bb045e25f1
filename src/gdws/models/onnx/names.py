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
            wanted = _sanitized(_path(node.removesuffix(f"/{operator}")))
        return self._once(wanted or operator)

    def _once(self, wanted: str) -> str:
        words = wanted.split(".")
        above = [".".join(words[: k + 1]) for k in range(len(words) - 1)]
        if words[0] == "constants" or not self._layers.isdisjoint(above):
            wanted, above = "_".join(words), []  # it would be inside of a layer
        name, count = wanted, 1
        while name in self._layers | self._folders:
            count += 1
            name = f"{wanted}_{count}"
        self._folders.update(above)
        self._layers.add(name)
        return name


def _path(node: str) -> str:
    """`layer1.0.conv` of `/layer1/layer1.0/conv`: PyTorch names a part of a list after the list once more."""
    words: list[str] = []
    for word in node.split("/"):
        if words and word.startswith(f"{words[-1]}."):
            words.pop()
        words += [word] if word else []
    return ".".join(words)


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
