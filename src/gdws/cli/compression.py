"""The commands `demo`, `inspect` and `compress`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from gdws import data
from gdws.attacks import PGD
from gdws.calibration.collect import gather_inputs
from gdws.calibration.method import ATTACK, AUTO, METHODS, Calibrated, Method, Repair, Uniform, method_of
from gdws.cli import demo, tables
from gdws.cli.options import (
    Base,
    Device,
    Json,
    Model,
    Seed,
    Size,
    Threads,
    Weights,
    cache_folder,
    check_json,
    example_for,
    fraction,
    load_network,
    machine,
    usable_device,
    write_json,
)
from gdws.cli.progress_bar import Bar
from gdws.cli.terminal import console, errors
from gdws.compression import storage
from gdws.compression.compress import compress as compress_model
from gdws.compression.fidelity import CheckImages
from gdws.compression.report import Report, report
from gdws.core.errors import GdwsError
from gdws.core.files import check_folder
from gdws.core.inputs import repeat_first
from gdws.core.progress import shown
from gdws.core.sites import find_convolutions
from gdws.core.unwrap import unwrap
from gdws.models.names import base_of, is_folder
from gdws.objectives import OBJECTIVES, Classes
from gdws.planning.budgets import KINDS, Budget, Macs
from gdws.planning.cost import network_cost
from gdws.planning.fidelity_records import HELD_OUT, TRAINING, Fidelity
from gdws.planning.latency.target import Target
from gdws.planning.plan import Plan, plan_of
from gdws.planning.significance import images_to_bound
from gdws.structures import FAMILIES, STRUCTURES

HELD, CHECKED = 100, 1000
"""Other training images on which `compress` says what it cost, as far as there are so many; and held-out images of --check, or
whatever --drop is kept on."""


def demo_command(
    json_file: Annotated[Path, typer.Option("--json", help="file for the result")] = Path("result.json"),
    images: Annotated[int, typer.Option(min=1, max=1000, help="test images to attack")] = 100,
    seed: Seed = 0,
) -> None:
    """Compress the embedded robust CNN and show what it costs: one table, and result.json."""
    check_json(json_file)
    with shown(Bar(errors)):
        rows = demo.demo(images, seed)
    console.print(tables.demo(rows, images))
    told = demo.seen(rows, images)
    console.say(*told.splitlines())
    write_json(json_file, {"rows": [asdict(row) for row in rows], "images": images, "seed": seed, "seen": told, **machine()})


def inspect(
    model: Model = "demo",
    weights: Weights = None,
    base: Base = None,
    size: Size = None,
    json_file: Json = None,
) -> None:
    """List a model's convolutions: shape, cost, and what becomes of each or why it stays dense."""
    check_json(json_file)
    network = unwrap(load_network(model, weights, base=base))
    example = example_for(size, [network])
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
    write_json(json_file, {"model": model, "cost": asdict(cost), "plan": record, **machine()})


def compress(
    model: Model,
    out: Annotated[Path, typer.Option(help="folder for the compressed model")],
    weights: Weights = None,
    base: Base = None,
    data_name: Annotated[str, typer.Option("--data", help=f"calibration images: {data.NAMES}")] = "demo",
    check: Annotated[
        str | None,
        typer.Option(help="data whose test images measure the cost and bound --drop; use held-out data"),
    ] = None,
    macs: Annotated[float | None, typer.Option(help="fraction of the multiply-adds to keep (default 0.5)")] = None,
    params: Annotated[float | None, typer.Option(help="fraction of the weights to keep")] = None,
    speedup: Annotated[float | None, typer.Option(help="times faster than the dense network in its fastest engine")] = None,
    latency: Annotated[float | None, typer.Option(help="the same as a fraction of its time")] = None,
    beta: Annotated[float | None, typer.Option(help="bound on every layer's squared error (method paper)")] = None,
    drop: Annotated[
        float | None,
        typer.Option(help="points of accuracy that may be lost, by the upper end of a 95 % interval (see --check)"),
    ] = None,
    method: Annotated[str, typer.Option(help=", ".join(METHODS))] = "calibrated",
    structures: Annotated[
        list[str], typer.Option(help=f"for method calibrated, repeatable: {', '.join((*FAMILIES, *STRUCTURES))}")
    ] = ["auto"],  # noqa: B006, typer copies it
    images: Annotated[int, typer.Option(help="training images to calibrate on")] = 500,
    robust: Annotated[
        bool | None,
        typer.Option(help="attack the calibration images, or do not; by default only if the network is robust"),
    ] = None,
    eps: Annotated[str | None, typer.Option(help="radius of that l-inf attack, such as 8/255; 0 for none")] = None,
    objective: Annotated[
        str,
        typer.Option(help=f"what to keep of the outputs: {', '.join(OBJECTIVES)}; by default chosen from their shapes"),
    ] = AUTO,
    repair: Annotated[
        int, typer.Option(min=0, help="steps of tuning without labels on the calibration images; some 500 take a minute or two")
    ] = 0,
    exclude: Annotated[list[str] | None, typer.Option(help="pattern of layers to leave dense; repeatable")] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="for --speedup, --latency: onnxruntime, openvino, auto for the best, or cuda; "
            "cuda in float16 also for --macs, --params, --drop: a plan for tensor cores"
        ),
    ] = "auto",
    precision: Annotated[str, typer.Option(help="float32; int8, or float16 with cuda")] = "float32",
    threads: Threads = None,
    batch: Annotated[int, typer.Option(help="images at a time in the engine")] = 1,
    seed: Seed = 0,
    device: Device = "cpu",
    cache: Annotated[
        Path | None,
        typer.Option(help="folder that keeps statistics and times, 2 GB at most (default ~/.cache/gdws)"),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="keep nothing")] = False,
    force: Annotated[bool, typer.Option(help="overwrite the output folder, if gdws wrote all that is in it")] = False,
    json_file: Json = None,
) -> None:
    """Compress a model under a budget, on training images of the data, and save it."""
    check_folder(out, force, storage.FILES)
    check_json(json_file)
    given = {"Macs": macs, "Params": params, "Speedup": speedup, "Latency": latency, "Beta": beta, "Drop": drop}
    budget = _budget(given)
    target = Target(engine, precision, threads, batch)
    network = load_network(model, weights, base=base, layers=True).to(usable_device(device))
    train = data.load(data_name, "train", labels=False)
    calibration = train.take(images)
    settings = _method(method, structures, _attack(robust, eps), objective, exclude or (), repair)
    unseen = _check_images(check, train, images, budget)
    with shown(Bar(errors)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Drop\(")  # the report says it too
        compressed = compress_model(
            network,
            calibration,
            budget,
            settings,
            target=target if budget.is_measured or target != Target() else None,
            check=unseen,
            seed=seed,
            cache=_cache(cache, no_cache),
        )
        made = plan_of(compressed)
        assert made is not None
        origin = base_of(model) if is_folder(model) else model
        storage.save(compressed, out, force=force, base=origin if base is None else base)
        example = repeat_first(gather_inputs(calibration.take(1))[0], batch)
        found = report(network, compressed, example, precision=precision, threads=threads)
    _show(made, found, settings, out)
    record = {"model": model, "out": str(out), "plan": json.loads(made.to_json()), "report": found.record()}
    cost = found.fidelity if isinstance(found.fidelity, Fidelity) else None
    record |= {"agreement": {} if cost is None else _agreements(cost), "held": 0 if cost is None else cost.images}
    write_json(json_file, {**record, **machine()})


def _show(made: Plan, found: Report, settings: Method, out: Path) -> None:
    """What was kept of the outputs, what became of each layer, what it came to, and where it is."""
    if made.objective != Classes.name:
        console.say(f"What was kept: {made.objective} (--objective; gdws.objectives).")
    elif settings.attack == AUTO and made.attack is None and made.method != Uniform.name:
        console.print(
            "The network has no robustness to keep, so it was calibrated on images as they are (--robust attacks them anyway)."
        )
    console.print(tables.plan(made))
    console.print(tables.left(made))
    for name, reason in made.others.items():
        console.say(f"{name} stays as it is: {reason}")
    if made.measured is not None:
        console.say(*tables.measured(made))
    console.say(*str(found).splitlines())
    for warning in found.warnings:
        console.say(f"Warning: {warning}", style="bold red")
    console.say(f"saved to {out}")
    saved = storage.read_record(out)
    if not saved["exported"]:
        reason = f"without model.onnx ({saved['not exported because']})"
        console.say(f"{reason}: commands on it need {saved['base']}")


def _check_images(name: str | None, train: data.Dataset, calibrated: int, budget: Budget) -> CheckImages | None:
    """Held-out images of the data that was named, or as a makeshift training images that are not calibrated on."""
    most = HELD if name is None else CHECKED
    if budget.is_searched:  # where a few images may be lost, more tell more than those that allow none
        most = max(CHECKED, 2 * images_to_bound(budget.value))
    if name is not None:
        return CheckImages(*gather_inputs(data.load(name, "test", labels=False).take(most)), HELD_OUT)
    left = max(0, min(most, len(train) - calibrated))
    return CheckImages(*gather_inputs(train.select(slice(calibrated, calibrated + left))), TRAINING) if left else None


def _agreements(cost: Fidelity) -> dict[str, float]:
    """Percentage of the images that both networks give the same class, clean and, where they were attacked, attacked."""
    attacked = {} if cost.attacked_agreement is None else {"attacked": cost.attacked_agreement}
    return {"clean": cost.agreement} | attacked


def _cache(folder: Path | None, none: bool) -> Path | None:
    if none and folder is not None:
        raise GdwsError(f"--cache {folder} together with --no-cache: expected one of them")
    return None if none else folder or cache_folder()


def _attack(robust: bool | None, eps: str | None) -> PGD | Literal["auto"] | None:
    if robust is None and eps is None:
        return AUTO
    radius = fraction("8/255" if eps is None else eps)
    if robust is False and eps is not None and radius:
        raise GdwsError(f"--no-robust together with --eps {eps}: expected one of them")
    return replace(ATTACK, eps=radius, step=radius / 4) if robust is not False and radius else None


def _method(
    name: str,
    structures: list[str],
    attack: PGD | Literal["auto"] | None,
    objective: str,
    exclude: Sequence[str],
    steps: int,
) -> Method:
    shared: dict[str, Any] = {"attack": attack, "objective": objective, "exclude": exclude}
    kind = type(method_of(name))
    if kind is Calibrated:
        return Calibrated(**shared, structures=structures, repair=Repair(steps=steps) if steps else None)
    if steps:
        raise GdwsError(f"method {name!r} got --repair {steps}: expected the method 'calibrated' with it")
    return kind(**shared)


def _budget(given: dict[str, float | None]) -> Budget:
    chosen = {kind: value for kind, value in given.items() if value is not None}
    if len(chosen) > 1:
        raise GdwsError(f"the budgets {', '.join(chosen)} were given together: expected one")
    for kind, value in chosen.items():
        return KINDS[kind](value)
    return Macs(0.5)
