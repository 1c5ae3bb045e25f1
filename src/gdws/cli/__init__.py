"""The command line: names and options in, tables and JSON out. Everything it does is a function of the library."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from gdws.cli.compression import compress, demo_command, inspect
from gdws.cli.deployment import bench_command, export_command
from gdws.cli.evaluation import evaluate_command
from gdws.cli.options import errors
from gdws.cli.training import download, train_command, tune_command
from gdws.errors import GdwsError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo_command,
    "inspect": inspect,
    "compress": compress,
    "evaluate": evaluate_command,
    "export": export_command,
    "bench": bench_command,
    "train": train_command,
    "tune": tune_command,
    "download": download,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def main() -> None:
    """The entry point: one sentence and status 2 for bad input, 130 for an interrupt."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            app()
    except GdwsError as error:
        errors.print(f"gdws: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("gdws: interrupted; no result was written (where there is a checkpoint, --resume goes on from it)")
        sys.exit(130)


def _show_warning(message: Warning | str, *_: Any) -> None:
    """One sentence, without the line of code that gave it."""
    errors.print(f"gdws: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)
