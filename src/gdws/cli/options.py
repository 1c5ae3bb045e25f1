"""What the commands share: the consoles, how options are written, and what becomes of the words a user gives."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from gdws import data
from gdws.core.files import write_atomically
from gdws.deploy.engines import PRECISIONS
from gdws.errors import GdwsError

console, errors = Console(), Console(stderr=True)

Model = Annotated[str, typer.Argument(help="demo, zoo:NAME, torchvision:NAME, timm:NAME, FILE.py:FACTORY or a folder")]
Weights = Annotated[Path | None, typer.Option(help="safetensors, or a torch state dict, for the (first) model")]
Data = Annotated[str, typer.Option("--data", help=data.NAMES)]
Json = Annotated[Path | None, typer.Option("--json", help="also write the result to this file")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="of everything random")]
Eps = Annotated[str, typer.Option(help="radius of the l-inf attack, such as 8/255; 0 for none")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
Precision = Annotated[str, typer.Option(help=", ".join(PRECISIONS))]


def fraction(text: str) -> float:
    """A radius: a number, or a fraction such as 8/255."""
    try:
        top, _, bottom = text.partition("/")
        value = float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        raise GdwsError(f"--eps is {text!r}: expected a number or a fraction such as 8/255") from None
    if not 0 <= value <= 1:
        raise GdwsError(f"--eps is {text}: expected a radius from 0 to 1, in units of the image range")
    return value


def usable_device(name: str) -> torch.device:
    """The device of this name, after trying it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise GdwsError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gdws"


def machine() -> dict[str, Any]:
    """What a result was made with."""
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def check_json(path: Path | None) -> None:
    """Say that the result cannot be written before hours of work, not after."""
    if path is not None and not path.parent.is_dir():
        raise GdwsError(f"there is no folder {path.parent}: expected one for the result")


def write_json(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        write_atomically(path, json.dumps(record, indent=1))
