"""Write the pages of the reference that follow from the code: `make reference`, or `python docs/_ext/generated.py`.

They are committed, so that they can be read without building the site. tests/test_documentation.py fails when they are old.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer

import gdws
from gdws.cli import app

REFERENCE = Path(__file__).parents[1] / "reference"
PACKAGE = Path(gdws.__file__).parent


def cell(text: str) -> str:
    """Plain text in a table of Markdown, but for `code`."""
    parts = re.sub(r"\s+", " ", text).strip().split("`")
    return "`".join(part if index % 2 else re.sub(r"([\\*|_<>\[\]])", r"\\\1", part) for index, part in enumerate(parts))


def table(*rows: tuple[str, ...]) -> str:
    heading, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([heading, "|---" * len(rows[0]) + "|", *body])


def words(parameter: Any) -> str:
    """What is written on the line for a parameter: `--half`, `--macs`, or `{model}` for an argument."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.name}`"
    return " / ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))


def default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or callable(value) or isinstance(value, bool | tuple | list):
        return ""
    return f"`{value}`"


def commands() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    overview = [("command", "what it does")]
    overview += [(f"[`gdws {name}`](#gdws-{name})", cell(summary(command.help))) for name, command in group.commands.items()]
    parts = ["# Commands and options\n\n(Written by `make reference` from the program.)", table(*overview)]
    for name, command in group.commands.items():
        rows = [("option", "meaning", "default")]
        rows += [(words(each), cell(each.help or ""), default(each)) for each in command.params if each.name != "help"]
        parts += [f"## gdws {name}", cell(command.help), table(*rows)]
    return "\n\n".join(parts) + "\n"


def summary(docstring: str | None) -> str:
    """The first sentence of a docstring."""
    first = re.sub(r"\s+", " ", (docstring or "").split("\n\n")[0]).strip()
    return re.split(r"(?<=[a-z0-9)\"'`])[.:] (?=[A-Z`])", first)[0].rstrip(".") + "."


def names() -> str:
    """Every public name, and the file that it is defined in."""
    rows = [("name", "what it is", "file in `src/gdws`")]
    for name in sorted(set(gdws.__all__) - {"__version__"}, key=lambda name: (name.lower(), name)):
        value = getattr(gdws, name)
        file = Path(inspect.getfile(value)).relative_to(PACKAGE)
        place = f"{file.parent}/" if file.name == "__init__.py" else str(file)
        rows.append((f"`gdws.{name}`", cell(summary(inspect.getdoc(value))), f"`{place}`"))
    return f"""# Public names and their files

What `import gdws` gives, and where it is defined. Full entries: [Python API](api.md).
(Written by `make reference` from the docstrings.)

{table(*rows)}
"""


PAGES = {"_commands.md": commands, "names.md": names}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (REFERENCE / page).write_text(text())
        print(f"wrote {REFERENCE / page}", file=sys.stderr)
