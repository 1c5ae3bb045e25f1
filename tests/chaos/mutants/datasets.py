"""Spoiled data sets: arrays, images and archives.

Each is refused, or its pixels and labels are those that an independent reader finds.
"""

from __future__ import annotations

import gzip
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.io import loadmat

from chaos import material, meaning
from chaos.case import Case, Wrong, command, same
from chaos.material import whole
from chaos.mutants.sources import by_command
from gdws import data


def npz(case: Case, content: bytes, source: str) -> None:
    path = case.folder / "images.npz"
    path.write_bytes(content)
    if by_command(case):
        command("evaluate", material.NET, "--data", f"npz:{path}", "--attack", "none", "--n", 4)
        return
    needed = case.random.random() < 0.8
    found = data.load(f"npz:{path}", "test", labels=needed)
    same(meaning.plain(found.images.numpy()), meaning.plain(_kept(_array(content, source, "images"))), "images")
    if needed:
        same(found.labels.tolist(), _array(content, source, "labels").tolist(), "labels")


def _kept(array: np.ndarray) -> np.ndarray:
    """Bytes are images, whose channels come first; all else stays as it is, floats of 32 bits and integers of 64."""
    if array.dtype == np.uint8:
        if array.ndim == 3:
            return array[:, None]
        return array.transpose(0, 3, 1, 2) if array.shape[-1] in (1, 3, 4) else array
    with np.errstate(over="ignore"):
        return array.astype({"f": np.float32, "b": np.bool_}.get(array.dtype.kind, np.int64))


def _array(content: bytes, source: str, name: str) -> np.ndarray:
    """Of the whole file, where the spoiled one has none that can be read."""
    for each in (content, whole(source)):
        try:
            return meaning.npz(each, name)
        except Exception:  # not as it should be, in any way
            continue
    raise Wrong(f"{name} were read, which are not in the file")


def mat(case: Case, content: bytes, source: str) -> None:
    (case.folder / "test_32x32.mat").write_bytes(content)
    if by_command(case):
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


def image(case: Case, content: bytes, source: str) -> None:
    for number in range(2):
        (case.folder / "folder" / f"class{number}").mkdir(parents=True)
    suffix = Path(source).suffix
    path = case.folder / "folder" / "class0" / f"spoiled{suffix}"
    path.write_bytes(content)
    (case.folder / "folder" / "class1" / "whole.png").write_bytes(whole("pictures/rgb.png"))
    if by_command(case):
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


def cifar(case: Case, content: bytes, source: str) -> None:
    (case.folder / "test_batch").write_bytes(content)
    if by_command(case):
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


def archive(case: Case, content: bytes, source: str) -> None:
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
