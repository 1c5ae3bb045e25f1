"""The commands `train`, `tune` and `download`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gdws import data
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
    processes_with_progress,
    usable_device,
    write_json,
)
from gdws.cli.progress_bar import Bar
from gdws.cli.terminal import console, errors
from gdws.compression import storage
from gdws.core.distributed import local_device
from gdws.core.errors import GdwsError
from gdws.core.files import check_writable
from gdws.core.progress import shown
from gdws.data.download import OFFICIAL, fetch
from gdws.models.names import base_of, classes_of, has_random_weights, is_folder
from gdws.training import RECIPES, Recipe, Trained, recipe_for, train, tune
from gdws.training.recipes import LOSSES, PRECISIONS

Out = Annotated[Path, typer.Option(help="folder for the weights, the log and the checkpoint")]
Epochs = Annotated[int | None, typer.Option(help="epochs, instead of the recipe's")]
Batch = Annotated[int | None, typer.Option(help="images per step, over all processes, instead of the recipe's")]
Rate = Annotated[float | None, typer.Option(help="highest learning rate, instead of the recipe's")]
Steps = Annotated[int | None, typer.Option(help="steps of the attack, instead of the recipe's")]
Radius = Annotated[str | None, typer.Option("--eps", help="radius of the attack, such as 8/255; 0 trains without")]
Precision = Annotated[str | None, typer.Option(help=f"of the passes: {', '.join(PRECISIONS)}; default bfloat16 on a GPU")]
Flip = Annotated[bool | None, typer.Option(help="mirror images at random; by default as in the recipe; never for svhn")]
Images = Annotated[int | None, typer.Option(help="training images to use; all by default")]
Resume = Annotated[bool, typer.Option("--resume", help="continue the training in --out, if there is one")]


def train_command(
    model: Model,
    data_name: Data,
    out: Out,
    recipe_name: Annotated[
        str | None, typer.Option("--recipe", help=f"{', '.join(RECIPES)}; default fast, or fast-svhn for svhn:DIR")
    ] = None,
    weights: Weights = None,
    epochs: Epochs = None,
    batch: Batch = None,
    rate: Rate = None,
    loss: Annotated[str | None, typer.Option(help=f"loss: {', '.join(LOSSES)}, instead of the recipe's")] = None,
    eps: Radius = None,
    steps: Steps = None,
    precision: Precision = None,
    flip: Flip = None,
    images: Images = None,
    resume: Resume = False,
    device: Device = "cpu",
    seed: Seed = 0,
    json_file: Json = None,
) -> None:
    """Train a network adversarially; several processes by torchrun. The weights that are kept are OUT/model.safetensors."""
    check_json(json_file)
    check_writable(out)
    if is_folder(model):
        raise GdwsError(f"{model} is a compressed network: expected gdws tune, which keeps it so")
    radius = None if eps is None else fraction(eps)
    given: dict[str, Any] = {"epochs": epochs, "batch": batch, "rate": rate, "eps": radius, "steps": steps, "flip": flip}
    given |= {"precision": precision, "seed": seed}
    with processes_with_progress() as processes:
        place = local_device(usable_device(device))
        split = data.load(data_name, "train").take(images)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of the first weights
            network = load_network(model, weights, classes=classes_of(split)).to(place)
        plan = recipe_for(data_name, place.type, recipe_name, **given, loss=loss)
        trained = train(network, split, plan, out, resume=resume, processes=processes)
        if processes.first():
            _report(trained, plan, out / "model.safetensors", json_file)


def tune_command(
    folder: Annotated[Path, typer.Argument(help="a folder that gdws compress wrote")],
    data_name: Data,
    out: Out,
    base: Base = None,
    teacher: Annotated[str | None, typer.Option(help="the original network: tune toward its predictions")] = None,
    teacher_weights: Annotated[Path | None, typer.Option(help="its weights")] = None,
    recipe_name: Annotated[str, typer.Option("--recipe", help=", ".join(RECIPES))] = "tune",
    epochs: Epochs = None,
    batch: Batch = None,
    rate: Rate = None,
    eps: Radius = None,
    steps: Steps = None,
    precision: Precision = None,
    flip: Flip = None,
    images: Images = None,
    resume: Resume = False,
    device: Device = "cpu",
    seed: Seed = 0,
    json_file: Json = None,
) -> None:
    """Tune a compressed network adversarially, in its factored form. The network is the folder OUT/model."""
    check_json(json_file)
    check_writable(out)
    if teacher is None and teacher_weights is not None:
        raise GdwsError(f"--teacher-weights {teacher_weights} without --teacher: expected the network that they belong to")
    if teacher is not None and teacher_weights is None and has_random_weights(teacher):
        raise GdwsError(f"--teacher {teacher} has random weights: expected its own with --teacher-weights")
    radius = None if eps is None else fraction(eps)
    given: dict[str, Any] = {"epochs": epochs, "batch": batch, "rate": rate, "eps": radius, "steps": steps, "flip": flip}
    given |= {"precision": precision, "seed": seed}
    with processes_with_progress() as processes:
        place = local_device(usable_device(device))
        network = load_network(str(folder), base=base, named=[teacher or ""], layers=True).to(place)
        original = None if teacher is None else load_network(teacher, teacher_weights).to(place)
        plan = recipe_for(data_name, place.type, recipe_name, **given)
        split = data.load(data_name, "train").take(images)
        trained = tune(network, split, plan, out, teacher=original, resume=resume, processes=processes)
        if processes.first():
            again = (out / "model" / "gdws.json").is_file()  # a tuning that was complete and is asked for once more
            storage.save(trained.model, out / "model", force=again, base=base_of(str(folder)) if base is None else base)
            _report(trained, plan, out / "model", json_file)


def download(
    name: Annotated[str, typer.Argument(help=" or ".join(OFFICIAL))],
    folder: Annotated[Path, typer.Argument(help="folder for its files")],
) -> None:
    """Fetch a data set from its official address, check it, and resume what was interrupted."""
    with shown(Bar(errors)):
        fetch(name, folder)
    console.say(f"ready to use: --data {name}:{folder}")


def _report(trained: Trained, plan: Recipe, where: Path, json_file: Path | None) -> None:
    best, before = trained.best, trained.history[0]
    console.print(tables.epochs(trained.history))
    which = "Best epoch" if plan.keep == "best" else "Last epoch"
    which = (
        f"{which} {best['epoch']}" if best["epoch"] else "Every epoch was worse than the network had been before, which is kept"
    )
    accuracies = f"natural {best['natural']:.2f} %, robust {best['robust']:.2f} % of the images held back"
    console.say(f"{which}: {accuracies}. Written to {where}")
    if trained.harmed and best["epoch"]:
        earlier = f"{before['natural']:.2f} % and {before['robust']:.2f} %"
        console.print(
            f"Warning: before, it was {earlier}. Either this did harm, or the original was trained on the images held back and "
            "remembers them: compare both networks on others (gdws evaluate)."
        )
    if collapsed(best):
        console.print(
            "Warning: the network gives all images the same class: its training has collapsed. Take a lower --rate or, for a "
            "new network, a radius that grows (--recipe fast-svhn)."
        )
    warn_of_hidden_gradients(best, plan)
    write_json(json_file, {"recipe": plan.record(), "kept": best, "epochs": trained.history, "out": str(where), **machine()})


def collapsed(line: dict[str, Any]) -> bool:
    """Whether the network of an epoch gives all images the same class, which are not all of one."""
    return bool(line["classes"] == 1 and line["natural"] < 100)


def warn_of_hidden_gradients(line: dict[str, Any], plan: Recipe) -> None:
    if line.get("rounding", 1.0) < 0.01 and line["robust_rounded"] > line["robust"]:
        console.print(
            f"Warning: attacks made with {plan.precision} passes leave {line['robust_rounded']:.2f} % right, float32's "
            f"{line['robust']:.2f} %: the training may hide its gradients from itself. Train with --precision float32."
        )
