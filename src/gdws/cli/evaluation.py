"""The command `evaluate`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from gdws import data
from gdws.attacks import Attack
from gdws.attacks.presets import PRESETS, preset
from gdws.cli import tables
from gdws.cli.options import (
    Base,
    Data,
    Device,
    Json,
    Model,
    Seed,
    Weights,
    check_json,
    fraction,
    load_network,
    machine,
    names_once,
    usable_device,
    write_json,
)
from gdws.cli.progress_bar import Bar
from gdws.cli.terminal import console, errors
from gdws.core.checks import AnyBatches, unpack_inputs
from gdws.core.distributed import join_processes, local_device
from gdws.core.errors import GdwsError
from gdws.core.files import check_file
from gdws.core.progress import shown, track
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.quantize import is_quantized
from gdws.evaluation.compare import compare
from gdws.evaluation.deployed import Deployed, deployed_file, deployed_half
from gdws.evaluation.quality import fidelity
from gdws.evaluation.red_flags import red_flags
from gdws.objectives import AUTO, Classes
from gdws.objectives.fitting import find_objective


def evaluate_command(
    model: Model,
    others: Annotated[
        list[str] | None,
        typer.Argument(
            help="compressed versions; FILE.onnx is evaluated on the examples of the model before it (int8: its own too)"
        ),
    ] = None,
    weights: Weights = None,
    base: Base = None,
    data_name: Data = "demo",
    n: Annotated[int | None, typer.Option("--n", help="test images (default all)")] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help=f"none, or one of {', '.join(PRESETS)}; repeatable (default pgd-20)")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps of PGD, instead of --attack; 0 for none")] = None,
    eps: Annotated[str | None, typer.Option(help="radius of PGD, such as 8/255, instead of --attack; 0 for none")] = None,
    transfer: Annotated[bool, typer.Option(help="evaluate the base's examples on the others, and theirs on it")] = True,
    half: Annotated[bool, typer.Option("--half", help="also evaluate half-precision copies on the same examples")] = False,
    tf32: Annotated[bool, typer.Option("--tf32", help="attack in TF32 on a GPU that has it; score in float32")] = False,
    batch: Annotated[int, typer.Option(help="images at a time")] = 100,
    checkpoint: Annotated[Path | None, typer.Option(help="keep the result of every batch in this file")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the checkpoint")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
) -> None:
    """Natural accuracy, accuracy under attack, and what changed for each image; under torchrun, in several processes."""
    check_json(json_file)
    names = names_once(model, others)
    if resume and checkpoint is None:
        raise GdwsError("--resume without --checkpoint: expected the file to continue")
    if checkpoint is not None:
        check_file(checkpoint)
    test = data.load(data_name, "test", labels=False).take(n, batch)
    attacks = _attacks(attack, steps, eps)
    with join_processes() as processes:
        where = local_device(usable_device(device))
        networks, forms = dict[str, torch.nn.Module](), dict[str, Deployed]()
        original = ""  # of the files that follow it; an int8 file that is attacked itself is a network, but no original
        for name in names:
            if name.endswith(".onnx"):
                if not original:
                    raise GdwsError(f"{name} is named first: expected the network whose examples it is evaluated on before it")
                forms[name] = deployed_file(Path(name), original)
                if attacks and is_quantized(Path(name)):
                    networks[f"{name}, attacked itself"] = StraightThrough(name).to(where)
                continue
            original = name
            networks[name] = load_network(name, None if networks else weights, base=base, named=names).to(where)
            if half:
                forms[f"{name} in half"] = deployed_half(networks[name], name)
        if not forms and not isinstance(find_objective(AUTO, networks[model], *unpack_inputs(next(iter(test)))), Classes):
            _outputs(networks, test, json_file)
            return
        with shown(Bar(errors)) if processes.first() else nullcontext():
            found = compare(
                networks,
                test,
                attacks,
                seed,
                deployed=forms,
                transfer=transfer,
                checkpoint=checkpoint,
                resume=resume,
                tf32=tf32,
                processes=processes,
            )
        if not processes.first():
            return
    flags = red_flags(found, networks, test, attacks, seed)
    console.print(tables.accuracies(found, f"{found.images:,} test images of {data_name}"))
    if len(found.makers) > 1:
        console.print(tables.changes(found))
    if found.transfers:
        console.print(tables.transfers(found))
    for flag in flags:
        console.print(f"Warning: {flag}.", style="yellow", highlight=False)
    if attacks and not flags:
        console.print("No reason to doubt these numbers was found (docs/explanation/evaluation.md says what was looked for).")
    record = {"data": data_name, **found.record(), "doubts": [{**asdict(flag), "text": str(flag)} for flag in flags]}
    write_json(json_file, {**record, **machine()})


def _outputs(networks: dict[str, torch.nn.Module], test: AnyBatches, json_file: Path | None) -> None:
    """Networks other than classifiers, compared with the first of them."""
    (first, original), *others = networks.items()
    if not others:
        raise GdwsError(f"{first} is not a classifier: expected other networks after it, which are compared with it")
    rows = []
    with shown(Bar(errors)):
        for name, network in track(others, "outputs"):
            rows.append((name, fidelity(original, network, test)))
    for name, found in rows:
        console.say(f"{name}: {found}")
    write_json(json_file, {"original": first, "rows": [{"model": name, **found.record()} for name, found in rows], **machine()})


def _attacks(names: list[str] | None, steps: int | None, eps: str | None) -> list[Attack]:
    """Presets, or PGD with settings of its own."""
    if steps is None and eps is None:
        return [] if names == ["none"] else [attack for name in names or ["pgd-20"] for attack in preset(name)]
    if names:
        raise GdwsError(f"--attack {names[0]} together with --steps or --eps: expected a preset, or PGD's own settings")
    radius, steps = fraction("8/255" if eps is None else eps), 20 if steps is None else steps
    return [replace(preset("pgd-20")[0], eps=radius, step=radius / 4, steps=steps)] if radius and steps else []
