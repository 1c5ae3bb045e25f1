"""The pages of a reproduction: index.md, index.html and a picture for each figure, of the records beside them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from gdws.core.errors import GdwsError
from gdws.core.files import write_atomically
from gdws.reproduce.figures import figures
from gdws.reproduce.paper import LEADERBOARD, paper
from gdws.reproduce.records import Record, read_records
from gdws.reproduce.tables import grid, html, leaderboard, markdown

NOTES = "notes.toml"
HEAD = """# The paper's tables and figures

Made by `gdws reproduce` ([how](../../how-to/reproduce.md)). Each row that was measured has a record in the folder `rows`.

Every network has the size that the paper prints, with β found exactly. FPS are single images through eager PyTorch, in the
paper on a Jetson Xavier. In brackets: the change against the network that it was made of, on the same images. `auto` is the
calibrated method of this project, tuned where it says so.
"""
STYLE = "body{font:15px system-ui;margin:2em}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .5em}"


def write_pages(folder: Path, records: Path, tables: Sequence[str]) -> None:
    """Write the pages of these tables and figures.

    folder   gets index.md, index.html and the figures; it may have notes.toml, with a sentence for the name of a row.
    records  the folder of the records.
    """
    found = read_records(records)
    notes = _notes(folder / NOTES)
    drawn = {name: svg for name, svg in figures(found).items() if name in tables}
    for name, svg in drawn.items():
        write_atomically(folder / f"{name}.svg", svg)
    parts, pages = [HEAD, _made_with(found)], [f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>\n"]
    for name in tables:
        title = f"{_heading(name)}: {paper().table[name].title}"
        if name.startswith("figure"):
            parts.append(f"## {title}\n\n" + (f"![{title}]({name}.svg)\n" if name in drawn else "Not measured yet.\n"))
            pages.append(f"<h2>{title}</h2>\n{drawn.get(name, '<p>Not measured yet.</p>')}\n")
            continue
        shown = leaderboard(found) if name == LEADERBOARD else grid(name, found, notes)
        parts.append(f"## {title}\n\n{_measured(name, found)}{markdown(shown)}")
        pages.append(html(shown))
    write_atomically(folder / "index.md", "\n".join(parts))
    write_atomically(folder / "index.html", "".join(pages))


def _heading(name: str) -> str:
    """Such as "Table 1"."""
    kind = name.rstrip("0123456789")
    return f"{kind.capitalize()} {name.removeprefix(kind)}".strip()


def _measured(name: str, records: dict[str, Record]) -> str:
    own = [record for record in records.values() if name in record["tables"]]
    if not own:
        return "Not measured yet: the paper's numbers alone.\n\n"
    lacking = sum(bool(record.get("missing")) for record in own)
    return f"{lacking} of {len(own)} records are not whole yet.\n\n" if lacking else ""


def _made_with(records: dict[str, Record]) -> str:
    if not records:
        return "**No row has been measured yet**: every table below has the paper's numbers alone.\n"

    def all_of(name: str) -> str:
        return ", ".join(sorted({str(record[name]) for record in records.values() if name in record}))

    kinds = f"Scale {all_of('scale')}; machine {all_of('machine')}; PyTorch {all_of('torch')}; commit {all_of('commit')}"
    return f"{kinds}; {len(records)} records. Each has its command, seed, seconds and date.\n"


def _notes(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        found = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GdwsError(f"{path} cannot be read ({error}): expected TOML, a sentence for the name of a row") from None
    return {name: str(sentence) for name, sentence in found.items()}
