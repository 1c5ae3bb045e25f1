"""Ways to spoil binary formats from the inside, repacked with the right sizes and checksums: the spoiled part is reached."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

from chaos.mutants.bytewise import INTEGERS, bytewise
from chaos.mutants.jsonwise import VALUES, jsonwise

_BY_WIDTH = {
    1: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"),
    2: ("I16", "F16", "BF16"),
    4: ("I32", "U32", "F32"),
    8: ("F64", "I64", "U64", "C64"),
}
WIDTHS = {name: width for width, names in _BY_WIDTH.items() for name in names} | {"F4": 4, "X": 4}
"""Bytes of a number by the type that safetensors names; the last two are none of its types."""
NPY_TYPES = (
    *("|u1", "|i1", "|b1", "<u2", ">u2", "<i4", ">i8", "<i8", "<u8", "<f2", "<f4", "<f8", "<c16"),
    *("|O", "|S3", "<U2", "<M8[s]", "|V5", "[('a', '<i4')]", "()", "None"),
)
NPY_SHAPES = (
    *("()", "(0,)", "(1,)", "(-1,)", "(24,)", "(24, 8, 8, 3)", "(24, 3, 8, 8)", "(0, 8, 8, 3)", "(24, 0, 0, 3)"),
    *("(1000000000,)", "(100000, 100000, 8, 3)", "(4294967296, 4294967296)", "(9223372036854775808,)"),
    *("(24.0,)", "('24',)", "24", "(True, 8, 8, 3)"),
)


def safetensors(content: bytes, random: Random) -> bytes:
    """The header as JSON, its length right or not, the data behind it."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    what = random.choice(("header", "header", "type", "offsets", "length", "data", "names", "metadata"))
    names = [name for name in header if name != "__metadata__"]
    chosen = header[random.choice(names)]
    if what == "header":
        header = jsonwise(header, random)
    elif what == "type":
        chosen["dtype"] = random.choice(tuple(WIDTHS))
        if random.random() < 0.6:  # so that the size is right again
            width = WIDTHS[chosen["dtype"]]
            start, end = chosen["data_offsets"]
            grown = end - start if not chosen["shape"] else width * _product(chosen["shape"])
            return _repacked(header, data, chosen, grown)
    elif what == "offsets":
        chosen["data_offsets"][random.randrange(2)] = random.choice(
            (*INTEGERS, chosen["data_offsets"][0], chosen["data_offsets"][1] + 4)
        )
    elif what == "names":
        one, two = random.choice(names), random.choice(names)
        header[one], header[two] = header[two], header[one]
    elif what == "metadata":
        header["__metadata__"] = random.choice(({"format": "pt"}, {"gdws": "x"}, {"gdws": "[" * 3000}, {"a": 1}, [], None, "x"))
    elif what == "data":
        value = struct.pack("<f", random.choice((float("nan"), float("inf"), -float("inf"), 1e-45, 3e38, -0.0)))
        place = 4 * random.randrange(max(1, len(data) // 4))
        data = data[:place] + value + data[place + 4 :]
    text = json.dumps(header).encode()
    length = random.choice(INTEGERS) if what == "length" else len(text)
    return (length % 2**64).to_bytes(8, "little") + text + data


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _repacked(header: dict[str, Any], data: bytes, chosen: dict[str, Any], size: int) -> bytes:
    """With the chosen tensor in another size, and all offsets moved accordingly."""
    start, end = chosen["data_offsets"]
    data = data[:start] + (data[start:end] * 8)[:size].ljust(size, b"\0") + data[end:]
    for name, entry in header.items():
        if name != "__metadata__" and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [place + size - (end - start) for place in entry["data_offsets"]]
    chosen["data_offsets"] = [start, start + size]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def zipped(content: bytes, random: Random) -> bytes:
    """A member spoiled, renamed, dropped or doubled in an archive that is whole, checksums and all."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    chosen = random.randrange(len(members))
    info, data = members[chosen]
    what = random.choice(("spoil", "spoil", "spoil", "head", "head", "rename", "drop", "double", "bomb"))
    if what == "spoil":
        data = bytewise(data, random)
    elif what == "head":
        data = (npy_header if info.filename.endswith(".npy") else pickled)(data, random)
    elif what == "rename":
        info.filename = random.choice(
            (info.filename + "x", "../" + info.filename, info.filename.upper(), "", "labels", "images.npy")
        )
    elif what == "bomb" and random.random() < 0.1:
        data = data[:64] + b"\0" * 2**28
        info.compress_type = zipfile.ZIP_DEFLATED
    members[chosen] = (info, data)
    if what == "drop":
        del members[chosen]
    elif what == "double":
        members.append((info, random.choice(members)[1]))
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")
        for info, data in members:
            archive.writestr(zipfile.ZipInfo(info.filename, info.date_time), data, info.compress_type)
    return out.getvalue()


def npy_header(content: bytes, random: Random) -> bytes:
    """The description of an array that says something else, in the same length."""
    size = int.from_bytes(content[8:10], "little")
    text, data = content[10 : 10 + size].decode("latin1"), content[10 + size :]
    what = random.randrange(4)
    if what == 0:
        text = re.sub(
            r"'descr': '[^']*'",
            lambda _: f"'descr': {kind if (kind := random.choice(NPY_TYPES))[0] in '[(N' else repr(kind)}",
            text,
        )
    elif what == 1:
        text = re.sub(r"'shape': \([^)]*\)", lambda _: f"'shape': {random.choice(NPY_SHAPES)}", text)
    elif what == 2:
        text = text.replace("False", random.choice(("True", "1", "None", "__import__('os')", "[" * 300)))
    else:
        text = bytewise(text.encode("latin1"), random).decode("latin1")
    if random.random() < 0.3:
        data = data * random.choice((2, 4, 8))
    head = (
        text.rstrip().encode("latin1").ljust(size - 1)[: size - 1] + b"\n"
        if len(text.rstrip()) < size
        else text.encode("latin1")
    )
    return content[:8] + (len(head) % 65536).to_bytes(2, "little") + head + data


def pickled(content: bytes, random: Random) -> bytes:
    """Opcodes that matter, in the place of others."""
    swaps = (
        (b"FloatStorage", b"HalfStorage"),
        (b"FloatStorage", b"LongStorage"),
        (b"_rebuild_tensor_v2", b"_rebuild_parameter"),
        (b"OrderedDict", b"Counter"),
        (b"cpu", b"meta"),
        (b"cpu", b"cuda"),
        (b"K\x04", b"K\xff"),
        (b"K\x08", b"K\x00"),
        (b"K\x03", b"J\xff\xff\xff\x7f"),
        (b"numpy", b"posix"),
        (b"(", b"."),
        (b"R", b"b"),
        (b"\x89", b"\x88"),
        (b"K\x01", b"J\xff\xff\xff\xff"),
        (b"torch._utils", b"builtins"),
    )
    one, other = random.choice(swaps)
    places = [match.start() for match in re.finditer(re.escape(one), content)]
    if not places:
        return bytewise(content, random)
    place = random.choice(places)
    return content[:place] + other + content[place + len(one) :]


def gzipped(content: bytes, random: Random) -> bytes:
    """The archive inside spoiled, the compression whole."""
    return gzip.compress(bytewise(gzip.decompress(content), random), 1, mtime=0)


def compressed_mat(content: bytes, random: Random) -> bytes:
    """A compressed element of a MATLAB file spoiled inside."""
    elements, position = [], 128
    while position + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, position)
        elements.append((kind, content[position + 8 : position + 8 + size]))
        position += 8 + size
    chosen = random.randrange(len(elements))
    out = content[:128]
    for number, (kind, data) in enumerate(elements):
        if number == chosen and kind == 15:
            inside = zlib.decompress(data)
            inside = inside + b"\0" * 2**28 if random.random() < 0.01 else bytewise(inside, random)
            data = zlib.compress(inside, 1)
        out += struct.pack("<II", kind, len(data)) + data
    return out


def png(content: bytes, random: Random) -> bytes:
    """A chunk changed, dropped, doubled or moved, with the right checksum."""
    chunks, position = [], 8
    while position + 8 <= len(content):
        (size,) = struct.unpack_from(">I", content, position)
        chunks.append((content[position + 4 : position + 8], content[position + 8 : position + 8 + size]))
        position += 12 + size
    chosen = random.choice((0, random.randrange(len(chunks))))
    kind, data = chunks[chosen]
    what = random.choice(("field", "field", "field", "spoil", "drop", "double", "kind", "pixels"))
    if kind == b"IHDR" and what == "field":
        fields = list(struct.unpack(">IIBBBBB", data))
        place = random.randrange(7)
        fields[place] = random.choice(
            (0, 1, 2, 3, 10, 12, 16, 100, 60000, 2**31 - 1) if place < 2 else (0, 1, 2, 3, 4, 6, 8, 16, 255)
        )
        data = struct.pack(">IIBBBBB", *fields)
    elif what == "pixels" and kind == b"IDAT":
        data = zlib.compress(bytewise(zlib.decompress(data), random))
    elif what == "kind":
        kind = random.choice((b"tEXt", b"iCCP", b"tRNS", b"PLTE", b"acTL", b"fcTL", b"eXIf", b"zTXt", b"IDAT"))
    elif what != "drop":
        data = bytewise(data, random)
    chunks[chosen] = (kind, data)
    if what == "drop":
        del chunks[chosen]
    elif what == "double":
        chunks.insert(random.randrange(len(chunks)), (kind, data))
    made = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    return content[:8] + b"".join(made)


def pickle_file(content: bytes, random: Random) -> bytes:
    """What a batch of CIFAR-10 might hold instead."""
    batch = pickle.loads(content)
    what = random.randrange(6)
    if what == 0:
        batch[random.choice(list(batch))] = random.choice(VALUES)(random)
    elif what == 1:
        batch[b"labels"] = [random.choice((0, 9, 10, -1, 2**40, 1.5, "3", None, True)) for _ in range(random.choice((4, 4, 3)))]
    elif what == 2:
        batch[b"data"] = batch[b"data"].astype(random.choice(("i1", "u2", ">u2", "f4", "?", "O")))
    elif what == 3:
        batch[b"data"] = batch[b"data"].reshape(random.choice(((4, 3, 32, 32), (2, 6144), (12288,), (4, 3072, 1))))
    elif what == 4:
        batch = random.choice(
            (list(batch.values()), {name.decode(): value for name, value in batch.items()}, None, {**batch, b"more": batch})
        )
    else:
        del batch[random.choice(list(batch))]
    return pickle.dumps(batch, protocol=random.choice((0, 1, 2, 3, 4, 5)))
