"""Spoiled networks: manifests, plans, weights and ONNX files. Each is refused, or is the network that its bytes describe."""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gdws
from chaos import material, meaning
from chaos.case import Case, Wrong, command
from chaos.material import whole
from chaos.mutants.sources import by_command
from gdws import models
from gdws.core.errors import GdwsError
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.evaluation.deployed import deployed_file

CLOSE = 1e-3


@functools.cache
def expected(folder: str) -> Tensor:
    """What the network of a saved folder decides."""
    return material.logits(gdws.load(material.ROOT / folder, material.network()))


def _folder(case: Case, name: str, **changed: bytes) -> Path:
    """A saved folder of which one file is another."""
    made = case.folder / name
    made.mkdir()
    for file in ("gdws.json", "model.safetensors", "model.onnx"):
        (made / file).write_bytes(changed.get(file.replace(".", "_"), whole(f"{name}/{file}")))
    return made


def manifest(case: Case, content: bytes, source: str) -> None:
    name = source.partition("/")[0]
    folder = _folder(case, name, gdws_json=content)
    if by_command(case):
        command("inspect", folder, "--base", material.NET)
        return
    if case.random.random() < 0.3:
        loaded, tolerance = gdws.load(folder), CLOSE
    else:
        loaded, tolerance = gdws.load(folder, material.network()), 0.0
    record, pristine = json.loads(content), json.loads(whole(source))
    made = gdws.plan_of(loaded)
    found = {**record, "plan": None if made is None else _written(made, record["plan"])}
    meaning.check_record(found, record, pristine, "the manifest")
    _check_logits(loaded, expected(name), tolerance)


def _written(made: gdws.Plan, given: Any) -> Any:
    """The plan as a record; as an earlier format has it, where the file is of one."""
    record = json.loads(made.to_json())
    if isinstance(given, dict) and given.get("format") == "gdws plan 3":
        record["format"] = "gdws plan 3"
    return record


def _check_logits(model: nn.Module, wanted: Tensor, tolerance: float) -> None:
    found = material.logits(model)
    if found.shape != wanted.shape or not bool((found - wanted).abs().max() <= tolerance):
        raise Wrong(f"the network that was read gives other logits: {found.flatten()[:4].tolist()}")


def plan(case: Case, content: bytes, source: str) -> None:
    text = content.decode("utf-8", "surrogateescape")
    made = gdws.Plan.from_json(text)
    record = json.loads(text)
    meaning.check_record(_written(made, record), record, json.loads(whole(source)), "the plan")
    if made.method != "calibrated" and case.random.random() < 0.5:
        applied = gdws.apply(material.network(), made)
        for layer in made.layers:
            if layer.structure != "dense":
                found = applied.get_submodule(layer.name).g
                if bool((found > torch.tensor(layer.ranks)).any()):
                    raise Wrong(f"{layer.name} got g {found.tolist()}: expected at most {layer.ranks}")
    str(made), repr(made.fidelity), made.macs, made.parameters, made.loss


def saved_weights(case: Case, content: bytes, source: str) -> None:
    name = source.partition("/")[0]
    folder = _folder(case, name, model_safetensors=content)
    if by_command(case):
        command("inspect", folder, "--base", material.NET)
        return
    loaded = gdws.load(folder, material.network())
    meaning.check_tensors(loaded.state_dict(), meaning.safetensors(content), "the folder")
    material.logits(loaded)


def safetensors(case: Case, content: bytes, source: str) -> None:
    path = case.folder / "weights.safetensors"
    path.write_bytes(content)
    if by_command(case):
        command("inspect", material.NET, "--weights", path, "--size", 8)
        return
    loaded = models.resolve(material.NET, path)
    meaning.check_tensors(_from_file(loaded), meaning.safetensors(content), "the file")


def _from_file(model: nn.Module) -> dict[str, Tensor]:
    """What a file of weights must hold: counters may come from the model."""
    return {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}


def torch_file(case: Case, content: bytes, source: str) -> None:
    path = case.folder / "weights.pt"
    path.write_bytes(content)
    if by_command(case):
        command("inspect", material.NET, "--weights", path, "--size", 8)
        return
    loaded = models.resolve(material.NET, path)
    found = _from_file(loaded)
    pristine = _from_file(models.resolve(material.NET, material.ROOT / source))
    changed = {name: value for name, value in found.items() if meaning.bits(value) != meaning.bits(pristine[name])}
    if changed and zipped_wrongly(content):
        raise Wrong(f"{', '.join(changed)} came from members whose checksums are wrong")
    meaning.check_contained({name: value for name, value in changed.items() if value.is_contiguous()}, content, "the file")


def zipped_wrongly(content: bytes) -> bool:
    """Whether members of an archive do not have the checksums that it gives."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            return archive.testzip() is not None
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError, RuntimeError):
        return content[:2] == b"PK"


def onnx(case: Case, content: bytes, source: str) -> None:
    if source == "int8.onnx":
        path = case.folder / "model.onnx"
        path.write_bytes(content)
        run: Callable[[Tensor], Tensor] = gdws.compile(path, "onnxruntime", example=material.images()[:4], threads=1)
        found = run(material.images()[:4])
    else:
        folder = _folder(case, source.partition("/")[0], model_onnx=content)
        path = folder / "model.onnx"
        if by_command(case):
            engine = case.random.choice(("onnxruntime", "openvino"))
            command("bench", path, "--engine", engine, "--size", 8, "--repeats", 1, "--warmup", 0)
            return
        if case.random.random() < 0.25:
            engine = "openvino" if case.random.random() < 0.1 else "onnxruntime"
            found = gdws.compile(path, engine, example=material.images()[:4], threads=1)(material.images()[:4])
        else:
            loaded = gdws.load(folder)
            with torch.no_grad():
                found = loaded(material.images()[:4])
    outputs = list(found.values()) if isinstance(found, dict) else [found]
    _check_answer(outputs, content, source)
    if len(outputs) != 1 or outputs[0].ndim != 2 or len(outputs[0]) != 4:
        _check_unjudged(path)


def _check_answer(found: list[Tensor], content: bytes, source: str) -> None:
    """What came out is what ONNX Runtime gives; where that refuses the file, what the whole file gives."""
    wanted = by_onnx_runtime(content) or by_onnx_runtime(whole(source)) or []
    given, expected = ([tuple(value.shape) for value in values] for values in (found, wanted))
    if given != expected:
        raise Wrong(f"the file gives {given}: ONNX Runtime {expected}")
    for own, other in zip(found, wanted, strict=True):
        scale = max(1.0, float(other.double().nan_to_num().abs().max())) if other.numel() else 1.0
        if not torch.allclose(own.double(), other.double(), atol=CLOSE * scale, rtol=CLOSE, equal_nan=True):
            raise Wrong(f"the file gives {own.flatten()[:4].tolist()}: ONNX Runtime {other.flatten()[:4].tolist()}")


def _check_unjudged(path: Path) -> None:
    """What gives no logits has no accuracy, neither as a network nor beside the one that it was made of."""
    images, labels = material.images()[:4], torch.arange(4)
    for judge in (
        lambda: gdws.evaluate(StraightThrough(path), [(images, labels)]),
        lambda: deployed_file(path, "it").run(images),
    ):
        try:
            judged = judge()
        except GdwsError:
            continue
        raise Wrong(f"what gives no logits was judged: {judged}")


def by_onnx_runtime(content: bytes) -> list[Tensor] | None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {session.get_inputs()[0].name: material.images()[:4].numpy()})
        return [torch.from_numpy(output) for output in outputs]
    except Exception:  # it refuses in ways of its own
        return None
