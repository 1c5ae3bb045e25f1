"""The command `prune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
from gdws.cli.terminal import console, errors
from gdws.cli.training import (
    Batch,
    Flip,
    Images,
    Precision,
    Radius,
    Resume,
    Steps,
    collapsed,
    warn_of_hidden_gradients,
)
from gdws.compression import storage
from gdws.compression.compaction.compact import compact
from gdws.core.distributed import local_device
from gdws.core.errors import GdwsError
from gdws.core.files import check_writable
from gdws.data import Dataset
from gdws.models.names import base_of, has_random_weights, is_folder
from gdws.planning.cost import network_cost
from gdws.training.pruning import PRUNINGS, Pruned, prune, pruning_for
from gdws.training.pruning.masks import KINDS
from gdws.training.pruning.method import Method
from gdws.training.recipes import LOSSES

PRESETS = tuple(PRUNINGS["hydra"])


def prune_command(
    model: Model,
    data_name: Data,
    out: Annotated[Path, typer.Option(help="folder for the network, the logs and the checkpoints")],
    method_name: Annotated[str, typer.Option("--method", help=", ".join(PRUNINGS))] = "hydra",
    keep: Annotated[
        float | None, typer.Option(help="share of each layer that is kept; default 0.1, for admm 0.5", show_default=False)
    ] = None,
    recipe_name: Annotated[str, typer.Option("--recipe", help=f"recipe of every stage: {', '.join(PRESETS)}")] = "fast",
    kind: Annotated[str | None, typer.Option(help=f"what admm prunes: {', '.join(KINDS)}; default batchnorm")] = None,
    structured: Annotated[
        bool | None, typer.Option("--structured", help="magnitude prunes BatchNorm channels instead of single weights")
    ] = None,
    weights: Weights = None,
    base: Base = None,
    prune_epochs: Annotated[int | None, typer.Option(help="epochs for hydra's scores or for each period of admm")] = None,
    epochs: Annotated[int | None, typer.Option(help="epochs of the final training")] = None,
    batch: Batch = None,
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
    """Prune a network under adversarial training; several processes by torchrun.

    The network is the folder OUT/model; OUT/compact is the same without the channels that are zero.
    """
    check_json(json_file)
    check_writable(out)
    if weights is None and has_random_weights(model):
        raise GdwsError(f"{model} has random weights: expected its own with --weights")
    radius = None if eps is None else fraction(eps)
    given: dict[str, Any] = {"batch": batch, "loss": loss, "eps": radius, "steps": steps, "precision": precision}
    given |= {"flip": flip, "seed": seed, "kind": kind, "structured": structured}
    given |= {"keep": keep, "recipe": recipe_name, "prune_epochs": prune_epochs, "epochs": epochs}
    with processes_with_progress() as processes:
        place = local_device(usable_device(device))
        method = pruning_for(method_name, data_name, place.type, **given)
        split = data.load(data_name, "train").take(images)
        network = load_network(model, weights, base=base, layers=True).to(place)
        pruned = prune(network, split, method, out, resume=resume, processes=processes)
        if processes.first():
            _write(pruned, split, out, base or (base_of(model) if is_folder(model) else model))
            _report(pruned, method, split, out, json_file)


def _write(pruned: Pruned, split: Dataset, out: Path, base: str | None) -> None:
    """The network as it was trained, with its zeros, and without the channels that are zero, where it can do without."""
    networks = {"model": pruned.model}
    if KINDS[pruned.groups].with_bias:
        try:
            networks["compact"] = compact(pruned.model, next(iter(split.take(1)))[0])
        except GdwsError as error:
            errors.say(f"gdws: {out / 'model'} keeps its zeros: {error}", style="yellow")
    for name, network in networks.items():
        again = (out / name / "gdws.json").is_file()  # a pruning that was complete and is asked for once more
        storage.save(network, out / name, force=again, base=base)


def _report(pruned: Pruned, method: Method, split: Dataset, out: Path, json_file: Path | None) -> None:
    last, left, groups = pruned.last, sum(kept for kept, _ in pruned.kept.values()), sum(of for _, of in pruned.kept.values())
    size = network_cost(pruned.model, next(iter(split.take(1)))[0]).size_mb
    least, most = (choose(pruned.sparsity, key=pruned.sparsity.__getitem__) for choose in (min, max))
    console.print(tables.stages(pruned.stages))
    console.print(tables.epochs(pruned.stages["finetune"], "finetune"))
    console.say(
        f"{left:,} of {groups:,} {KINDS[pruned.groups].groups} are kept: sparsity {100 * (1 - left / groups):.2f} %, from "
        f"{100 * pruned.sparsity[least]:.2f} % ({least}) to {100 * pruned.sparsity[most]:.2f} % ({most}) in a layer. "
        f"Weights that are not zero: {size:.2f} MB"
    )
    accuracies = f"natural {last['natural']:.2f} %, robust {last['robust']:.2f} % of the images held back"
    smaller = f", and without channels that are zero to {out / 'compact'}" if (out / "compact" / "gdws.json").is_file() else ""
    console.say(f"Last epoch {last['epoch']}: {accuracies}. Written to {out / 'model'}{smaller}")
    if collapsed(last):
        console.print(
            "Warning: the network gives all images the same class: it was pruned too far, or its training has collapsed. Take "
            "a larger --keep, or --recipe paper, which trains longer."
        )
    warn_of_hidden_gradients(last, method.finetune)
    layers = {name: {"kept": kept, "of": of} for name, (kept, of) in pruned.kept.items()}
    sparsity = {"sparsity": 1 - left / groups, "groups": pruned.groups, "layers": layers, "size_mb": size}
    found = {"method": method.record(), **sparsity, "kept": last, "stages": pruned.stages, "out": str(out / "model")}
    write_json(json_file, found | machine())
