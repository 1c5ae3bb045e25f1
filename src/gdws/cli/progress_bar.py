"""A progress bar on the terminal, for gdws.core.progress; a line now and then where there is none."""

from __future__ import annotations

import time

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gdws.cli.terminal import Terminal, harmless

QUIET = 20.0
"""Seconds between two lines in a file or a pipe."""


class Bar:
    """Rich's progress bar as a gdws.core.progress display; nested loops stack.

    Where the console is no terminal it prints a line instead, whenever QUIET seconds have passed: nobody waits in the dark.
    """

    def __init__(self, console: Terminal) -> None:
        self.console = console
        self.bars: list[tuple[Progress, TaskID]] = []
        self.said = time.monotonic()

    def start(self, label: str, total: int | None) -> None:
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal or bool(self.bars),
        )
        bar.start()
        self.bars.append((bar, bar.add_task(harmless(label), total=total, note="")))
        self._say()

    def advance(self, note: str) -> None:
        bar, task = self.bars[-1]
        bar.update(task, advance=1, note=harmless(note))
        self._say()

    def stop(self) -> None:
        self.bars.pop()[0].stop()

    def _say(self) -> None:
        """Where all loops stand, the outermost first."""
        if self.console.is_terminal or time.monotonic() - self.said < QUIET:
            return
        self.said = time.monotonic()
        tasks = [bar.tasks[number] for bar, number in self.bars]
        counts = [f"{task.completed:.0f}" + ("" if task.total is None else f"/{task.total:.0f}") for task in tasks]
        standing = " | ".join(f"{task.description} {count}" for task, count in zip(tasks, counts, strict=True))
        self.console.say(f"{standing} {tasks[-1].fields['note']}".rstrip())
