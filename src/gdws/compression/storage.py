"""Compressed networks on disk: a folder with model.safetensors, gdws.json and model.onnx. Nothing in it is ever unpickled.

The weights go into the architecture of the original, of which gdws.json says what was made smaller and what was factorized.
model.onnx is the whole network and needs none (torch.export's own files would be unpickled); a network that cannot be exported
is saved without it, and gdws.json says why. So is a sparse network: its tensors are stored as their non-zeros
(gdws.core.reading.sparse), and model.onnx would be dense.
"""

from __future__ import annotations

import json
import os
import reprlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialize
from torch import Tensor, nn

from gdws.compression.compaction.rebuild import shrink, smaller_layers
from gdws.core.errors import GdwsError, first_line
from gdws.core.execution import evaluating, full_precision, own_copy, placement
from gdws.core.files import NotWritten, new_folder
from gdws.core.inputs import Inputs, call_model, floats_in, place
from gdws.core.reading import sparse
from gdws.core.reading.limits import read_file
from gdws.core.reading.schema import Size, build, parse
from gdws.core.reading.weights import contiguous_copies, load_weights, read_weights
from gdws.core.sites import replace_modules
from gdws.core.unwrap import unwrap
from gdws.deploy.interface import are_logits
from gdws.deploy.onnx.export import write_program
from gdws.deploy.onnx.signature import signature_of
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.deploy.runtimes import OnnxRuntime
from gdws.deploy.tracing import trace_any_batch
from gdws.planning.plan import Plan, attach_plan, example_of, plan_of
from gdws.structures import STRUCTURES

FORMAT, READABLE = "gdws model 3", ("gdws model 1", "gdws model 2", "gdws model 3")
"""What is written, and what is read. The first has no model.onnx, and names of layers may begin with that of a wrapper; the
second knows neither smaller layers nor sparse tensors."""
FILES = ("gdws.json", "model.safetensors", "model.onnx")
"""What the folder of a network consists of."""
WRAPPERS = ("network", "module")
"""Attributes in which Normalized and DataParallel have the network."""


@dataclass(frozen=True)
class _Stored:
    """gdws.json, with _ where it has spaces."""

    format: str
    base: str | None
    layers: dict[str, str]
    plan: dict[str, Any] | None
    exported: bool = False
    not_exported_because: str | None = None
    smaller: dict[str, tuple[Size, Size]] = field(default_factory=dict)
    sparse: dict[str, tuple[Size, ...]] = field(default_factory=dict)


def save(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    force: bool = False,
    base: str | None = None,
    export: bool | None = None,
) -> None:
    """Save a network: its tensors, its factored layers and its plan, in a folder with model.safetensors and gdws.json.

    model   compressed or not.
    folder  it appears when it is complete.
    force   write over a folder that exists, if it is empty or holds nothing but such a network.
    base    name of the architecture, such as "zoo:resnet18", for the command line and gdws.models.resolve.
    export  also write the whole network as model.onnx, where it can be exported, which takes seconds. The folder then needs
            no base. By default it is left out of a network that is stored sparsely, for which it would be dense.

    Where at least half of the bytes are saved by it, the tensors are stored as their non-zeros. They are read again bit by bit,
    but for the sign of zeros.

    Raises GdwsError when the folder exists without force, or cannot be written.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> gdws.save(gdws.compress(model, images, gdws.Macs(0.5), "uniform"), "fast", base="demo", export=False)
    >>> gdws.plan_of(gdws.models.resolve("fast")).macs <= 0.5
    True
    """
    if base is not None and not isinstance(base, str):
        raise GdwsError(f"base is a {type(base).__name__}: expected the name of an architecture, such as 'zoo:resnet18'")
    model = unwrap(model)
    layers = {
        name: structure.name
        for name, module in model.named_modules()
        for structure in STRUCTURES.values()
        if structure.is_layer(module)
    }
    plan = plan_of(model)
    record: dict[str, Any] = {
        "format": FORMAT,
        "base": base,
        "layers": layers,
        "plan": None if plan is None else json.loads(plan.to_json()),
        "smaller": smaller_layers(model),
    }
    tensors, shapes = sparse.pack(contiguous_copies(model.state_dict()))
    record["sparse"] = shapes
    with new_folder(Path(folder), force, FILES) as temporary:
        (temporary / "model.safetensors").write_bytes(serialize(tensors))
        if export is None and shapes:
            reason: str | None = "it is sparse, and the file would be dense"
        elif export is False:
            reason = "it was saved with export=False"
        else:
            reason = _export(model, plan, temporary / "model.onnx")
        record |= {"exported": reason is None, "not exported because": reason}
        (temporary / "gdws.json").write_text(json.dumps(record, indent=1))


def load(folder: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Load a network that gdws.save wrote. Nothing in its folder is executed.

    folder  with model.safetensors and gdws.json.
    model   gives the architecture of the original; its weights do not matter and it is not changed. Without it the network is
            model.onnx, in float32: it runs, can be attacked, exported and compiled, but has no layers that could be tuned or
            replaced.

    Returns the network in eval mode, with its plan. Raises GdwsError when the folder is not whole, or of another architecture.

    >>> import gdws
    >>> model, images = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> gdws.save(gdws.compress(model, images, gdws.Macs(0.5), "uniform"), "saved", export=False)
    >>> gdws.plan_of(gdws.load("saved", model)).macs <= 0.5
    True
    """
    if model is None:
        return _load_exported(Path(folder))
    model = unwrap(model)
    record, tensors = read_saved(folder, model)
    loaded = own_copy(model).eval()
    shrink(loaded, record["smaller"], str(folder))
    for name, structure in record["layers"].items():
        try:
            conv = loaded.get_submodule(name)
        except (AttributeError, RuntimeError):  # the second of what was scripted
            conv = None
        if not isinstance(conv, nn.Conv2d) or not conv.weight.is_floating_point() or structure not in STRUCTURES:
            raise GdwsError(f"{folder} has a {structure} layer {name!r}: expected a convolution of the given model")
        own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        replace_modules(loaded, {conv: STRUCTURES[structure].build_like(conv, own)})
    load_weights(loaded, tensors, str(folder))
    return _with_plan(loaded, record)


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """gdws.json of a saved network, checked: its base, layers, exported, "not exported because", smaller, sparse, and plan, a
    Plan or None."""
    path = Path(folder) / "gdws.json"
    problem = f"{path} is not whole"
    try:
        record = parse(read_file(path), problem)
    except OSError as error:
        raise GdwsError(f"cannot read {path}: {error.strerror}, expected a folder that gdws.save wrote") from None
    if not isinstance(record, dict):
        raise GdwsError(f"{problem}: it is {reprlib.repr(record)}, expected an object that gdws.save wrote")
    if record.get("format") not in READABLE:
        raise GdwsError(f"{path} has format {reprlib.repr(record.get('format'))}: expected {FORMAT!r}")
    stored: _Stored = build(_Stored, {name.replace(" ", "_"): value for name, value in record.items()}, problem)
    plan = None if stored.plan is None else Plan.from_record(stored.plan)
    return {name.replace("_", " "): value for name, value in vars(stored).items()} | {"plan": plan}


def read_saved(folder: str | os.PathLike[str], model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """gdws.json and the tensors, all under the names that the unwrapped original `model` has."""
    record, path = read_record(folder), Path(folder) / "model.safetensors"
    tensors = sparse.unpack(read_weights(path), record["sparse"], path)
    for wrapper in WRAPPERS:
        start = f"{wrapper}."
        if all(name.startswith(start) for name in tensors) and not hasattr(model, wrapper):
            tensors = {name.removeprefix(start): value for name, value in tensors.items()}
            record["layers"] = {name.removeprefix(start): kind for name, kind in record["layers"].items()}
            if record["plan"] is not None:
                layers = (replace(layer, name=layer.name.removeprefix(start)) for layer in record["plan"].layers)
                record["plan"] = replace(record["plan"], layers=tuple(layers))
    return record, tensors


def _load_exported(folder: Path) -> nn.Module:
    record = read_record(folder)
    if not record["exported"]:
        reason = record["not exported because"] or "an earlier version saved it"
        raise GdwsError(
            f"{folder} has no exported network ({reason}): expected the model it was made from, gdws.load(folder, model)"
        )
    return _with_plan(StraightThrough(folder / "model.onnx").eval(), record)


def _with_plan(model: nn.Module, record: dict[str, Any]) -> nn.Module:
    if record["plan"] is not None:
        attach_plan(model, record["plan"])
    return model


def _rows(model: nn.Module) -> int:
    """Samples to export a model with: as many as the file that it came from takes, if that is one number."""
    signature = signature_of(unwrap(model))
    sizes = [port.shape[0] for port in signature.inputs if port.shape] if signature is not None else []
    fixed = [size for size in sizes if isinstance(size, int)]
    return fixed[0] if fixed else 3


def _export(model: nn.Module, plan: Plan | None, path: Path) -> str | None:
    """Write a model as a file that can stand for it; or the reason why there is none."""
    example = None if plan is None else example_of(plan, _rows(model))
    if example is None:
        return "no plan says the size of its images"
    try:
        with evaluating(model), torch.no_grad():
            output = call_model(model, place(example, *placement(model)))
        program = trace_any_batch(model, example, any_size=not are_logits(output, example))
        write_program(program, path, signature_of(unwrap(model)))
        _check_same(model, path, example)
    except NotWritten:
        raise
    except Exception as error:  # a folder without the file is better than none
        path.unlink(missing_ok=True)
        return first_line(error).replace(str(path), path.name)
    return None


def _answers(path: Path, example: Inputs) -> Any:
    """What a file gives: of operators that have no attackable form in ONNX Runtime."""
    try:
        network = StraightThrough(path)
    except GdwsError:
        return OnnxRuntime(path)(example)
    return call_model(network, example)


def _check_same(model: nn.Module, path: Path, example: Inputs) -> None:
    """Refuse a file whose outputs are not the model's."""
    with full_precision(), evaluating(model), torch.no_grad():
        wanted = floats_in(call_model(model, place(example, *placement(model))))
        given = floats_in(_answers(path, place(example, "cpu", torch.float32)))  # as files take them
    tolerance = 1e-3 if placement(model)[1] == torch.float32 else 0.1
    for found, own in zip(given, wanted, strict=True):
        difference, largest = float((found.float() - own.float().cpu()).abs().max()), float(own.abs().max())
        if not difference <= tolerance * max(1.0, largest):
            raise GdwsError(f"the file differs from the model by {difference:.2g} in an output of at most {largest:.2g}")
