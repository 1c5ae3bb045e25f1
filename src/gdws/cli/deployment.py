"""The commands `export` and `bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from gdws import data
from gdws.attacks import PGD
from gdws.calibration.collect import gather_inputs
from gdws.calibration.sensitivity import attacked
from gdws.cli import tables
from gdws.cli.options import (
    Base,
    Data,
    Device,
    Eps,
    Json,
    Model,
    Precision,
    Seed,
    Size,
    Threads,
    Weights,
    check_json,
    example_for,
    fraction,
    load_network,
    machine,
    names_once,
    usable_device,
    write_json,
)
from gdws.cli.progress_bar import Bar
from gdws.cli.terminal import console, errors
from gdws.core.checks import unpack_batch
from gdws.core.errors import GdwsError
from gdws.core.files import Kind, check_file, scratch_folder, write_atomically
from gdws.core.inputs import Inputs, noise_like, split_with_labels
from gdws.core.progress import shown, track
from gdws.deploy import benchmark, engines
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.onnx.parity import verify
from gdws.deploy.quantize import quantize
from gdws.objectives import AUTO, Classes
from gdws.objectives.fitting import find_objective


def export_command(
    model: Model,
    out: Annotated[Path, typer.Option(help="the file to write")],
    weights: Weights = None,
    base: Base = None,
    data_name: Data = "demo",
    to: Annotated[str, typer.Option(help="format of the file: onnx")] = "onnx",
    precision: Precision = "float32",
    images: Annotated[int, typer.Option(help="training images to calibrate int8 on")] = 300,
    n: Annotated[int, typer.Option("--n", help="test images to check the file on, clean and attacked")] = 200,
    eps: Eps = "8/255",
    force: Annotated[bool, typer.Option(help="overwrite the file, if it is an ONNX file")] = False,
    seed: Seed = 0,
    json_file: Json = None,
) -> None:
    """Write a model as a file that engines run, after checking that it predicts what the model does."""
    precisions = engines.ENGINES["onnxruntime"].precisions
    if to != "onnx" or precision not in precisions:
        raise GdwsError(f"--to is {to!r}, --precision {precision!r}: expected onnx, and {' or '.join(precisions)}")
    if out.exists() and not force:
        raise GdwsError(f"{out} exists: choose another file, or overwrite it with --force")
    check_file(out, Kind.ONNX)
    check_json(json_file)
    network = load_network(model, weights, base=base)
    samples, labels = gather_inputs(data.load(data_name, "test", labels=False).take(n, 50))
    is_classifier = isinstance(find_objective(AUTO, network, samples, labels), Classes)
    sets: dict[str, Inputs] = {"clean": samples}
    radius = fraction(eps) if is_classifier else 0
    with shown(Bar(errors)), scratch_folder() as folder:
        made = folder / "float32.onnx"
        to_onnx(network, made, samples[:1])
        if precision == "int8":
            made, plain = folder / "int8.onnx", made
            quantize(plain, made, gather_inputs(data.load(data_name, "train", labels=False).take(images))[0])
        if radius:
            attack = PGD(eps=radius, step=radius / 4, steps=10)
            random = torch.Generator().manual_seed(seed)
            assert isinstance(samples, torch.Tensor)
            pictures, _ = unpack_batch(samples)
            parts = track(split_with_labels(pictures, labels, 50), str(attack))
            sets[str(attack)] = torch.cat([attacked(network, part, truth, attack, random) for part, truth in parts])
        # int8 differs by design: it is measured, not refused.
        tolerance = None if precision == "int8" else 1e-3
        parities = {name: verify(made, network, part, tolerance=tolerance) for name, part in sets.items()}
        write_atomically(out, made.read_bytes(), Kind.ONNX)
    title = f"{out}, {precision}, {out.stat().st_size / 2**20:.2f} MB, compared with the model"
    console.print(tables.parities(parities, title))
    rows = [{"images": name, **asdict(parity)} for name, parity in parities.items()]
    write_json(json_file, {"model": model, "out": str(out), "precision": precision, "rows": rows, "seed": seed, **machine()})


def bench_command(
    model: Annotated[str, typer.Argument(help="a model as in other commands, or a FILE.onnx")],
    others: Annotated[list[str] | None, typer.Argument(help="models to compare with it")] = None,
    weights: Weights = None,
    base: Base = None,
    engine: Annotated[
        str,
        typer.Option(
            help="eager, compile (torch.compile), torch (packed weights), onnxruntime, openvino, cuda (CUDA graphs), autotuned "
            "(both, minutes), or auto: the fastest for each model"
        ),
    ] = "auto",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="for eager and compile: NHWC memory layout")] = False,
    precision: Precision = "float32",
    size: Size = None,
    batch: Annotated[int, typer.Option(help="images at a time")] = 1,
    warmup: Annotated[int, typer.Option(help="untimed passes")] = 50,
    repeats: Annotated[int, typer.Option(help="timed passes")] = 200,
    paper: Annotated[bool, typer.Option("--paper", help="the paper's protocol: batch 1, 5,000 + 10,000 passes")] = False,
    threads: Threads = None,
    device: Device = "cpu",
    json_file: Json = None,
) -> None:
    """Frames per second of models in their fastest engine, or in one of your choice, interleaved in one process."""
    check_json(json_file)
    names = names_once(model, others)
    if threads is not None:
        torch.set_num_threads(threads)
    if paper:
        batch, (warmup, repeats) = 1, benchmark.PAPER
    if min(batch, 1 if size is None else size, repeats) < 1 or warmup < 0 or batch > 2**24:
        raise GdwsError(
            f"batch {batch}, size {size}, repeats {repeats}: expected at least 1 of each, and a batch of at most 2^24"
        )
    if engine not in (*engines.ENGINES, "auto"):
        raise GdwsError(f"--engine is {engine!r}: expected auto, {', '.join(engines.ENGINES)}")
    networks: dict[str, torch.nn.Module | Path] = {
        name: Path(name)
        if name.endswith(".onnx")
        else load_network(name, weights if index == 0 else None, base=base, named=names).to(usable_device(device))
        for index, name in enumerate(names)
    }
    example = example_for(size, [network for network in networks.values() if isinstance(network, torch.nn.Module)], batch)
    if channels_last:
        if not isinstance(example, torch.Tensor):
            raise GdwsError("--channels-last with a network of several inputs: expected one of images")
        example = example.to(memory_format=torch.channels_last)
    with shown(Bar(errors)):
        runs = {name: _in_engine(network, engine, channels_last, precision, example) for name, network in networks.items()}
        timings = benchmark.bench(runs, example, warmup, repeats)
    ran_in = {name: run.name for name, run in runs.items()}
    title = f"batch {batch}, {torch.get_num_threads()} threads, {device}, median of {repeats}"
    console.print(tables.timings(timings, ran_in, title))
    rows = [{"model": name, "engine": ran_in[name], **asdict(timing), "fps": timing.fps} for name, timing in timings.items()]
    if timings[model].busy:
        console.print(
            "This machine was busy: a fixed kernel took unequal times. Trust ratios and lower quartiles, or run again."
        )
    write_json(json_file, {"rows": rows, "warmup": warmup, "repeats": repeats, "device": device, **machine()})


def _in_engine(
    network: torch.nn.Module | Path, engine: str, channels_last: bool, precision: str, example: Inputs
) -> engines.Compiled:
    if channels_last and (engine == "auto" or engines.ENGINES[engine].has_layout):
        raise GdwsError(f"--channels-last with --engine {engine}, which has layouts of its own: expected eager or compile")
    if channels_last and isinstance(network, torch.nn.Module):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    # The values that int8 is calibrated on do not change its time.
    noise = noise_like(example, 8, torch.Generator().manual_seed(0))
    return engines.compile(network, engine, example=example, precision=precision, calibration=noise)
