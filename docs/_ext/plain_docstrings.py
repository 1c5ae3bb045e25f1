"""Docstrings of this project are plain text; what Sphinx reads is reStructuredText.

A block such as

    model   takes images (B, C, H, W) and returns logits.
    images  batches of images,
            or of (images, labels).

becomes a list of fields. Everything else stays as it is, with the characters that reStructuredText would take for markup
escaped; `code` keeps its look and >>> examples are left alone.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

FIELD = re.compile(r"^([A-Za-z_]\w*(?:(?:, | and )\w+)*)( {2,})(\S.*)$")


def escaped(text: str) -> str:
    """Plain text, but for `code`."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([\\*|_`])", r"\\\1", text)
    return "".join(f"``{part}``" if index % 2 else re.sub(r"([\\*|_])", r"\\\1", part) for index, part in enumerate(parts))


def paragraph(lines: list[str]) -> list[str]:
    """One paragraph of a docstring as reStructuredText."""
    if lines[0].lstrip().startswith(">>>"):
        return lines
    if lines[0].startswith(" "):
        return ["::", "", *(f"    {line}" for line in lines)]
    if FIELD.match(lines[0]):
        items: list[tuple[str, str]] = []
        for line in lines:
            found = FIELD.match(line)
            if found:
                items.append((found[1], re.sub(r"\s+", " ", found[3])))
            else:
                items[-1] = (items[-1][0], f"{items[-1][1]} {line.strip()}")
        return [line for name, text in items for line in (f"``{name}``", f"    {escaped(text)}")]
    return [escaped(" ".join(line.strip() for line in lines))]


def rewrite(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    blocks = [list(block) for filled, block in groupby(lines, bool) if filled]
    lines[:] = [line for block in blocks for line in (*paragraph(block), "")]


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", rewrite)
    return {"parallel_read_safe": True}
