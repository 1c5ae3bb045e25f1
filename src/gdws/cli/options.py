"""What the commands share: the consoles, how options are written, and what becomes of the words a user gives."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from gdws import data, models
from gdws.cli.progress_bar import Bar
from gdws.cli.terminal import errors, harmless
from gdws.core.distributed import ProcessGroup, join_processes
from gdws.core.errors import GdwsError, first_line
from gdws.core.execution import MOST_THREADS
from gdws.core.files import Kind, check_file, write_atomically
from gdws.core.inputs import Arguments, Inputs
from gdws.core.progress import shown
from gdws.core.version import __version__
from gdws.deploy.engines import PRECISIONS
from gdws.deploy.onnx.signature import signature_of
from gdws.models.names import BaseNeeded, base_of, is_code, is_folder, is_onnx, risk_of
from gdws.models.onnx.noise import noise
from gdws.planning.plan import example_of, plan_of

FORMAT = "gdws result 1"
"""The first word of what --json writes: such a file may be written over."""

Model = Annotated[
    str,
    typer.Argument(
        help="demo, zoo:NAME, torchvision:NAME, timm:NAME, hf:REPO, FILE.py:FACTORY (which is run), FILE.onnx or a folder"
    ),
]
Weights = Annotated[Path | None, typer.Option(help="safetensors, or a torch state dict, for the (first) model")]
Base = Annotated[
    str | None,
    typer.Option(help="the FILE.py:FACTORY or FILE.onnx that a folder was made from, if it is not given as a model"),
]
Size = Annotated[
    int | None, typer.Option(min=1, max=2**16, help="height and width of the images (default: the folder's, or 32)")
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads of an engine (default: PyTorch's own choice)")
]
Data = Annotated[str, typer.Option("--data", help=data.NAMES)]
Json = Annotated[Path | None, typer.Option("--json", help="also write the result to this file")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of all random numbers")]
Eps = Annotated[str, typer.Option(help="radius of the l-inf attack, such as 8/255; 0 for none")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
Precision = Annotated[str, typer.Option(help=", ".join(PRECISIONS))]


def load_network(
    name: str,
    weights: Path | None = None,
    *,
    classes: int | None = None,
    base: str | None = None,
    named: Iterable[str] = (),
    layers: bool = False,
) -> nn.Module:
    """The network of this name, with its layers where they are needed. Code is announced before it is run.

    A folder that was made from a file is built on --base, or on the same FILE.py:FACTORY or FILE.onnx if that is one of the
    models `named` on the line. Code that only the folder names, or what it would have fetched, is used where nothing else will
    do and the user, asked on a terminal, allows it.
    """
    if base is None and is_folder(name):
        base = _same_code(base_of(name), named)
    announce_code(base if base is not None and is_folder(name) else name)
    try:
        return models.resolve(name, weights, classes, base=base, layers=layers)
    except BaseNeeded as needed:
        if needed.base is None or not can_ask():
            raise
        risk, verb = risk_of(needed.base), "run" if is_code(needed.base) else "use"
        if not typer.confirm(harmless(f"{name} was made from {needed.base}, {risk}: {verb} it?"), err=True):
            raise
        base = needed.base
    return models.resolve(name, base=base, layers=layers)


def names_once(first: str, others: list[str] | None) -> list[str]:
    """The models of a line that compares them, each named once: results are known by these names."""
    names = [first, *(others or [])]
    if twice := [name for name in names if names.count(name) > 1]:
        raise GdwsError(f"{twice[0]} is named twice: expected different networks")
    return names


@contextmanager
def processes_with_progress() -> Iterator[ProcessGroup]:
    """The processes that torchrun started, of which the first shows a progress bar."""
    with join_processes() as processes, shown(Bar(errors)) if processes.first() else nullcontext():
        yield processes


@cache
def announce_code(name: str) -> None:
    """Say once, before it happens, that a file is run."""
    if is_code(name):
        errors.say(f"gdws: {name} is code, which is run and may do whatever you may")


def can_ask() -> bool:
    """Whether somebody sits at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _same_code(remembered: str | None, named: Iterable[str]) -> str | None:
    """The model on the line that a folder was made from: a file of the same name, and function of it, wherever that is."""

    def file(name: str) -> str | None:
        return Path(name).name if is_code(name) or is_onnx(name) else None

    return next((name for name in named if remembered is not None and file(name) and file(name) == file(remembered)), None)


def example_for(size: int | None, networks: Iterable[nn.Module], count: int = 1) -> Inputs:
    """So many samples of seeded noise that the networks can be called with: pictures of a size; or else what one of them was
    compressed on or takes by its file; or else pictures of 32 x 32."""
    networks = list(networks)
    if size is None:
        for network in networks:
            made, signature = plan_of(network), signature_of(network)
            found = None if made is None else example_of(made, count)
            if found is None and signature is not None:
                tensors = noise(signature, count)
                found = tensors[0] if len(tensors) == 1 else Arguments(*tensors)
            if found is not None:
                return found
    convolutions = [module for network in networks for module in network.modules() if isinstance(module, nn.Conv2d)]
    channels = convolutions[0].in_channels if convolutions else 3
    return torch.rand(count, channels, size or 32, size or 32, generator=torch.Generator().manual_seed(0))


def fraction(text: str) -> float:
    """A radius: a number, or a fraction such as 8/255."""
    try:
        top, slash, bottom = text.partition("/")
        divisor = float(bottom) if slash else 1.0
        value = float(top) / divisor
        if not math.isfinite(divisor):
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise GdwsError(f"--eps is {text!r}: expected a number or a fraction such as 8/255") from None
    if not 0 <= value <= 1:
        raise GdwsError(f"--eps is {text}: expected a radius from 0 to 1, in units of the image range")
    return value


def usable_device(name: str) -> torch.device:
    """The device of this name, after trying it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the meta device has shapes alone
    except Exception as error:
        raise GdwsError(f"device {name!r} cannot be used: {first_line(error)}") from None
    return device


def cache_folder() -> Path | None:
    """Where statistics and times are kept; None for a user without a home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "gdws"
    except RuntimeError:
        return None


def machine() -> dict[str, Any]:
    """What a result was made with."""
    return {"gdws": __version__, "torch": str(torch.__version__), "threads": torch.get_num_threads()}


def check_json(path: Path | None) -> None:
    """Say that the result cannot be written, before hours of work and not after."""
    if path is not None:
        check_file(path, Kind.RECORD)


def write_json(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        write_atomically(path, json.dumps({"format": FORMAT, **record}, indent=1), Kind.RECORD)
