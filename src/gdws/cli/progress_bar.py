"""A progress bar on the terminal, for gdws.core.progress."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """Rich's progress bar as a gdws.core.progress display; nested loops stack."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars: list[tuple[Progress, TaskID]] = []

    def start(self, label: str, total: int | None) -> None:
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal or bool(self.bars),
        )
        bar.start()
        self.bars.append((bar, bar.add_task(label, total=total, note="")))

    def advance(self, note: str) -> None:
        bar, task = self.bars[-1]
        bar.update(task, advance=1, note=note)

    def stop(self) -> None:
        self.bars.pop()[0].stop()
