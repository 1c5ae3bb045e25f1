"""The command line: it takes names and options, prints tables and JSON, and leaves all work to functions of the library."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import typer

from gdws.cli.compression import compress, demo_command, inspect
from gdws.cli.deployment import bench_command, export_command
from gdws.cli.evaluation import evaluate_command
from gdws.cli.malloc import keep_freed_memory
from gdws.cli.pruning import prune_command
from gdws.cli.reproduction import reproduce_command
from gdws.cli.terminal import errors, show_what_cannot_be_shown
from gdws.cli.training import download, train_command, tune_command
from gdws.core.errors import GdwsError, first_line

NO_MEMORY = "can't allocate memory"
"""What PyTorch says for a CPU."""


class Interrupted(BaseException):
    """A command that was interrupted, with what it kept. Typer would end without a word on KeyboardInterrupt."""


def interruptible(name: str, command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except KeyboardInterrupt:
            raise Interrupted(what_was_kept(name, options)) from None
        except SystemExit as stop:
            raise GdwsError(f"the code of a model ended the command (exit {stop.code}): expected it to return") from None
        except BaseException as error:
            if isinstance(error, Exception):
                raise
            told = f"{type(error).__name__}: {first_line(error)}"
            raise GdwsError(f"the code of a model ended the command ({told}): expected it to return") from None

    return run


def what_was_kept(name: str, options: dict[str, Any]) -> str:
    """What an interrupted command leaves, and how to go on."""
    out, checkpoint, folder = (Path(options.get(key) or "") for key in ("out", "checkpoint", "folder"))
    again = "the same command with --resume goes on from it"
    if name in ("train", "tune") and (out / "checkpoint.safetensors").exists():
        return f"the last checkpoint is in {out}, and {again}"
    if name in ("train", "tune") and (out / "log.jsonl").exists():
        return f"there was no checkpoint in {out} yet, and the same command with --resume begins anew"
    if name == "prune" and any(out.glob("*/checkpoint.safetensors")):
        return f"the stages that were done and the last checkpoint are in {out}, and {again}"
    if name == "prune" and (out / "pruning.json").exists():
        return f"there was no checkpoint in {out} yet, and the same command with --resume begins anew"
    if name == "evaluate" and options.get("checkpoint") is None:
        return "nothing was kept (--checkpoint FILE keeps every batch)"
    if name == "evaluate" and checkpoint.exists():
        return f"the batches that were done are in {checkpoint}, and {again}"
    if name == "reproduce" and out.exists():
        return f"what is done is in {out}, and the same command with --resume goes on from it"
    if name == "compress" and out.exists():
        return f"{out} is whole, as it was before or anew"
    if name == "compress":
        cached = ", and the same command starts from what the cache has of its statistics and times"
        return "no network was written" + ("" if options.get("no_cache") else cached)
    if name == "download":
        return f"what has arrived is in {folder}, and the same command fetches the rest"
    return "no result was written"


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
    "prune": prune_command,
    "reproduce": reproduce_command,
    "download": download,
}
for name, command in COMMANDS.items():
    app.command(name)(interruptible(name, command))


def main() -> None:
    """The entry point: one sentence and status 2 for bad input, 130 for an interrupt."""
    show_what_cannot_be_shown()
    keep_freed_memory()
    gc.freeze()  # what was imported stays: a collection need not look at it again, which takes a tenth of a second every time
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            app()
    except GdwsError as error:
        errors.say(f"gdws: {error}", style="red")
        sys.exit(2)
    except OSError as error:  # of a file or, for the output itself, of what it goes to
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        errors.say(f"gdws: {where}{error.strerror or error}", style="red")
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, what is left of the output is flushed to it
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY in str(error)):
            raise
        errors.say(
            "gdws: there is not enough memory: expected fewer or smaller images at a time, or a smaller network", style="red"
        )
        sys.exit(2)
    except Interrupted as stop:
        errors.say(f"gdws: interrupted: {stop}")
        sys.exit(130)


def _show_warning(message: Warning | str, *_: Any) -> None:
    """One sentence, without the line of code that gave it."""
    errors.say(f"gdws: {message}", style="yellow")
