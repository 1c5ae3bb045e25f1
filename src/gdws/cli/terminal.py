"""Where text reaches the terminal. Names of files, layers and classes, and what other libraries say, are untrusted."""

from __future__ import annotations

import io
import sys
from typing import Any

from rich.console import Console
from rich.text import Text


def harmless(text: str) -> str:
    """The text with everything that would steer a terminal as an escape: ESC is shown as \\x1b, a new line as \\n."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


class Terminal(Console):
    """Rich's console for untrusted text: nothing in it is obeyed, neither escapes nor rich's own markup."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Every string that is printed and every string in a table comes by here."""
        return super().render_str(harmless(text), **settings)

    def say(self, *lines: str, style: str | None = None) -> None:
        """Sentences as they are, each on a line of its own, however long."""
        self.print(*lines, sep="\n", style=style, highlight=False, soft_wrap=True)


console, errors = Terminal(), Terminal(stderr=True)


def show_what_cannot_be_shown() -> None:
    """What the encoding of the terminal lacks is written as an escape from now on, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
