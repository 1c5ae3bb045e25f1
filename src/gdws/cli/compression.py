"""The commands `demo`, `inspect` and `compress`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from gdws import data
from gdws.attacks import PGD
from gdws.calibration.method import METHODS, Calibrated, Method, method_of
from gdws.cli import demo, tables
from gdws.cli.options import (
    Base,
    Device,
    Eps,
    Json,
    Model,
    Seed,
    Size,
    Weights,
    cache_folder,
    console,
    errors,
    fraction,
    image_shape,
    load_network,
    machine,
    usable_device,
    write_json,
)
from gdws.cli.progress_bar import Bar
from gdws.compression import storage
from gdws.compression.compress import compress as compress_model
from gdws.compression.fidelity import agreements
from gdws.core.cost import network_cost
from gdws.core.progress import shown
from gdws.core.sites import find_convolutions
from gdws.core.unwrap import unwrap
from gdws.errors import GdwsError
from gdws.models.names import base_of, is_folder
from gdws.planning.budgets import KINDS, Budget, Macs
from gdws.planning.latency.target import Target
from gdws.planning.plan import plan_of
from gdws.structures import FAMILIES, STRUCTURES

HELD = 100
"""Training images, as far as there are so many more, on which `compress` says what it cost."""


def demo_command(
    json_file: Annotated[Path, typer.Option("--json", help="where the result goes")] = Path("result.json"),
    images: Annotated[int, typer.Option(help="test images to attack")] = 100,
    seed: Seed = 0,
) -> None:
    """Compress the embedded robust CNN and show what it costs: one table, and result.json."""
    with shown(Bar(errors)):
        rows = demo.demo(images, seed)
    console.print(tables.demo(rows, images))
    write_json(json_file, {"rows": [asdict(row) for row in rows], "images": images, "seed": seed, **machine()})


def inspect(
    model: Model = "demo",
    weights: Weights = None,
    base: Base = None,
    size: Size = None,
    json_file: Json = None,
) -> None:
    """List a model's convolutions: shape, cost, and what becomes of each or why it stays dense."""
    network = unwrap(load_network(model, weights, base=base))
    example = torch.zeros(1, *image_shape(size, [network]))
    made = plan_of(network)
    if made is not None:
        console.print(tables.plan(made))
        console.print(tables.left(made))
    else:
        table = Table(title=model)
        for heading in ("convolution", "weight", "M MACs", "k params", "may be replaced"):
            table.add_column(heading)
        for site in find_convolutions(network, example):
            macs = site.positions * site.conv.weight.numel()
            table.add_row(
                site.name,
                "x".join(map(str, site.conv.weight.shape)),
                f"{macs / 1e6:.2f}",
                f"{site.conv.weight.numel() / 1e3:.1f}",
                "yes" if site.reason is None else f"no: {site.reason}",
            )
        console.print(table)
    cost = network_cost(network, example)
    console.print(f"{cost.macs / 1e6:.1f} M MACs, {cost.parameters / 1e6:.3f} M parameters, {cost.size_mb:.2f} MB")
    record = json.loads(made.to_json()) if made is not None else None
    write_json(json_file, {"model": model, "cost": asdict(cost), "plan": record})


def compress(
    model: Model,
    out: Annotated[Path, typer.Option(help="folder for the compressed model")],
    weights: Weights = None,
    base: Base = None,
    data_name: Annotated[str, typer.Option("--data", help=f"calibration images: {data.NAMES}")] = "demo",
    macs: Annotated[float | None, typer.Option(help="fraction of the multiply-adds to keep (default 0.5)")] = None,
    params: Annotated[float | None, typer.Option(help="fraction of the weights to keep")] = None,
    speedup: Annotated[float | None, typer.Option(help="times faster than the dense network in its fastest engine")] = None,
    latency: Annotated[float | None, typer.Option(help="the same as a fraction of its time")] = None,
    beta: Annotated[float | None, typer.Option(help="bound on every layer's squared error (method paper)")] = None,
    drop: Annotated[float | None, typer.Option(help="points of agreement that may be lost on held-back images")] = None,
    method: Annotated[str, typer.Option(help=", ".join(METHODS))] = "calibrated",
    structures: Annotated[
        list[str], typer.Option(help=f"for method calibrated, repeatable: {', '.join((*FAMILIES, *STRUCTURES))}")
    ] = ["auto"],  # noqa: B006, typer copies it
    images: Annotated[int, typer.Option(help="training images to calibrate on")] = 500,
    eps: Eps = "8/255",
    exclude: Annotated[list[str] | None, typer.Option(help="pattern of layers to leave dense; repeatable")] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="for --speedup, --latency: onnxruntime, openvino, auto for the best, or cuda; "
            "cuda in float16 also for --macs, --params, --drop: a plan for tensor cores"
        ),
    ] = "auto",
    precision: Annotated[str, typer.Option(help="float32; int8, or float16 with cuda")] = "float32",
    threads: Annotated[int | None, typer.Option(help="CPU threads of the engine (default: PyTorch's own choice)")] = None,
    batch: Annotated[int, typer.Option(help="images at a time in the engine")] = 1,
    seed: Seed = 0,
    device: Device = "cpu",
    cache: Annotated[bool, typer.Option(help="keep the statistics for the next budget")] = True,
    force: Annotated[bool, typer.Option(help="overwrite the output folder")] = False,
    json_file: Json = None,
) -> None:
    """Compress a model under a budget, on training images of the data, and save it."""
    if out.exists() and not force:
        raise GdwsError(f"{out} exists: choose another folder, or overwrite it with --force")
    given = {"Macs": macs, "Params": params, "Speedup": speedup, "Latency": latency, "Beta": beta, "Drop": drop}
    budget = _budget(given)
    target = Target(engine, precision, threads, batch)
    network = load_network(model, weights, base=base, layers=True).to(usable_device(device))
    train = data.load(data_name, "train")
    calibration = train.take(images)
    radius = fraction(eps)
    attack = PGD(eps=radius, step=radius / 4, steps=7) if radius else None
    settings = _method(method, structures, attack, exclude or ())
    with shown(Bar(errors)):
        compressed = compress_model(
            network,
            calibration,
            budget,
            settings,
            target=target if budget.is_measured or target != Target() else None,
            seed=seed,
            cache=cache_folder() if cache else None,
        )
        made = plan_of(compressed)
        assert made is not None
        held, agreed = max(0, min(HELD, len(train.labels) - images)), {}
        if held:
            unseen, labels = next(iter(train.select(slice(images, images + held)).take(held, held)))
            agreed = agreements(network, compressed, unseen, labels, attack)
    storage.save(compressed, out, force=force, base=base or (base_of(model) if is_folder(model) else model))
    console.print(tables.plan(made))
    console.print(tables.left(made))
    if made.measured is not None:
        console.print(tables.measured(made))
    for kind, per_cent in agreed.items():
        console.print(f"{per_cent:.1f} % of {held} other training images are decided as by the original, {kind}")
    console.print(f"saved to {out}")
    saved = storage.read_record(out)
    if not saved["exported"]:
        reason = f"without model.onnx ({saved['not exported because']})"
        console.print(f"{reason}: commands on it need {saved['base']}", markup=False, highlight=False, soft_wrap=True)
    record = {"model": model, "out": str(out), "plan": json.loads(made.to_json()), "agreement": agreed, "held": held}
    write_json(json_file, {**record, **machine()})


def _method(name: str, structures: list[str], attack: PGD | None, exclude: Sequence[str]) -> Method:
    shared: dict[str, Any] = {"attack": attack, "exclude": exclude}
    kind = type(method_of(name))
    return kind(**shared, structures=structures) if kind is Calibrated else kind(**shared)


def _budget(given: dict[str, float | None]) -> Budget:
    chosen = {kind: value for kind, value in given.items() if value is not None}
    if len(chosen) > 1:
        raise GdwsError(f"the budgets {', '.join(chosen)} were given together: expected one")
    for kind, value in chosen.items():
        return KINDS[kind](value)
    return Macs(0.5)
