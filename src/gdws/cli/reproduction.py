"""The command `reproduce`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gdws.cli.options import Device, Json, Seed, check_json, machine, usable_device, write_json
from gdws.cli.progress_bar import Bar
from gdws.cli.terminal import console, errors
from gdws.core.errors import GdwsError
from gdws.core.files import check_writable
from gdws.reproduce.run import Outlook, reproduce
from gdws.reproduce.scales import SCALES


def reproduce_command(
    tables: Annotated[
        list[str] | None, typer.Argument(help="all (the default), table1 to table11, figure1, ..., leaderboard")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for networks, records and pages")] = Path("reproduction"),
    scale: Annotated[str, typer.Option(help=f"{', '.join(SCALES)}: seconds a row, tens of epochs, or the paper's")] = "fast",
    data: Annotated[
        list[str] | None, typer.Option(help="cifar10:DIR, svhn:DIR, imagefolder:DIR (ImageNet); repeatable")
    ] = None,
    weights: Annotated[
        list[Path] | None, typer.Option(help="folder with weights of networks, which are then not trained")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="stop after this many minutes; --resume continues")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue with what is in --out")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; by default one for each GPU")] = None,
    device: Device = "cpu",
    seed: Seed = 0,
    json_file: Json = None,
) -> None:
    """Reproduce the tables and figures of the paper. After an interruption, even a kill, --resume continues."""
    check_json(json_file)
    check_writable(out)
    made = reproduce(
        tables or ["all"],
        out,
        scale_name=scale,
        data=data or [],
        weights=weights or [],
        minutes=minutes,
        resume=resume,
        workers=workers,
        device=str(usable_device(device)),
        seed=seed,
        command=shlex.join(["gdws", *sys.argv[1:]]),
        display=Bar(errors),
        outlook=_show,
    )
    record = {"rows": made.rows, "failed": made.failed, "seconds": made.seconds, "out": str(out), **machine()}
    write_json(json_file, record)
    console.say(f"{len(made.rows)} rows in {made.seconds:.0f} s: {out / 'index.md'}, {out / 'index.html'}, {out / 'rows'}")
    if made.failed:
        name, why = next(iter(made.failed.items()))
        raise GdwsError(f"{len(made.failed)} steps failed, {name} first ({why}): expected the same command with --resume")


def _show(outlook: Outlook) -> None:
    """What there is to do, and how long each step takes here, alike ones in one line."""
    for reason in outlook.missing:
        errors.say(f"gdws: {reason}", style="yellow")
    alike: dict[tuple[str, str], list[float]] = {}
    for step, seconds in outlook.steps:
        alike.setdefault((type(step).__name__.lower(), step.architecture), []).append(seconds)
    table = Table("step", "network", "how many", "each", "all")
    for (kind, network), taken in alike.items():
        table.add_row(kind, network, str(len(taken)), _time(sum(taken) / len(taken)), _time(sum(taken)))
    if alike:
        console.print(table)
    total = _time(sum(seconds for _, seconds in outlook.steps))
    console.say(
        f"{outlook.rows} rows; {outlook.done} steps are done, {len(outlook.steps)} are left: about {total} of one worker "
        "(estimated by passes of each network on this machine)"
    )


def _time(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
