"""The folder in which a command line is run: what its words may name, and what must still be there afterwards."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from chaos import material
from chaos.case import Wrong
from chaos.inputs.code import CODE, HEAD

WORDS = {
    "NET": lambda: material.NET,
    "FAST": lambda: f"{material.ROOT}/fast",
    "FAST.onnx": lambda: f"{material.ROOT}/fast/model.onnx",
    "DATA": lambda: f"npz:{material.ROOT}/stored.npz",
    "TRAINING": lambda: f"{material.ROOT}/training",
    "weights.pt": lambda: f"{material.ROOT}/weights.pt",
}
"""What words in capitals stand for."""


def named(word: str) -> str:
    return WORDS[word]() if word in WORDS else word


def furnish(folder: Path, arguments: Sequence[str] = ()) -> None:
    """What the words may name: things that are no data, no weights, and not to be written over."""
    os.environ |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    (folder / "folder").mkdir()
    (folder / "folder" / "thesis.txt").write_text("years of work")
    (folder / "text").write_text("some text\n")
    (folder / "text.onnx").write_text("some text\n")
    (folder / "empty").write_bytes(b"")
    for name in ("noise.pt", "noise.safetensors"):
        (folder / name).write_bytes(bytes(range(256)) * 4)
    (folder / "dangling").symlink_to("gone")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    for number, name in ((3, "null"), (7, "full")):  # like /dev/null and /dev/full, which must not be put at risk
        if os.geteuid() == 0:
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(1, number))
        else:
            (folder / name).symlink_to(f"/dev/{name}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    for name in ("class0", "class1"):
        (folder / "classes" / name).mkdir(parents=True)
        (folder / "looped" / name).mkdir(parents=True)
        (folder / "looped" / name / "a.png").write_bytes(material.whole("pictures/rgb.png"))
        (folder / "looped" / name / "again").symlink_to("..")
    (folder / "classes" / "class0" / "text.png").write_text("some text\n")
    (folder / "nested" / "cifar-10-batches-py" / "test_batch").mkdir(parents=True)
    (folder / "nested" / "test_32x32.mat").mkdir()
    for name in ("stored.npz", "images.npy"):
        (folder / name).write_bytes(material.whole(name))
    for word in arguments:
        name = word.removesuffix(".py:net")
        if name in CODE:
            text = HEAD + CODE[name][0]
            (folder / f"{name}.py").write_bytes(text.encode("latin1" if name == "latin1" else "utf-8"))


def tree(folder: Path) -> dict[str, bytes | None]:
    """Content of all plain files; None for everything else that is there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else None
    return found


def check_nothing_new(folder: Path, before: dict[str, bytes | None]) -> None:
    """What was refused has written no result, and nothing of the user's is gone."""
    after = tree(folder)
    for name, content in before.items():
        if name not in after or after[name] != content:
            raise Wrong(f"{name} was there before and is {'changed' if name in after else 'gone'}")
    for name in after.keys() - before.keys():
        allowed = name.startswith(("cache", "out", "c/", "deep")) or name in ("c",) or "__pycache__" in name
        if not allowed or name.startswith("out/model"):
            raise Wrong(f"{name} was written though the command was refused")
