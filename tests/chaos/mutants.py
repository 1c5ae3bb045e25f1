"""Files of every kind that gdws reads, spoiled: each is refused in a sentence, or read as what its bytes mean.

Caches are stricter: what a spoiled one gives must be what gdws computes without one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import gdws
from chaos import graphs, material, meaning, mutators
from chaos.case import Case, Family, Wrong, command, same
from chaos.material import whole
from gdws import data, models
from gdws.evaluation.comparison import Comparison

BY_COMMAND = 0.01
"""Share of the mutants that go through the command line."""
CLOSE = 1e-3

Check = Callable[[Case, bytes, str], None]


@dataclass(frozen=True)
class Kind:
    """A kind of file: whole ones, what spoils them beside their bytes, and what reads and checks them."""

    sources: Sequence[str]
    structural: Sequence[mutators.Mutator]
    check: Check


def families() -> list[Family]:
    return [
        Family(f"mutants/{name}", count, functools.partial(_attempt, KINDS[name]), short=15) for name, count in COUNTS.items()
    ]


def _attempt(kind: Kind, case: Case) -> None:
    source = case.random.choice(kind.sources)
    content = spoiled(kind, source, case.random)
    case.key = hashlib.sha256(source.encode() + content).hexdigest()
    kind.check(case, content, source)


def spoiled(kind: Kind, source: str, random: Random) -> bytes:
    content = _content(source)
    if kind.structural and random.random() < 0.6:
        try:
            return random.choice(kind.structural)(content, random)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
            pass  # the change makes no file
    return mutators.bytewise(content, random)


@functools.cache
def _content(source: str) -> bytes:
    if source == "statistics":
        return material.statistics_file(material.ROOT).read_bytes()
    if source == "latency":
        return material.latency_file(material.ROOT).read_bytes()
    return whole(source)


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


def _by_command(case: Case) -> bool:
    return case.random.random() < BY_COMMAND


def _manifest(case: Case, content: bytes, source: str) -> None:
    name = source.partition("/")[0]
    folder = _folder(case, name, gdws_json=content)
    if _by_command(case):
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


def _plan(case: Case, content: bytes, source: str) -> None:
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


def _saved_weights(case: Case, content: bytes, source: str) -> None:
    name = source.partition("/")[0]
    folder = _folder(case, name, model_safetensors=content)
    if _by_command(case):
        command("inspect", folder, "--base", material.NET)
        return
    loaded = gdws.load(folder, material.network())
    meaning.check_tensors(loaded.state_dict(), meaning.safetensors(content), "the folder")
    material.logits(loaded)


def _safetensors(case: Case, content: bytes, source: str) -> None:
    path = case.folder / "weights.safetensors"
    path.write_bytes(content)
    if _by_command(case):
        command("inspect", material.NET, "--weights", path, "--size", 8)
        return
    loaded = models.resolve(material.NET, path)
    meaning.check_tensors(_from_file(loaded), meaning.safetensors(content), "the file")


def _from_file(model: nn.Module) -> dict[str, Tensor]:
    """What a file of weights must hold: counters may come from the model."""
    return {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}


def _torch_file(case: Case, content: bytes, source: str) -> None:
    path = case.folder / "weights.pt"
    path.write_bytes(content)
    if _by_command(case):
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
    import zipfile

    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            return archive.testzip() is not None
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError, RuntimeError):
        return content[:2] == b"PK"


def _onnx(case: Case, content: bytes, source: str) -> None:
    if source == "int8.onnx":
        path = case.folder / "model.onnx"
        path.write_bytes(content)
        run: Callable[[Tensor], Tensor] = gdws.compile(path, "onnxruntime", example=material.images()[:4], threads=1)
        found = run(material.images()[:4])
    else:
        folder = _folder(case, source.partition("/")[0], model_onnx=content)
        path = folder / "model.onnx"
        if _by_command(case):
            command(
                "bench",
                path,
                "--engine",
                case.random.choice(("onnxruntime", "openvino")),
                "--size",
                8,
                "--repeats",
                1,
                "--warmup",
                0,
            )
            return
        if case.random.random() < 0.25:
            engine = "openvino" if case.random.random() < 0.1 else "onnxruntime"
            found = gdws.compile(path, engine, example=material.images()[:4], threads=1)(material.images()[:4])
        else:
            loaded = gdws.load(folder)
            with torch.no_grad():
                found = loaded(material.images()[:4])
    _check_answer(found, content, source)


def _check_answer(found: Any, content: bytes, source: str) -> None:
    """What came out is what ONNX Runtime gives; where that refuses the file, what the whole file gives."""
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 4:
        raise Wrong(
            f"the file gives {tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__}: expected logits"
        )
    wanted = by_onnx_runtime(content)
    if wanted is None:
        wanted = by_onnx_runtime(whole(source))
    if wanted is None or found.shape != wanted.shape:
        raise Wrong(f"the file gives {tuple(found.shape)}: ONNX Runtime {None if wanted is None else tuple(wanted.shape)}")
    scale = max(1.0, float(wanted.nan_to_num().abs().max()))
    if not torch.allclose(found.double(), wanted.double(), atol=CLOSE * scale, rtol=CLOSE, equal_nan=True):
        raise Wrong(f"the file gives {found.flatten()[:4].tolist()}: ONNX Runtime {wanted.flatten()[:4].tolist()}")


def by_onnx_runtime(content: bytes) -> Tensor | None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {session.get_inputs()[0].name: material.images()[:4].numpy()})
        return torch.from_numpy(outputs[0])
    except Exception:  # it refuses in ways of its own
        return None


def _npz(case: Case, content: bytes, source: str) -> None:
    path = case.folder / "images.npz"
    path.write_bytes(content)
    if _by_command(case):
        command("evaluate", material.NET, "--data", f"npz:{path}", "--attack", "none", "--n", 4)
        return
    needed = case.random.random() < 0.8
    found = data.load(f"npz:{path}", "test", labels=needed)
    same(found.images.permute(0, 2, 3, 1).tolist(), _array(content, source, "images"), "images")
    if needed:
        same(found.labels.tolist(), _array(content, source, "labels"), "labels")


def _array(content: bytes, source: str, name: str) -> Any:
    """As a list; of the whole file, where the spoiled one has none that can be read."""
    for each in (content, whole(source)):
        try:
            return meaning.npz(each, name)
        except Exception:  # not as it should be, in any way
            continue
    raise Wrong(f"{name} were read, which are not in the file")


def _mat(case: Case, content: bytes, source: str) -> None:
    from scipy.io import loadmat

    (case.folder / "test_32x32.mat").write_bytes(content)
    if _by_command(case):
        command("compress", material.NET, "--out", "out", "--data", f"svhn:{case.folder}", "--method", "uniform", "--images", 2)
        return
    found = data.load(f"svhn:{case.folder}", "test")
    try:
        arrays = loadmat(BytesIO(content))
    except Exception:  # scipy is stricter: what was read must be what is there, or there before
        if found.images.permute(0, 1, 3, 2).numpy().tobytes() in content:
            return
        arrays = loadmat(BytesIO(whole(source)))
    if "X" not in arrays or "y" not in arrays:
        raise Wrong("an array that scipy does not find was read")
    same(found.images.tolist(), arrays["X"].transpose(3, 2, 0, 1).tolist(), "images")
    same(found.labels.tolist(), [int(label) % 10 for label in arrays["y"].ravel().tolist()], "labels")


def _image(case: Case, content: bytes, source: str) -> None:
    for number in range(2):
        (case.folder / "folder" / f"class{number}").mkdir(parents=True)
    suffix = Path(source).suffix
    path = case.folder / "folder" / "class0" / f"spoiled{suffix}"
    path.write_bytes(content)
    (case.folder / "folder" / "class1" / "whole.png").write_bytes(whole("pictures/rgb.png"))
    if _by_command(case):
        command("evaluate", material.NET, "--data", f"imagefolder:{case.folder / 'folder'}", "--attack", "none")
        return
    found = data.load(f"imagefolder:{case.folder / 'folder'}", "test")
    pixels = found.images
    with Image.open(path) as image:
        wanted = torch.from_numpy(np.asarray(_rgb(image)).copy()).permute(2, 0, 1)
    if content[:8] == b"\x89PNG\r\n\x1a\n" and content[24] == 16:
        raise Wrong("an image of 16 bits a channel was read")
    if pixels.shape[2:] == wanted.shape[1:] and not any(torch.equal(one, wanted) for one in pixels):
        raise Wrong("the image was read as other pixels")


def _rgb(image: Image.Image) -> Image.Image:
    return (image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image).convert("RGB")


def _cifar(case: Case, content: bytes, source: str) -> None:
    (case.folder / "test_batch").write_bytes(content)
    if _by_command(case):
        command("inspect", "demo", "--json", "x.json")  # the folder is read by commands that attack networks of its size
    found = data.load(f"cifar10:{case.folder}", "test")
    if meaning.bits(found.images) not in content and meaning.bits(found.images) not in _unescaped(content):
        raise Wrong("pixels that are not in the file were read")
    if (
        found.images.shape[1:] != (3, 32, 32)
        or found.labels.dtype != torch.int64
        or not bool(((found.labels >= 0) & (found.labels < 10)).all())
    ):
        raise Wrong(f"read were {tuple(found.images.shape)} with labels {found.labels.tolist()}")


def _unescaped(content: bytes) -> bytes:
    """Old protocols keep bytes as UTF-8 or with escapes."""
    text = content.decode("utf-8", "ignore").encode("latin1", "ignore")
    return (
        text
        + re.sub(rb"\\u00([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), content)
        + re.sub(rb"\\u00([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), text)
    )


def _archive(case: Case, content: bytes, source: str) -> None:
    import gzip

    (case.folder / "cifar-10-python.tar.gz").write_bytes(content)
    found = data.load(f"cifar10:{case.folder}", case.random.choice(("train", "test")))
    try:
        inside = gzip.decompress(content)
    except (OSError, EOFError, ValueError, gzip.zlib.error):
        inside = gzip.decompress(whole(source))
    plain = inside + _unescaped(inside)
    for image in found.images:
        if meaning.bits(image) not in plain:
            raise Wrong("pixels that are not in the archive were read")


@functools.cache
def finished() -> tuple[list[Any], dict[str, Tensor]]:
    """What the training came to that was not cut."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for name in ("checkpoint.safetensors", "log.jsonl", "model.safetensors"):
            (path / name).write_bytes(whole(f"training/{name}"))
        trained = gdws.train(material.network(), material.pictures(), material.RECIPE, path, resume=True)
        return trained.history, dict(trained.model.state_dict())


def _checkpoint(case: Case, content: bytes, source: str) -> None:
    for name in ("checkpoint.safetensors", "log.jsonl", "model.safetensors"):
        (case.folder / name).write_bytes(content if source.endswith(name) else whole(f"training/{name}"))
    trained = gdws.train(material.network(), material.pictures(), material.RECIPE, case.folder, resume=True)
    history, tensors = finished()
    if source.endswith("checkpoint.safetensors"):
        record = meaning.metadata(content)
        meaning.check_record(trained.history, record["state"]["history"], history, "the history")
        given = meaning.safetensors(content)
        tensors = {name: given[f"best.{name}"] for name in tensors}
    else:
        same(_stable(trained.history), _stable(history), "the history")
    meaning.check_tensors(trained.model.state_dict(), tensors, "the training")
    lines = (case.folder / "log.jsonl").read_text().splitlines()
    same([json.loads(line)["epoch"] for line in lines], [line["epoch"] for line in trained.history], "the log")


def _stable(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if "second" not in name} for line in history]


@functools.cache
def compared() -> Comparison:
    return material.evaluate()


def _evaluation(case: Case, content: bytes, source: str) -> None:
    path = case.folder / "evaluation.jsonl"
    path.write_bytes(content)
    found, wanted = material.evaluate(path, resume=True), compared()
    given = decisions(content, wanted)
    for row, (trial, right) in enumerate(wanted.right.items()):
        parts = []
        for number, part in enumerate(right.split(6)):
            parts += given[number][row] if number in given else part.tolist()
        same(found.right[trial].tolist(), parts, f"{trial.judge} under {trial.attack}")
    again = material.evaluate(path, resume=True)
    same(
        [right.tolist() for right in again.right.values()],
        [right.tolist() for right in found.right.values()],
        "a second resumption",
    )


def decisions(content: bytes, wanted: Comparison) -> dict[int, list[list[bool]]]:
    """What the whole lines of a log say; other lines are done again."""
    pristine = {json.loads(line)["batch"]: json.loads(line)["data"] for line in whole("evaluation.jsonl").splitlines()[1:]}
    found = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines()[1:]:
        try:
            record = json.loads(line)
            rows, batch = record["right"], record["batch"]
            whole_line = type(batch) is int and pristine.get(batch) == record["data"] and len(rows) == len(wanted.right)
            if (
                whole_line
                and isinstance(rows, list)
                and all(isinstance(row, str) and len(row) == 6 and set(row) <= set("01") for row in rows)
            ):
                found[batch] = [[character == "1" for character in row] for row in rows]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


@functools.cache
def collected() -> tuple[str, str]:
    return _planned(None)


def _planned(cache: Path | None) -> tuple[str, str]:
    """What statistics say, in numbers: a plan, and what its layers become."""
    statistics = gdws.calibrate(material.network(), [material.images()], material.METHOD, cache=cache)
    plan = gdws.plan(material.network(), statistics, gdws.Macs(0.5))
    applied = gdws.apply(material.network(), plan, statistics)
    return plan.to_json(), " ".join(f"{value:.4f}" for value in material.logits(applied).flatten().tolist())


def _statistics(case: Case, content: bytes, source: str) -> None:
    cache = case.folder / "cache"
    cache.mkdir()
    (cache / material.statistics_file(material.ROOT).name).write_bytes(content)
    same(_planned(cache), collected(), "what spoiled statistics came to")


class Measuring(Exception):
    """The times are taken anew, which is right and takes seconds."""


def _latency(case: Case, content: bytes, source: str) -> None:
    from gdws.planning.latency import measure

    def instead(*_: Any) -> None:
        raise Measuring

    cache = case.folder / "cache"
    cache.mkdir()
    (cache / material.latency_file(material.ROOT).name).write_bytes(content)
    before = measure.measure_on_cpu
    measure.measure_on_cpu = instead
    try:
        found = material.latencies(cache)
    except Measuring:
        return
    finally:
        measure.measure_on_cpu = before
    if json.loads(content) != json.loads(_content("latency")):
        raise Wrong(f"spoiled times were used: {str(found)[:200]}")


MANIFESTS = ("fast/gdws.json", "split/gdws.json")
PICTURES = tuple(f"pictures/{name}" for name in ("rgb.png", "palette.png", "gray.png", "alpha.png", "rgb.jpg", "cmyk.jpg", "progressive.jpg", "rgb.webp", "rgb.bmp", "rgb.ppm", "rgb.tif", "packed.tif"))  # fmt: skip
PNGS = PICTURES[:4]


def _png_if_it_is(content: bytes, random: Random) -> bytes:
    return (mutators.png if content.startswith(b"\x89PNG") else mutators.bytewise)(content, random)


KINDS = {
    "manifest": Kind(MANIFESTS, [mutators.json_file], _manifest),
    "plan": Kind([f"plan-{name}.json" for name in ("uniform", "paper", "calibrated", "timed")], [mutators.json_file], _plan),
    "saved": Kind(["fast/model.safetensors", "split/model.safetensors"], [mutators.safetensors], _saved_weights),
    "safetensors": Kind(["weights.safetensors", "half.safetensors"], [mutators.safetensors], _safetensors),
    "torch": Kind(["weights.pt", "nested.pt"], [mutators.zipped], _torch_file),
    "legacy": Kind(["legacy.pt"], [mutators.pickled], _torch_file),
    "onnx": Kind(["fast/model.onnx", "split/model.onnx", "int8.onnx"], [graphs.onnx_file], _onnx),
    "npz": Kind(["stored.npz", "packed.npz", "splits.npz"], [mutators.zipped], _npz),
    "npy": Kind(["images.npy"], [mutators.npy_header], _npz),
    "mat": Kind(["plain.mat", "packed.mat"], [mutators.compressed_mat], _mat),
    "image": Kind(PICTURES, [_png_if_it_is], _image),
    "cifar": Kind(["cifar/cifar-10-batches-py/test_batch"], [mutators.pickle_file], _cifar),
    "archive": Kind(["cifar-10-python.tar.gz"], [mutators.gzipped], _archive),
    "checkpoint": Kind(["training/checkpoint.safetensors"], [mutators.safetensors], _checkpoint),
    "log": Kind(["training/log.jsonl"], [mutators.json_lines], _checkpoint),
    "evaluation": Kind(["evaluation.jsonl"], [mutators.json_lines], _evaluation),
    "statistics": Kind(["statistics"], [mutators.safetensors], _statistics),
    "latency": Kind(["latency"], [mutators.json_file], _latency),
}
COUNTS = {"manifest": 2500, "plan": 2500, "saved": 1200, "safetensors": 1500, "torch": 2200, "legacy": 1000, "onnx": 2500, "npz": 2000, "npy": 300, "mat": 1200, "image": 1500, "cifar": 800, "archive": 500, "checkpoint": 500, "log": 100, "evaluation": 900, "statistics": 300, "latency": 500}  # fmt: skip
"""20,000 and somewhat more in all."""
