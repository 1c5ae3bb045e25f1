"""Whole files of every kind that gdws reads, which the campaign then spoils. They are made once, of tiny networks."""

from __future__ import annotations

import functools
import io
import json
import pickle
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat
from torch import nn

import gdws
from chaos import tiny
from gdws.attacks import PGD
from gdws.calibration.collect import find, replaceable
from gdws.core.inputs import call_model
from gdws.data import Dataset
from gdws.planning.fidelity_records import HELD_OUT, Fidelity
from gdws.planning.latency.measure import measure_latencies
from gdws.planning.latency.table import LatencyTable
from gdws.planning.plan import Measured
from gdws.planning.significance import PairedChange
from gdws.structures import select_structures

ROOT = Path()
"""Where the files are; set before workers are forked."""
NET = f"{Path(tiny.__file__).resolve()}:net"
CLASSES, SIZE = 4, 8
RECIPE = gdws.Recipe(epochs=2, batch=10, rate=0.01, held=5, attack=PGD(steps=1))
ATTACK = PGD(steps=1)
METHOD = gdws.Calibrated(structures=["gdws", "vertical"], attack=None)
TARGET = gdws.Target("onnxruntime", threads=1)


def pictures(count: int = 24, seed: int = 0) -> Dataset:
    """Noise in four colors."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    colors = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]]).view(4, 3, 1, 1)
    noisy = 0.5 * colors[labels] + 0.5 * torch.rand(count, 3, SIZE, SIZE, generator=generator)
    return Dataset("colors", (255 * noisy).to(torch.uint8), labels)


@functools.cache
def network() -> nn.Module:
    return tiny.net()


@functools.cache
def images() -> torch.Tensor:
    return pictures().images.float() / 255


@functools.cache
def whole(name: str) -> bytes:
    """The content of one of the files."""
    return (ROOT / name).read_bytes()


def logits(model: nn.Module) -> torch.Tensor:
    """What a network decides; GdwsError where it cannot run."""
    floats = [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    with torch.no_grad():
        return call_model(model, images()[:4].to(floats[0] if floats else torch.float32))


def make(root: Path) -> None:
    """All of the files, in a folder."""
    root.mkdir(parents=True)
    _folders(root)
    _plans(root)
    _weights(root)
    _arrays(root)
    _images(root)
    gdws.train(tiny.net(), pictures(), RECIPE, root / "training")
    evaluate(root / "evaluation.jsonl")
    gdws.calibrate(tiny.net(), [images()], METHOD, cache=root / "cache")
    (root / "latency").mkdir()
    latencies(root / "latency")


def latencies(cache: Path) -> LatencyTable:
    """What layers take, by the cache where it is whole."""
    sites = replaceable(find(network(), images(), METHOD))
    return measure_latencies(network(), sites, select_structures(METHOD.structures), statistics(), TARGET, cache)


@functools.cache
def statistics() -> gdws.Statistics:
    return gdws.calibrate(network(), [images()], METHOD)


def evaluate(checkpoint: Path | None = None, resume: bool = False) -> gdws.evaluation.comparison.Comparison:
    batches = pictures().take(None, 6)
    networks = {"base": tiny.net(), "other": tiny.other()}
    return gdws.compare(networks, batches, [ATTACK], checkpoint=checkpoint, resume=resume)


def _folders(root: Path) -> None:
    fast = gdws.compress(tiny.net(), [images()], gdws.Macs(0.4), "paper")
    gdws.save(fast, root / "fast", base=NET)
    gdws.save(gdws.compress(tiny.net(), [images()], gdws.Macs(0.6), METHOD), root / "split", base=NET)
    gdws.quantize(root / "fast" / "model.onnx", root / "int8.onnx", images())


def _plans(root: Path) -> None:
    plans = {
        "uniform": gdws.plan(tiny.net(), [images()], gdws.Params(0.5), "uniform"),
        "paper": gdws.plan(tiny.net(), [images()], gdws.Beta(0.05), gdws.Paper(attack=PGD(steps=2))),
        "calibrated": gdws.plan(tiny.net(), [images()], gdws.Macs(0.5), METHOD),
    }
    measured = Measured(
        device="a CPU",
        engine="onnxruntime",
        precision="float32",
        threads=1,
        batch=1,
        dense_engine="openvino",
        dense_seconds=0.01,
        predicted=0.5,
        latency=0.6,
    )
    fidelity = Fidelity(
        source=HELD_OUT, images=100, agreed=98, change=PairedChange(90, 3, 2, 5), attacked=50, attacked_agreed=40
    )
    plans["timed"] = replace(plans["calibrated"], budget=gdws.Speedup(1.5), measured=measured, fidelity=fidelity)
    for name, plan in plans.items():
        (root / f"plan-{name}.json").write_text(plan.to_json())


def _weights(root: Path) -> None:
    state = tiny.net(3).state_dict()
    save_file(state, root / "weights.safetensors")
    save_file({f"module.{name}": value.half() for name, value in state.items()}, root / "half.safetensors")
    torch.save(state, root / "weights.pt")
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"lr": np.float64(0.1)}}, root / "nested.pt")
    torch.save(state, root / "legacy.pt", _use_new_zipfile_serialization=False)


def _arrays(root: Path) -> None:
    data = pictures()
    arrays = {"images": data.images.permute(0, 2, 3, 1).numpy(), "labels": data.labels.numpy()}
    np.savez(root / "stored.npz", **arrays)
    np.savez_compressed(root / "packed.npz", **arrays)
    np.savez(root / "splits.npz", **{f"{split}_{name}": array for split in ("train", "test") for name, array in arrays.items()})
    np.save(root / "images.npy", arrays["images"])
    generator = np.random.default_rng(0)
    digits = {
        "X": generator.integers(0, 256, (32, 32, 3, 6), np.uint8),
        "y": np.array([[1], [2], [10], [4], [5], [9]], np.uint8),
    }
    savemat(root / "plain.mat", digits)
    savemat(root / "packed.mat", digits, do_compression=True)
    batches = root / "cifar" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in [f"data_batch_{part}" for part in range(1, 6)] + ["test_batch"]:
        batch = {
            b"data": generator.integers(0, 256, (4, 3072), np.uint8),
            b"labels": [0, 9, 3, 3],
            b"batch_label": name.encode(),
        }
        (batches / name).write_bytes(pickle.dumps(batch, protocol=2))
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(batches, batches.name)


def _images(root: Path) -> None:
    folder = root / "pictures"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8)
    picture = Image.fromarray(pixels)
    for suffix in ("png", "jpg", "webp", "bmp", "ppm", "tif"):
        picture.save(folder / f"rgb.{suffix}")
    picture.convert("P").save(folder / "palette.png", transparency=3)
    picture.convert("L").save(folder / "gray.png")
    picture.convert("RGBA").save(folder / "alpha.png")
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    picture.save(folder / "progressive.jpg", progressive=True)
    picture.save(folder / "packed.tif", compression="tiff_lzw")


def statistics_file(root: Path) -> Path:
    (file,) = (root / "cache").glob("statistics-*.safetensors")
    return file


def latency_file(root: Path) -> Path:
    (file,) = (root / "latency").glob("latency-*.json")
    return file


def npy(array: np.ndarray) -> bytes:
    """As a .npy file."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def described(plan: gdws.Plan) -> dict[str, object]:
    return json.loads(plan.to_json())


def settings(attack: PGD) -> dict[str, object]:
    return asdict(attack)
