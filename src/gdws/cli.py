"""The command line: names and options in, tables and JSON out. Everything it does is a function of the library."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from gdws import bench as benchmark
from gdws import data, demo, engines, models, storage, tables
from gdws.attacks import PGD, Attack
from gdws.attacks.presets import PRESETS, named
from gdws.bar import Bar
from gdws.budgets import KINDS, Budget, Latency, Macs, Speedup
from gdws.cli_training import train_command, tune_command
from gdws.compress import METHODS, agreements, apply, plan
from gdws.cost import network_cost
from gdws.data.download import OFFICIAL, fetch
from gdws.doubts import doubts
from gdws.errors import GdwsError
from gdws.export import to_onnx, verify
from gdws.files import write_atomically
from gdws.latency import Target
from gdws.plans import Plan
from gdws.progress import shown, track
from gdws.protocol import Deployed, compare, deployed_file, deployed_half
from gdws.quantise import is_quantised, quantise
from gdws.ranks import joined, own_device
from gdws.statistics import image_hashes
from gdws.straight import StraightThrough
from gdws.structures import FAMILIES, STRUCTURES
from gdws.surgery import survey

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console, errors = Console(), Console(stderr=True)

HELD = 100
"""Training images, as far as there are so many more, on which `compress` says what it cost."""

Model = Annotated[str, typer.Argument(help="demo, zoo:NAME, torchvision:NAME, timm:NAME, FILE.py:FACTORY or a folder")]
Weights = Annotated[Path | None, typer.Option(help="safetensors, or a torch state dict, for the (first) model")]
Data = Annotated[str, typer.Option("--data", help=data.NAMES)]
Json = Annotated[Path | None, typer.Option("--json", help="also write the result to this file")]
Seed = Annotated[int, typer.Option(help="for attacks and random signs")]
Eps = Annotated[str, typer.Option(help="radius of the l-inf attack, such as 8/255; 0 for none")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
Precision = Annotated[str, typer.Option(help=", ".join(engines.PRECISIONS))]


app.command("train")(train_command)
app.command("tune")(tune_command)


def main() -> None:
    """The entry point: one sentence and status 2 for bad input, 130 for an interrupt."""
    try:
        app()
    except GdwsError as error:
        errors.print(f"gdws: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("gdws: interrupted; no result was written")
        sys.exit(130)


@app.command("demo")
def demo_command(
    json_file: Annotated[Path, typer.Option("--json", help="where the result goes")] = Path("result.json"),
    images: Annotated[int, typer.Option(help="test images to attack")] = 100,
    seed: Seed = 0,
) -> None:
    """Compress the embedded robust CNN and show what it costs: one table, and result.json."""
    with shown(Bar(errors)):
        rows = demo.demo(images, seed)
    console.print(tables.demo(rows, images))
    _write_json(json_file, {"rows": [asdict(row) for row in rows], "images": images, "seed": seed, **_machine()})


@app.command()
def inspect(
    model: Model = "demo",
    weights: Weights = None,
    size: Annotated[int, typer.Option(help="height and width of the images")] = 32,
    json_file: Json = None,
) -> None:
    """List a model's convolutions: shape, cost, and what becomes of each or why it stays dense."""
    network = models.resolve(model, weights)
    example = torch.zeros(1, 3, size, size)
    made = getattr(network, "gdws_plan", None)
    if isinstance(made, Plan):
        console.print(tables.plan(made))
        console.print(tables.left(made))
    else:
        table = Table(title=model)
        for heading in ("convolution", "weight", "M MACs", "k params", "may be replaced"):
            table.add_column(heading)
        for site in survey(network, example):
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
    record = json.loads(made.to_json()) if isinstance(made, Plan) else None
    _write_json(json_file, {"model": model, "cost": asdict(cost), "plan": record})


@app.command()
def compress(
    model: Model,
    out: Annotated[Path, typer.Option(help="folder for the compressed model")],
    weights: Weights = None,
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
    engine: Annotated[str, typer.Option(help="for --speedup, --latency: onnxruntime, openvino, or auto for the best")] = "auto",
    precision: Precision = "float32",
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
    network = models.resolve(model, weights).to(_device(device))
    train = data.load(data_name, "train")
    calibration = train.take(images)
    radius = _fraction(eps)
    attack = PGD(eps=radius, step=radius / 4, steps=7) if radius else None
    with shown(Bar(errors)):
        made = plan(
            network,
            calibration,
            budget,
            method,
            structures=structures,
            attack=attack,
            exclude=exclude or (),
            seed=seed,
            cache=_cache_folder() if cache else None,
            target=target if isinstance(budget, Speedup | Latency) else None,
        )
        compressed = apply(network, made)
        held, agreed = max(0, min(HELD, len(train.labels) - images)), {}
        if held:
            unseen, labels = next(iter(train.select(slice(images, images + held)).take(held, held)))
            agreed = agreements(network, compressed, unseen, labels, attack)
    storage.save(compressed, out, force=force, base=model)
    console.print(tables.plan(made))
    console.print(tables.left(made))
    if made.measured is not None:
        console.print(tables.measured(made.measured))
    for kind, per_cent in agreed.items():
        console.print(f"{per_cent:.1f} % of {held} other training images are decided as by the original, {kind}")
    console.print(f"saved to {out}")
    record = {"model": model, "out": str(out), "plan": json.loads(made.to_json()), "agreement": agreed, "held": held}
    _write_json(json_file, {**record, **_machine()})


@app.command("evaluate")
def evaluate_command(
    model: Model,
    others: Annotated[
        list[str] | None,
        typer.Argument(
            help="compressed versions; FILE.onnx is judged on the examples of the model before it (int8: its own too)"
        ),
    ] = None,
    weights: Weights = None,
    data_name: Data = "demo",
    n: Annotated[int | None, typer.Option("--n", help="test images (default all)")] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help=f"none, or one of {', '.join(PRESETS)}; repeatable (default pgd-20)")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps of PGD, instead of --attack; 0 for none")] = None,
    eps: Annotated[str | None, typer.Option(help="radius of PGD, such as 8/255, instead of --attack; 0 for none")] = None,
    transfer: Annotated[bool, typer.Option(help="try the base's examples on the others and theirs on the base")] = True,
    half: Annotated[bool, typer.Option("--half", help="let half-precision copies decide the same examples")] = False,
    tf32: Annotated[bool, typer.Option("--tf32", help="attack in TF32 on a GPU that has it; judge in float32")] = False,
    batch: Annotated[int, typer.Option(help="images at a time")] = 100,
    checkpoint: Annotated[Path | None, typer.Option(help="keep the result of every batch in this file")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the checkpoint")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
) -> None:
    """Natural accuracy, accuracy under attack, and what changed for each image; under torchrun, in several processes."""
    test = data.load(data_name, "test").take(n, batch)
    attacks = _attacks(attack, steps, eps)
    if resume and checkpoint is None:
        raise GdwsError("--resume without --checkpoint: expected the file to continue")
    if json_file is not None and not json_file.parent.is_dir():  # said before hours of work, not after
        raise GdwsError(f"there is no folder {json_file.parent}: expected one for the result")
    with joined() as ranks:
        place = own_device(_device(device))
        networks, forms = dict[str, torch.nn.Module](), dict[str, Deployed]()
        original = ""  # of the files that follow it; an int8 file that is attacked itself is a network, but no original
        for name in (model, *(others or [])):
            if name in (*networks, *forms):
                raise GdwsError(f"{name} is named twice: expected different networks")
            if name.endswith(".onnx"):
                if not original:
                    raise GdwsError(f"{name} is named first: expected the network whose examples it shall decide before it")
                forms[name] = deployed_file(Path(name), original)
                if is_quantised(Path(name)):
                    networks[f"{name}, attacked itself"] = StraightThrough(name).to(place)
                continue
            original = name
            networks[name] = models.resolve(name, None if networks else weights).to(place)
            if half:
                forms[f"{name} in half"] = deployed_half(networks[name], name)
        _refuse_overlap(networks, test)
        with shown(Bar(errors)) if ranks.first() else nullcontext():
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
                ranks=ranks,
            )
        if not ranks.first():
            return
    doubted = doubts(found, networks, test, attacks, seed)
    console.print(tables.accuracies(found, f"{found.images:,} test images of {data_name}"))
    if len(found.makers) > 1:
        console.print(tables.changes(found))
    if found.transfers:
        console.print(tables.transfers(found))
    for doubt in doubted:
        console.print(f"Warning: {doubt}.", style="yellow", markup=False, highlight=False)
    if attacks and not doubted:
        console.print("No reason to doubt these numbers was found (docs/evaluation.md says what was looked for).")
    record = {"data": data_name, **found.record(), "doubts": [{**asdict(doubt), "text": str(doubt)} for doubt in doubted]}
    _write_json(json_file, {**record, **_machine()})


@app.command("export")
def export_command(
    model: Model,
    out: Annotated[Path, typer.Option(help="the file to write")],
    weights: Weights = None,
    data_name: Data = "demo",
    to: Annotated[str, typer.Option(help="format of the file: onnx")] = "onnx",
    precision: Precision = "float32",
    images: Annotated[int, typer.Option(help="training images to calibrate int8 on")] = 300,
    n: Annotated[int, typer.Option("--n", help="test images to check the file on, clean and attacked")] = 200,
    eps: Eps = "8/255",
    force: Annotated[bool, typer.Option(help="overwrite the file")] = False,
    seed: Seed = 0,
    json_file: Json = None,
) -> None:
    """Write a model as a file that engines run, after checking that it decides as the model does."""
    if to != "onnx" or precision not in engines.PRECISIONS:
        raise GdwsError(f"--to is {to!r}, --precision {precision!r}: expected onnx, and {' or '.join(engines.PRECISIONS)}")
    if out.exists() and not force:
        raise GdwsError(f"{out} exists: choose another file, or overwrite it with --force")
    network = models.resolve(model, weights)
    test = data.load(data_name, "test").take(n, 50)
    sets = {"clean": torch.cat([clean for clean, _ in test])}
    radius = _fraction(eps)
    with shown(Bar(errors)), tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "float32.onnx")
        to_onnx(network, made, sets["clean"])
        if precision == "int8":
            made, plain = Path(folder, "int8.onnx"), made
            quantise(plain, made, next(iter(data.load(data_name, "train").take(images, images)))[0])
        if radius:
            attack = PGD(eps=radius, step=radius / 4, steps=10)
            random = torch.Generator().manual_seed(seed)
            sets[str(attack)] = torch.cat(
                [attack(network, clean, labels, random) for clean, labels in track(test, str(attack))]
            )
        # int8 differs by design: it is measured, not refused.
        tolerance = None if precision == "int8" else 1e-3
        parities = {name: verify(made, network, part, tolerance=tolerance) for name, part in sets.items()}
        write_atomically(out, made.read_bytes())
    title = f"{out}, {precision}, {out.stat().st_size / 2**20:.2f} MB, beside the model"
    console.print(tables.parities(parities, title))
    rows = [{"images": name, **asdict(parity)} for name, parity in parities.items()]
    _write_json(json_file, {"model": model, "out": str(out), "precision": precision, "rows": rows, "seed": seed, **_machine()})


@app.command("bench")
def bench_command(
    model: Annotated[str, typer.Argument(help="a model as elsewhere, or a FILE.onnx")],
    others: Annotated[list[str] | None, typer.Argument(help="models to compare with it")] = None,
    weights: Weights = None,
    engine: Annotated[
        str, typer.Option(help="eager, compile (torch.compile), torch, onnxruntime, openvino, or best: each model's fastest")
    ] = "eager",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="for eager and compile: NHWC in memory")] = False,
    precision: Precision = "float32",
    size: Annotated[int, typer.Option(help="height and width of the images")] = 32,
    batch: Annotated[int, typer.Option(help="images at a time")] = 1,
    warmup: Annotated[int, typer.Option(help="untimed passes")] = 50,
    repeats: Annotated[int, typer.Option(help="timed passes")] = 200,
    paper: Annotated[bool, typer.Option("--paper", help="the paper's protocol: batch 1, 5,000 + 10,000 passes")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads (default: PyTorch's own choice)")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
) -> None:
    """Frames per second of models in eager PyTorch or an engine, taken in turns in one process."""
    if threads is not None:
        torch.set_num_threads(threads)
    if paper:
        batch, (warmup, repeats) = 1, benchmark.PAPER
    if min(batch, size, repeats) < 1 or warmup < 0:
        raise GdwsError(f"batch {batch}, size {size}, repeats {repeats}: expected at least 1 of each")
    example = torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))
    if channels_last:
        example = example.to(memory_format=torch.channels_last)
    runs: dict[str, torch.nn.Module | engines.Compiled] = {}
    for index, name in enumerate([model, *(others or [])]):
        file = name.endswith(".onnx")
        network = Path(name) if file else models.resolve(name, weights if index == 0 else None).to(_device(device))
        runs[name] = _in_engine(network, engine, channels_last, precision, example)
    with shown(Bar(errors)):
        timings = benchmark.bench(runs, example, warmup, repeats)
    ran_in = {name: run.name if isinstance(run, engines.Compiled) else f"{engine} float32" for name, run in runs.items()}
    title = f"batch {batch}, {torch.get_num_threads()} threads, {device}, median of {repeats}"
    console.print(tables.timings(timings, ran_in, title))
    rows = [{"model": name, "engine": ran_in[name], **asdict(timing), "fps": timing.fps} for name, timing in timings.items()]
    if timings[model].busy:
        console.print(
            "This machine was busy: a fixed kernel took unequal times. Trust ratios and lower quartiles, or run again."
        )
    _write_json(json_file, {"rows": rows, "warmup": warmup, "repeats": repeats, "device": device, **_machine()})


@app.command()
def download(
    name: Annotated[str, typer.Argument(help=" or ".join(OFFICIAL))],
    folder: Annotated[Path, typer.Argument(help="where its files go")],
) -> None:
    """Fetch a data set from its official address, check it, and resume what was interrupted."""
    with shown(Bar(errors)):
        fetch(name, folder)
    console.print(f"ready to use: --data {name}:{folder}", markup=False, highlight=False, soft_wrap=True)


def _budget(given: dict[str, float | None]) -> Budget:
    chosen = {kind: value for kind, value in given.items() if value is not None}
    if len(chosen) > 1:
        raise GdwsError(f"the budgets {', '.join(chosen)} were given together: expected one")
    for kind, value in chosen.items():
        return KINDS[kind](value)
    return Macs(0.5)


def _in_engine(
    network: torch.nn.Module | Path, engine: str, channels_last: bool, precision: str, example: torch.Tensor
) -> torch.nn.Module | engines.Compiled:
    if engine in ("eager", "compile"):
        if not isinstance(network, torch.nn.Module):
            raise GdwsError(f"{network} is a file, --engine is {engine}: expected onnxruntime, openvino or best")
        if precision != "float32":
            raise GdwsError(f"--engine {engine} with --precision {precision}: expected float32, or another engine")
        if channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if engine == "compile":
            network.compile()
        return network
    if channels_last:
        raise GdwsError(f"--channels-last with --engine {engine}, which has layouts of its own: expected eager or compile")
    # The values that int8 is calibrated on do not change its time.
    noise = torch.rand(8, *example.shape[1:], generator=torch.Generator().manual_seed(0))
    return engines.compile(
        network, "auto" if engine == "best" else engine, example=example, precision=precision, calibration=noise
    )


def _attacks(names: list[str] | None, steps: int | None, eps: str | None) -> list[Attack]:
    """Presets, or PGD with settings of its own."""
    if steps is None and eps is None:
        return [] if names == ["none"] else [attack for name in names or ["pgd-20"] for attack in named(name)]
    if names:
        raise GdwsError(f"--attack {names[0]} together with --steps or --eps: expected a preset, or PGD's own settings")
    radius, steps = _fraction(eps or "8/255"), 20 if steps is None else steps
    return [replace(named("pgd-20")[0], eps=radius, step=radius / 4, steps=steps)] if radius and steps else []


def _fraction(text: str) -> float:
    try:
        top, _, bottom = text.partition("/")
        value = float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        raise GdwsError(f"--eps is {text!r}: expected a number or a fraction such as 8/255") from None
    if not 0 <= value <= 1:
        raise GdwsError(f"--eps is {text}: expected a radius from 0 to 1, in units of the image range")
    return value


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise GdwsError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def _refuse_overlap(networks: Mapping[str, torch.nn.Module], test: data.Dataset) -> None:
    plans = {name: getattr(network, "gdws_plan", None) for name, network in networks.items()}
    seen = {name: set(made.images) for name, made in plans.items() if isinstance(made, Plan) and made.images}
    if not seen:  # images that are files are decoded once more for this
        return
    judged = {digest for images, _ in test for digest in image_hashes(images)}
    for name, images in seen.items():
        if shared := images & judged:
            raise GdwsError(
                f"{name} was calibrated on {len(shared)} of these images: expected an evaluation on images that it has not seen"
            )


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gdws"


def _machine() -> dict[str, Any]:
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def _write_json(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        write_atomically(path, json.dumps(record, indent=1))
