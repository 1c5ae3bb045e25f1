"""Ways to spoil a file: bytes as such, and what its format makes of them, repacked so that the spoiled part is reached."""

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
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutator = Callable[[bytes, Random], bytes]
INTEGERS = (0, 1, 2, 7, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def bytewise(content: bytes, random: Random) -> bytes:
    """One to three changes that know nothing of the format."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = random.choice(BYTEWISE)(content, random)
    return content


def _place(content: bytes, random: Random) -> int:
    """Anywhere; the beginning and the end, where headers and tables are, half of the time."""
    last = max(0, len(content) - 1)
    return random.choice(
        (
            random.randint(0, last),
            random.randint(0, last),
            min(last, random.randint(0, 127)),
            max(0, last - random.randint(0, 127)),
        )
    )


def _flip(content: bytes, random: Random) -> bytes:
    out = bytearray(content)
    if out:
        out[_place(content, random)] ^= 1 << random.randrange(8)
    return bytes(out)


def _set(content: bytes, random: Random) -> bytes:
    start, length = _place(content, random), random.choice((1, 1, 2, 4, 8, 64))
    filler = random.choice((b"\0" * length, b"\xff" * length, random.randbytes(length)))
    return content[:start] + filler + content[start + length :]


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: _place(content, random)]


def _extend(content: bytes, random: Random) -> bytes:
    return content + random.randbytes(random.choice((1, 8, 100)))


def _delete(content: bytes, random: Random) -> bytes:
    start = _place(content, random)
    return content[:start] + content[start + random.choice((1, 2, 4, 16, 256)) :]


def _insert(content: bytes, random: Random) -> bytes:
    start = _place(content, random)
    return content[:start] + random.randbytes(random.choice((1, 2, 4, 16))) + content[start:]


def _duplicate(content: bytes, random: Random) -> bytes:
    start, length = _place(content, random), random.choice((1, 8, 64, 512))
    return content[: start + length] + content[start : start + length] * random.choice((1, 1, 3)) + content[start + length :]


def _splice(content: bytes, random: Random) -> bytes:
    """Two of its chunks change places, or one takes another's."""
    length = random.choice((1, 4, 16, 64))
    first, second = sorted((_place(content, random), _place(content, random)))
    if second < first + length:
        return content[:first] + content[second:]
    chunks = content[first : first + length], content[second : second + length]
    taken = random.choice((chunks[0], chunks[1]))
    return content[:first] + chunks[1] + content[first + length : second] + taken + content[second + length :]


def _number(content: bytes, random: Random) -> bytes:
    """An integer field at its extremes, in either byte order."""
    size = random.choice((1, 2, 4, 8))
    start, value = _place(content, random), random.choice(INTEGERS) % 256**size
    return content[:start] + value.to_bytes(size, random.choice(("little", "big"))) + content[start + size :]


def _digits(content: bytes, random: Random) -> bytes:
    """A number that is written in digits, as another."""
    found = list(re.finditer(rb"\d+", content))
    if not found:
        return _number(content, random)
    chosen = random.choice(found)
    value = random.choice(
        (b"0", b"1", b"-1", b"999999999", b"1e9", b"4294967296", b"9" * 30, str(int(chosen[0][:18]) + 1).encode())
    )
    return content[: chosen.start()] + value + content[chosen.end() :]


BYTEWISE: Sequence[Mutator] = (_flip, _flip, _set, _truncate, _extend, _delete, _insert, _duplicate, _splice, _number, _digits)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


VALUES: Sequence[Callable[[Random], Any]] = (
    *(
        lambda _, value=value: value
        for value in (None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, 10**9, 2**31, 2**63, 2**64, 10**40)
    ),
    *(
        lambda _, value=value: value
        for value in (
            float("nan"),
            float("inf"),
            -float("inf"),
            "",
            "x",
            "0",
            "NaN",
            "\x1b[31mred",
            "[bold]b[/]",
            "\u202e\x00",
            "../../etc/passwd",
            "é" * 300,
        )
    ),
    *(
        lambda _, value=value: value
        for value in ([], {}, [[]], [0], [1, 2, 3], {"": 0}, {"kind": "Macs"}, ["gdws"], "dense", "gdws")
    ),
    lambda random: random.randint(-10, 1000),
    lambda random: random.random() * 10 ** random.randint(-300, 300),
    lambda random: [random.randint(0, 9)] * random.choice((1, 8, 9, 1000)),
    lambda _: nested(500),
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every part of a JSON value, but the whole."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, part in parts:
        found.append((*at, key))
        found += paths(part, (*at, key))
    return found


def jsonwise(value: Any, random: Random) -> Any:
    """A JSON value with one to three parts replaced, dropped, renamed, added, doubled or changed with another."""
    value = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = paths(value)
        if not places:
            return random.choice(VALUES)(random)
        if random.random() < 0.02:
            value = random.choice((random.choice(VALUES)(random), [value], {"a": value}))
            continue
        # Parts of a long list are many: a place is drawn by its depth first.
        depth = random.choice(sorted({len(place) for place in places}))
        *outer, key = random.choice([place for place in places if len(place) == depth])
        parent = value
        for step in outer:
            parent = parent[step]
        _change_part(parent, key, places, value, random)
    return value


def _change_part(parent: Any, key: Any, places: list[tuple[Any, ...]], whole: Any, random: Random) -> None:
    what = random.choice(("replace", "replace", "replace", "near", "near", "drop", "rename", "add", "wrap", "swap"))
    old = parent[key]
    if what == "replace":
        parent[key] = random.choice(VALUES)(random)
    elif what == "near":
        parent[key] = _near(old, random)
    elif what == "drop":
        del parent[key]
    elif what == "wrap":
        parent[key] = [old]
    elif what == "swap":
        other: Any = whole
        for step in random.choice(places):
            other = other[step]
        parent[key] = json.loads(json.dumps(other))
    elif isinstance(parent, dict):
        name = random.choice((f"{key}x", key[:-1], "", "format", key.upper(), "\x1b]0;title\x07", "__class__"))
        parent[name] = parent.pop(key) if what == "rename" else random.choice(VALUES)(random)
    else:
        parent.insert(key, old if what == "rename" else random.choice(VALUES)(random))


def _near(value: Any, random: Random) -> Any:
    """Of the same type and another value, or the same value and another type."""
    if isinstance(value, bool) or value is None:
        return random.choice((True, False, None, 0, 1, "true"))
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, -value, value * 2, float(value), value + 0.5, str(value), value * 10**6))
    if isinstance(value, float):
        return random.choice(
            (
                -value,
                value * (1 + 1e-9),
                value * 2,
                int(value) if abs(value) < 1e300 else 0,
                str(value),
                value * 1e300,
                value / 1e300,
            )
        )
    if isinstance(value, str):
        return random.choice(
            (value.upper(), value + "x", value[:-1], value + "\n", f" {value}", [value], value * 1000, "é" + value)
        )
    if isinstance(value, list):
        return random.choice(
            (value[:-1], value + value[:1], value[::-1], value * 3, {str(i): part for i, part in enumerate(value)})
        )
    return random.choice((list(value.items()), list(value), {**value, "more": 1}, dict.fromkeys(value)))


def json_file(content: bytes, random: Random) -> bytes:
    text = json.dumps(jsonwise(json.loads(content), random), indent=random.choice((None, 1)))
    what = random.random()
    if what < 0.03:
        text = text.replace(":", ": " + "[" * random.choice((10, 2000, 100000)), 1)
    elif what < 0.06:  # a key that is there twice
        text = text.replace("{", '{"format": "other", "layers": 1, ', 1)
    elif what < 0.08:
        return text.encode(random.choice(("utf-16", "utf-32", "utf-8-sig")))
    return text.encode()


def json_lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines()
    chosen = random.randrange(len(lines))
    what = random.choice(("json", "json", "json", "json", "drop", "double", "swap", "bytes", "tear", "blank"))
    if what == "json":
        lines[chosen] = json.dumps(jsonwise(json.loads(lines[chosen]), random)).encode()
    elif what == "drop":
        del lines[chosen]
    elif what == "double":
        lines.append(lines[chosen])
    elif what == "swap":
        random.shuffle(lines)
    elif what == "bytes":
        lines[chosen] = bytewise(lines[chosen], random)
    elif what == "blank":
        lines.insert(chosen, random.choice((b"", b" ", b"null", b"[]", b"{}", b"1", b'"x"', b"[" * 5000)))
    end = lines[-1][: random.randrange(len(lines[-1]) + 1)] if what == "tear" else lines[-1] + b"\n"
    return b"\n".join([*lines[:-1], end])


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
        chosen["dtype"] = random.choice(
            (
                "BOOL",
                "U8",
                "I8",
                "F8_E4M3",
                "F8_E5M2",
                "I16",
                "F16",
                "BF16",
                "I32",
                "U32",
                "F32",
                "F64",
                "I64",
                "U64",
                "C64",
                "F4",
                "X",
            )
        )
        if random.random() < 0.6:  # so that the size is right again
            width = {
                "BOOL": 1,
                "U8": 1,
                "I8": 1,
                "F8_E4M3": 1,
                "F8_E5M2": 1,
                "I16": 2,
                "F16": 2,
                "BF16": 2,
                "F64": 8,
                "I64": 8,
                "U64": 8,
                "C64": 8,
            }.get(chosen["dtype"], 4)
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
    kinds = (
        "|u1",
        "|i1",
        "|b1",
        "<u2",
        ">u2",
        "<i4",
        ">i8",
        "<i8",
        "<u8",
        "<f2",
        "<f4",
        "<f8",
        "<c16",
        "|O",
        "|S3",
        "<U2",
        "<M8[s]",
        "|V5",
        "[('a', '<i4')]",
        "()",
        "None",
    )
    shapes = (
        "()",
        "(0,)",
        "(1,)",
        "(-1,)",
        "(24,)",
        "(24, 8, 8, 3)",
        "(24, 3, 8, 8)",
        "(0, 8, 8, 3)",
        "(24, 0, 0, 3)",
        "(1000000000,)",
        "(100000, 100000, 8, 3)",
        "(4294967296, 4294967296)",
        "(9223372036854775808,)",
        "(24.0,)",
        "('24',)",
        "24",
        "(True, 8, 8, 3)",
    )
    what = random.randrange(4)
    if what == 0:
        text = re.sub(
            r"'descr': '[^']*'",
            lambda _: f"'descr': {kind if (kind := random.choice(kinds))[0] in '[(N' else repr(kind)}",
            text,
        )
    elif what == 1:
        text = re.sub(r"'shape': \([^)]*\)", lambda _: f"'shape': {random.choice(shapes)}", text)
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
