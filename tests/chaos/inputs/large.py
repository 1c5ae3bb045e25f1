"""Files of at most 10 MB whose content takes as much memory as gdws allows, or claims more: what commands on them take at most.

Refused or not, a command stays under the memory that the workers allow. The content of a file may take 1 GiB (SECURITY.md);
what is made of it then is what is tried here.
"""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import json
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from chaos import material
from chaos.case import Case, Family, Wrong, command
from chaos.inputs.place import named

MOST = 10 * 10**6
"""Bytes of a file."""
FULL = 2**30 - 2**20
"""Bytes that content may just take."""
CHUNK = bytes(2**20)


def _zeros(count: int) -> Iterator[bytes]:
    for start in range(0, count, len(CHUNK)):
        yield CHUNK[: count - start]


class _BlackImages(io.RawIOBase):
    """So many bytes, which are zero between a head and a tail: a member of an archive that is nowhere as a whole."""

    def __init__(self, head: bytes, length: int, tail: bytes) -> None:
        self._parts = [head, *_zeros(length - len(head) - len(tail)), tail]  # the zeros are one object, over and over

    def read(self, count: int = -1) -> bytes:
        """What comes next, up to so many bytes; `tarfile` asks until it has all."""
        made = b""
        while self._parts and len(made) < count:
            part = self._parts.pop(0)
            taken = count - len(made)
            made += part[:taken]
            if part[taken:]:
                self._parts.insert(0, part[taken:])
        return made


def _npz(name: str, images: tuple[int, ...], labels: int | None = None) -> None:
    """All images black, all labels 0."""
    _arrays(name, images=("|u1", images), **({} if labels is None else {"labels": ("<i8", (labels,))}))


def _arrays(name: str, **arrays: tuple[str, tuple[int, ...]]) -> None:
    """Zeros, of these types and shapes."""
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for part, (kind, shape) in arrays.items():
            with archive.open(f"{part}.npy", "w", force_zip64=True) as member:
                header = {"descr": kind, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                for chunk in _zeros(int(np.prod(shape)) * np.dtype(kind).itemsize):
                    member.write(chunk)


def _far_labels(name: str, label: int) -> None:
    np.savez(name, images=np.zeros((20, 32, 32, 3), np.uint8), labels=np.array([0, label] * 10))


def _mat(name: str, count: int) -> None:
    """SVHN's arrays: so many black digits 1."""

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    def head(name: bytes, shape: Sequence[int], length: int) -> bytes:
        inside = element(6, struct.pack("<II", 9, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
        inside += element(1, name) + struct.pack("<II", 2, length)
        return struct.pack("<II", 14, len(inside) + length + -length % 8) + inside

    out = [b"MATLAB 5.0".ljust(124) + b"\x00\x01IM"]
    for letter, shape, byte in ((b"X", (32, 32, 3, count), 0), (b"y", (count, 1), 1)):
        length = int(np.prod(shape))
        packer = zlib.compressobj(9)
        parts = [packer.compress(head(letter, shape, length))]
        parts += [packer.compress(bytes([byte]) * len(chunk)) for chunk in _zeros(length)]
        parts += [packer.compress(bytes(-length % 8)), packer.flush()]
        out.append(struct.pack("<II", 15, sum(map(len, parts))) + b"".join(parts))
    Path(name).write_bytes(b"".join(out))


def _many_parts(name: str) -> None:
    """A packed matrix of nothing but parts without content."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(struct.pack("<II", 14, FULL - 8)), *map(packer.compress, _zeros(FULL - 8)), packer.flush()]
    head = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, sum(map(len, parts)))
    Path(name).write_bytes(head + b"".join(parts))


def _many_members(name: str) -> None:
    """An archive of nothing but names, all of the same file."""
    with gzip.open(name, "wb", 9) as packed:
        some = tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT) * 2048
        for _ in range(FULL // len(some)):
            packed.write(some)


def _doubled(name: str) -> None:
    """A batch that is a dictionary of one tuple, which holds another twice, which holds another twice, and so on."""
    tuples = (b"h%c\x86q%c" % (number, number + 1) for number in range(60))
    Path(name).write_bytes(b"\x80\x02}K\x01q\x00" + b"".join(tuples) + b"K\x01s.")


def _cifar(name: str, count: int) -> None:
    """CIFAR-10's archive: so many black images in each of its files."""
    few = np.zeros((1, 3072), np.uint8)
    whole = pickle.dumps({b"labels": [0] * count, b"data": few}, protocol=4)
    del few
    head, tail = _split_pickle(whole, count)
    length = len(head) + count * 3072 + len(tail)
    with gzip.open(name, "wb", 9) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        for part in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
            info = tarfile.TarInfo(f"cifar-10-batches-py/{part}")
            info.size = length
            archive.addfile(info, _BlackImages(head, length, tail))


def _split_pickle(whole: bytes, count: int) -> tuple[bytes, bytes]:
    """What comes before and after the pixels of one image, for so many images instead."""
    pixels = b"B" + struct.pack("<I", 3072) + bytes(3072)
    place = whole.index(pixels)
    head = whole[:place] + b"\x8e" + struct.pack("<Q", count * 3072)
    one = b"K\x01M\x00\x0c\x86"  # the shape (1, 3072)
    assert head.count(one) == 1
    # Frames would say how long the whole is; they may be left out.
    head = head.replace(one, b"J" + struct.pack("<i", count) + b"M\x00\x0c\x86")
    assert head[2:3] == b"\x95"
    return head[:2] + head[11:], whole[place + len(pixels) :]


def _picture(name: str, mode: str, size: tuple[int, int], **options: object) -> None:
    """One color."""
    for label in ("a", "b"):
        Path(f"pictures/{label}").mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(f"pictures/a/{name}", **options)
    Image.new("RGB", (300, 300)).save("pictures/b/x.png")


def _tile(name: str, width: int, height: int) -> None:
    """A small picture in a tile of another size."""
    _picture("x.png", "RGB", (8, 8))
    packer = zlib.compressobj(9)
    pixels = b"".join([*map(packer.compress, _zeros(width * height)), packer.flush()])
    values = [(256, 64), (257, 64), (258, 8), (259, 8), (262, 1), (277, 1), (322, width), (323, height), (324, 134)]
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*values, (325, len(pixels))]]
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)
    Path(f"pictures/a/{name}").write_bytes(head + pixels)


def _torch(name: str, shape: tuple[int, ...], copies: int = 1) -> None:
    """Weights of the tiny network, whose head is a view of one number."""
    state = dict(material.network().state_dict())
    for number in range(copies):
        state["8.weight" if number == 0 else f"more{number}"] = torch.zeros(1).expand(shape)
    torch.save(state, name)


def _packed_torch(name: str) -> None:
    """A storage of zeros, packed, which torch would not do itself."""
    state = {**material.network().state_dict(), "8.weight": torch.zeros(1)}
    plain = io.BytesIO()
    torch.save(state, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for info in old.infolist():
            with new.open(info.filename, "w", force_zip64=True) as member:
                member.write(old.read(info))
                if info.filename.endswith("/data/0"):
                    for chunk in _zeros(FULL):
                        member.write(chunk)


def _many_tensors(name: str) -> None:
    """A safetensors file that is nothing but its header."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps({f"layer{number}.weight": entry for number in range(120_000)}).encode()
    Path(name).write_bytes(len(text).to_bytes(8, "little") + text)


def _onnx(name: str, *nodes: onnx.NodeProto, **constants: np.ndarray) -> None:
    tensors = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 8, 8])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", None])
    graph = helper.make_graph(list(nodes), "graph", [images], [logits], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    Path(name).write_bytes(model.SerializeToString())


def _wide_onnx(name: str) -> None:
    """One convolution from three to very many channels, of weights that all differ, and their mean."""
    weight = np.random.default_rng(0).standard_normal((80_000, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "weight"], ["wide"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["wide"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
    ]
    _onnx(name, *nodes, weight=weight)


def _grown_onnx(name: str, count: int) -> None:
    """One number that is expanded to very many, and their greatest."""
    nodes = [
        helper.make_node("Expand", ["one", "shape"], ["grown"]),
        helper.make_node("ReduceMax", ["grown"], ["most"], keepdims=0),
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("Add", ["flat", "most"], ["logits"]),
    ]
    _onnx(name, *nodes, one=np.ones(1, np.float32), shape=np.array([count]))


def _measured_onnx(name: str, count: int) -> None:
    """As many numbers for each image as all images are bright, times so many."""
    nodes = [
        helper.make_node("ReduceSum", ["images"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "one"], ["more"]),
        helper.make_node("Mul", ["more", "count"], ["much"]),
        helper.make_node("Cast", ["much"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Expand", ["one", "whole"], ["grown"]),
        helper.make_node("ReduceMax", ["grown"], ["most"], keepdims=0),
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("Add", ["flat", "most"], ["logits"]),
    ]
    _onnx(name, *nodes, one=np.ones(1, np.float32), count=np.array([count], np.float32))


def _long_onnx(name: str) -> None:
    """Nothing but nodes."""
    names = ["images", *(f"v{number}" for number in range(150_000))]
    nodes = [helper.make_node("Relu", [one], [other]) for one, other in itertools.pairwise(names)]
    _onnx(name, *nodes, helper.make_node("Flatten", names[-1:], ["logits"]))


def _text(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def _manifest(text: Callable[[dict[str, object]], str]) -> None:
    """A saved folder with another manifest."""
    Path("saved").mkdir()
    for file in ("model.safetensors", "model.onnx"):
        (Path("saved") / file).write_bytes(material.whole(f"fast/{file}"))
    _text("saved/gdws.json", text(json.loads(material.whole("fast/gdws.json"))))


def _layers(record: dict[str, object]) -> str:
    """A plan of very many layers."""
    plan = dict(record["plan"])  # type: ignore[call-overload]
    plan["layers"] = plan["layers"] * (9 * MOST // 10 // len(json.dumps(plan["layers"])))
    return json.dumps({**record, "plan": plan})


def _evaluation(name: str) -> None:
    """A log of very many lines."""
    first, *rest = material.whole("evaluation.jsonl").splitlines(keepends=True)
    Path(name).write_bytes(first + b"".join(rest) * ((MOST - len(first)) // len(b"".join(rest))))


EVALUATE = "evaluate NET --attack none --data"
ATTACK = "evaluate NET --steps 1 --n 100 --data"
COMPRESS = "compress NET --out out --structures gdws --images 100 --eps 0 --data"
ROBUST = "compress NET --out out --method paper --images 100 --data"
TRAIN = "train NET --out out --epochs 1 --batch 128 --steps 1 --images 200 --data"
EXPORT = "export NET --out x.onnx --n 100 --data"
BENCH = "bench FILE --size 8 --repeats 1 --warmup 0 --engine"
SIDE = 8000
"""Of a picture of which decoding takes nearly what it may."""

Maker = Callable[[], None]
FILES: dict[str, tuple[Maker, tuple[str, ...]]] = {
    "many images": (
        functools.partial(_npz, "x.npz", (FULL // 3080, 32, 32, 3), FULL // 3080),
        (f"{ATTACK} npz:x.npz", f"{COMPRESS} npz:x.npz", f"{TRAIN} npz:x.npz", f"{EXPORT} npz:x.npz"),
    ),
    "large images": (
        functools.partial(_npz, "x.npz", (FULL // (258 * 258 * 3 + 8), 258, 258, 3), FULL // (258 * 258 * 3 + 8)),
        (f"{ATTACK} npz:x.npz", f"{COMPRESS} npz:x.npz", f"{ROBUST} npz:x.npz", f"{TRAIN} npz:x.npz", f"{EXPORT} npz:x.npz"),
    ),
    "one image": (
        functools.partial(_npz, "x.npz", (1, 1800, 1800, 3), 1),
        (f"{ATTACK} npz:x.npz", f"{COMPRESS} npz:x.npz", f"{ROBUST} npz:x.npz", f"{EXPORT} npz:x.npz"),
    ),
    "specks": (
        functools.partial(_npz, "x.npz", (FULL // 11, 1, 1, 3), FULL // 11),
        (f"{ATTACK} npz:x.npz", f"{COMPRESS} npz:x.npz", f"{TRAIN} npz:x.npz"),
    ),
    "specks without labels": (
        functools.partial(_npz, "x.npz", (FULL // 3, 1, 1, 3)),
        (f"{COMPRESS} npz:x.npz",),
    ),
    "small numbers": (
        functools.partial(_arrays, "x.npz", images=("|i1", (FULL // 3072, 3, 32, 32))),
        (f"{COMPRESS} npz:x.npz",),
    ),
    "half numbers": (
        functools.partial(_arrays, "x.npz", images=("<f2", (FULL // 6144, 3, 32, 32))),
        (f"{COMPRESS} npz:x.npz",),
    ),
    "specks with small labels": (
        functools.partial(_arrays, "x.npz", images=("|u1", (FULL // 4, 1, 1, 3)), labels=("|u1", (FULL // 4,))),
        (f"{EVALUATE} npz:x.npz",),
    ),
    "far labels": (
        functools.partial(_far_labels, "x.npz", 50_000),
        ("train zoo:resnet20 --out out --epochs 1 --batch 8 --steps 1 --data npz:x.npz",),
    ),
    "labels that are too far": (
        functools.partial(_far_labels, "x.npz", 5_000_000),
        ("train zoo:resnet20 --out out --epochs 1 --batch 8 --steps 1 --data npz:x.npz",),
    ),
    "more than may be": (functools.partial(_npz, "x.npz", (2**30, 3, 1, 3), 9), (f"{EVALUATE} npz:x.npz",)),
    "digits": (
        functools.partial(_mat, "test_32x32.mat", FULL // 3074),
        (f"{ATTACK} svhn:.",),
    ),
    "digits to train on": (
        functools.partial(_mat, "train_32x32.mat", FULL // 3074),
        (f"{COMPRESS} svhn:.", f"{TRAIN} svhn:."),
    ),
    "a matrix of many parts": (functools.partial(_many_parts, "test_32x32.mat"), (f"{EVALUATE} svhn:.",)),
    "an archive of names": (functools.partial(_many_members, "cifar-10-python.tar.gz"), (f"{EVALUATE} cifar10:.",)),
    "doubled tuples": (functools.partial(_doubled, "test_batch"), (f"{EVALUATE} cifar10:.",)),
    "a large tile": (functools.partial(_tile, "x.tif", 40_000, 48_000), (f"{EVALUATE} imagefolder:pictures",)),
    "an archive": (
        functools.partial(_cifar, "cifar-10-python.tar.gz", FULL // 6 // 3076),
        (f"{ATTACK} cifar10:.", f"{COMPRESS} cifar10:.", f"{TRAIN} cifar10:."),
    ),
    "an archive of more": (
        functools.partial(_cifar, "cifar-10-python.tar.gz", 2**31 // 6 // 3076),
        (f"{EVALUATE} cifar10:.",),
    ),
    **{
        " ".join(["a picture as", name, mode, *options]): (
            functools.partial(_picture, name, mode, (SIDE, SIDE), **options),
            (f"{EVALUATE} imagefolder:pictures",),
        )
        for name, mode, options in (
            ("x.png", "RGB", {}),
            ("x.png", "P", {"transparency": 0}),
            ("x.png", "1", {}),
            ("x.png", "LA", {}),
            ("x.jpg", "RGB", {"quality": 5}),
            ("x.jpg", "CMYK", {"quality": 5}),
            ("x.jpg", "RGB", {"quality": 5, "progressive": True}),
            ("x.webp", "RGB", {"lossless": True, "method": 0}),
            ("x.tif", "RGB", {"compression": "tiff_adobe_deflate"}),
            ("x.tif", "1", {"compression": "group4"}),
        )
    },
    "a narrow picture": (
        functools.partial(_picture, "x.png", "RGB", (1000, 65_000)),
        (f"{EVALUATE} imagefolder:pictures",),
    ),
    "a view as the head": (functools.partial(_torch, "w.pt", (4, FULL // 16)), ("inspect NET --size 8 --weights w.pt",)),
    "views beside the head": (
        functools.partial(_torch, "w.pt", (4, FULL // 100), 6),
        ("inspect NET --size 8 --weights w.pt", f"{EVALUATE} npz:stored.npz --weights w.pt"),
    ),
    "a view of more": (functools.partial(_torch, "w.pt", (2**16, 2**16)), ("inspect NET --size 8 --weights w.pt",)),
    "a packed storage": (functools.partial(_packed_torch, "w.pt"), ("inspect NET --size 8 --weights w.pt",)),
    "many tensors": (functools.partial(_many_tensors, "w.safetensors"), ("inspect NET --size 8 --weights w.safetensors",)),
    "a wide graph": (
        functools.partial(_wide_onnx, "x.onnx"),
        (f"{BENCH} onnxruntime", f"{BENCH} openvino", "evaluate NET x.onnx --attack none --data npz:hundred.npz"),
    ),
    "a grown number": (functools.partial(_grown_onnx, "x.onnx", FULL // 8), (f"{BENCH} onnxruntime", f"{BENCH} openvino")),
    "a number grown by the images": (
        functools.partial(_measured_onnx, "x.onnx", 2**31),
        (f"{BENCH} onnxruntime", f"{BENCH} openvino", "inspect x.onnx --size 8"),
    ),
    "a number grown to more": (functools.partial(_grown_onnx, "x.onnx", 2**31), (f"{BENCH} onnxruntime",)),
    "a long graph": (functools.partial(_long_onnx, "x.onnx"), (f"{BENCH} onnxruntime",)),
    "a manifest of lists": (
        functools.partial(
            _manifest, lambda record: json.dumps({**record, "plan": 0}).replace("0", "[" + "[]," * 3_000_000 + "1]")
        ),
        ("inspect saved --base NET",),
    ),
    "a manifest of many layers": (functools.partial(_manifest, _layers), ("inspect saved --base NET",)),
    "a log of many lines": (
        functools.partial(_evaluation, "log.jsonl"),
        ("evaluate NET --data DATA --steps 1 --checkpoint log.jsonl --resume",),
    ),
    "a log of one line": (
        functools.partial(_text, "log.jsonl", "[" * MOST),
        ("evaluate NET --data DATA --steps 1 --checkpoint log.jsonl --resume",),
    ),
}
LINES = [(name, line) for name, (_, lines) in FILES.items() for line in lines]


def families() -> list[Family]:
    return [Family("inputs/large", len(LINES), _attempt, seconds=300)]


def _attempt(case: Case) -> None:
    name, line = LINES[case.index % len(LINES)]
    case.key = f"{name}: {line}"
    case.tell(case.key)
    FILES[name][0]()
    largest = max(path.stat().st_size for path in Path().rglob("*") if path.is_file())
    if largest > MOST:
        raise Wrong(f"{name} has {largest:,} bytes: more than the case is about")
    Path("stored.npz").write_bytes(material.whole("stored.npz"))
    _npz("hundred.npz", (100, 8, 8, 3), 100)
    command(*(named(word) for word in line.replace("FILE", "x.onnx").split()))
