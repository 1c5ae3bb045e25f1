"""Files that somebody made to harm, or that went wrong on their way: a sentence, and no more memory than the limit."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import tempfile
import tracemalloc
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from gdws import data
from gdws.core.errors import GdwsError

RANDOM = np.random.default_rng(0)
SMALL = str(2**20)
"""A limit that a test can go beyond in no time."""


def image(path, size=(32, 32)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(path)


def png(width, height, bits=8, color=2, content=b""):
    """A PNG file of any header. color: 2 is RGB, 4 gray with alpha, 6 RGB with alpha."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)),
        (b"IDAT", zlib.compress(content)),
        (b"IEND", b""),
    ]
    parts = [struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# Images


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((1, 60_000), r"with 256 pixels on its shorter side, would take 62,914,560,000 bytes of memory"),
        ((60_000, 1), r"with 256 pixels on its shorter side, would take 62,914,560,000 bytes of memory"),
        ((9_000, 9_000), r"would take 1,296,000,000 bytes of memory: expected at most 1,073,741,824"),
        ((60_000, 60_000), r"cannot be decoded \(Image size"),
    ],
)
def test_images_larger_than_memory_are_refused_by_their_header(tmp_path, size, words):
    """Bug: a file of 196 bytes took 5 GB."""
    (tmp_path / "a").mkdir()
    lines = b"".join(b"\0" + bytes(3 * size[0]) for _ in range(size[1])) if 1 in size else b""
    (tmp_path / "a" / "x.png").write_bytes(png(*size, content=lines))
    with pytest.raises(GdwsError, match=rf"x.png,? {words}"):
        list(data.load(f"imagefolder:{tmp_path}", "test"))


def test_a_user_may_raise_the_limit(tmp_path, monkeypatch):
    image(tmp_path / "a" / "x.png", (400, 300))
    monkeypatch.setenv("GDWS_MAX_BYTES", "1000")
    with pytest.raises(GdwsError, match=r"x.png would take 1,920,000 bytes .*GDWS_MAX_BYTES"):
        data.load(f"imagefolder:{tmp_path}", "test")
    monkeypatch.setenv("GDWS_MAX_BYTES", "2000000")
    assert data.load(f"imagefolder:{tmp_path}", "test").images.shape == (1, 3, 224, 224)


def deep_png(color, channels):
    return png(8, 8, 16, color, b"".join(b"\0" + RANDOM.bytes(8 * channels * 2) for _ in range(8)))


def deep_tiff():
    """Three channels of 16 bits in one strip; Pillow itself cannot write such a file."""
    tags = [(256, 3, 8), (257, 3, 8), (259, 3, 1), (262, 3, 2), (277, 3, 3), (278, 3, 8), (279, 4, 384)]
    offset = 8 + 2 + 12 * 9 + 4
    entries = [struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags]
    entries += [struct.pack("<HHII", 258, 3, 3, offset), struct.pack("<HHII", 273, 4, 1, offset + 6)]
    entries.sort()
    header = b"II*\0" + struct.pack("<IH", 8, len(entries))
    return header + b"".join(entries) + bytes(4) + struct.pack("<3H", 16, 16, 16) + RANDOM.bytes(384)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.png", deep_png(2, 3)),
        ("x.png", deep_png(4, 2)),
        ("x.png", deep_png(6, 4)),
        ("x.tif", deep_tiff()),
        ("x.ppm", b"P6 8 8 65535 " + RANDOM.bytes(384)),
        ("x.ppm", b"P3 1 1 1000 1 2 3 "),
        ("x.pgm", b"P5 8 8 65535 " + RANDOM.bytes(128)),
    ],
)
def test_images_of_16_bits_are_refused(tmp_path, name, content):
    """Bug: Pillow makes 8 bits of those with colors, and does not say so."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_bytes(content)
    with Image.open(tmp_path / "a" / name) as opened:
        assert opened.size in ((8, 8), (1, 1))
    with pytest.raises(GdwsError, match=rf"{name} cannot be decoded \(its pixels have mode .*8 bits a channel"):
        list(data.load(f"imagefolder:{tmp_path}", "test"))


def test_a_tile_larger_than_its_image_is_refused_by_its_header(tmp_path):
    """Bug: an image of 64 x 64 pixels in a packed tile took 2 GB, and several of them so much each."""
    width, height = 16_384, 8_192
    pixels = zlib.compress(bytes(width * height), 1)
    values = [(256, 64), (257, 64), (258, 8), (259, 8), (262, 1), (277, 1), (322, width), (323, height), (324, 8 + 2 + 120 + 4)]
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*values, (325, len(pixels))]]
    content = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4) + pixels
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.tif").write_bytes(content)
    with Image.open(tmp_path / "a" / "x.tif") as opened:
        assert opened.size == (64, 64)
        assert opened.getpixel((0, 0)) == 0
    with pytest.raises(GdwsError, match=r"x.tif would take 2,147,483,648 bytes of memory: expected at most 1,073,741,824"):
        list(data.load(f"imagefolder:{tmp_path}", "test"))


@pytest.mark.parametrize("content", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", b"GIF89a", b"", b"\0" * 1000])
def test_other_formats_are_refused_whatever_they_are_called(tmp_path, content):
    """Pillow reads PostScript by running Ghostscript."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(content)
    with pytest.raises(GdwsError, match=r"x.png cannot be decoded"):
        list(data.load(f"imagefolder:{tmp_path}", "test"))


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "ppm", "tif", "webp"])
def test_damaged_images_are_told_in_a_sentence(tmp_path, suffix):
    file = tmp_path / "a" / f"x.{suffix}"
    image(file)
    whole = file.read_bytes()
    for _ in range(60):
        mutant = bytearray(whole[: RANDOM.integers(1, len(whole) + 1)])
        for place in RANDOM.integers(0, len(mutant), 4):
            mutant[place] = RANDOM.integers(256)
        file.write_bytes(mutant)
        with suppress(GdwsError):
            list(data.load(f"imagefolder:{tmp_path}", "test"))


# Folders


def test_links_in_a_circle_count_nothing_twice(tmp_path):
    """Bug: a link to its own folder made one image count 41 times, and two of them made it hang."""
    root = tmp_path / "data"
    for name in ("cat/1", "cat/deep/2", "dog/3"):
        image(root / f"{name}.png")
    for name, target in (("cat/self", "."), ("cat/deep/up", ".."), ("cat/deep/top", "../.."), ("all", ".")):
        (root / name).symlink_to(target, target_is_directory=True)
    (root / "cat" / "again.png").symlink_to("1.png")
    found = data.load(f"imagefolder:{root}", "test")
    assert sorted(found.labels.tolist()) == [0, 0, 1]
    image(tmp_path / "elsewhere" / "4.png")
    (root / "dog" / "more").symlink_to(tmp_path / "elsewhere")
    (root / "emu").symlink_to(tmp_path / "elsewhere")
    assert sorted(data.load(f"imagefolder:{root}", "test").labels.tolist()) == [0, 0, 1, 1, 2]  # links as such are fine


def test_a_link_to_itself_and_a_pipe_are_told(tmp_path):
    image(tmp_path / "a" / "1.png")
    os.mkfifo(tmp_path / "a" / "x.png")
    with pytest.raises(GdwsError, match=r"x.png is no ordinary file"):
        list(data.load(f"imagefolder:{tmp_path}", "test"))
    (tmp_path / "b").symlink_to("b")
    with pytest.raises(GdwsError, match=r"cannot read .*/b: Too many levels of symbolic links"):
        data.load(f"imagefolder:{tmp_path}", "test")


def test_a_folder_that_may_not_be_read_is_not_passed_over():
    """Bug: its class lost all its images without a word. Root may read everything, so the test is somebody else."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        image(place / "a" / "1.png")
        image(place / "b" / "inner" / "2.png")
        (place / "b" / "inner").chmod(0)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            with pytest.raises(GdwsError, match=r"cannot read .*inner: Permission denied, expected demo, cifar10:DIR"):
                data.load(f"imagefolder:{place}", "test")
        finally:
            os.seteuid(user)
            (place / "b" / "inner").chmod(0o755)


@pytest.mark.parametrize("name", ["cifar10:", "svhn:", "imagefolder:", "npz:"])
def test_names_that_no_file_can_have_are_told(name):
    for path in ("a" * 5000, "a\0b"):
        with pytest.raises(GdwsError):
            data.load(name + path, "test")


# .npz


def npz(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


IMAGES = RANDOM.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)


def test_arrays_in_any_order_of_bytes_are_read(tmp_path):
    path = npz(tmp_path / "x.npz", images=np.asfortranarray(IMAGES), labels=np.array([1, 2, 0], ">i8"))
    found = data.load(f"npz:{path}", "test")
    assert np.array_equal(found.images.permute(0, 2, 3, 1).numpy(), IMAGES)
    assert found.labels.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": np.zeros((3, 0, 0, 3), np.uint8), "labels": [0, 1, 2]}, r"shape \(3, 0, 0, 3\)"),
        ({"images": IMAGES, "labels": np.array([0, 1, 2**64 - 1], np.uint64)}, "expected 3 integers from 0"),
        ({"images": IMAGES, "labels": np.array([0, 1, 2**40])}, "expected 3 integers from 0"),
        ({"images": IMAGES, "labels": np.array([0, 1, 2], "m8[s]")}, "expected 3 integers from 0"),
        ({"images": IMAGES, "labels": np.array([0, -1, 2])}, "expected 3 integers from 0"),
        ({"images": IMAGES, "labels": np.array(["a", None, 2], object)}, "holds objects"),
        ({"images": IMAGES.astype(object), "labels": [0, 1, 2]}, "holds objects"),
        ({"images": IMAGES}, "labels"),
        (
            {"images": np.zeros((1, 2000, 2000, 3), np.uint8), "labels": [0]},
            "1 images of .* at a time would take 1,280",
        ),
        (
            {"images": np.zeros((60, 300, 300, 3), np.uint8), "labels": [0]},
            "50 images of .* at a time would take 1,440",
        ),
    ],
)
def test_other_arrays_are_refused(tmp_path, arrays, words):
    with pytest.raises(GdwsError, match=words):
        data.load(f"npz:{npz(tmp_path / 'x.npz', **arrays)}", "test")


def test_packed_arrays_are_refused_by_what_they_unpack_to(tmp_path, monkeypatch):
    path = npz(tmp_path / "x.npz", images=np.zeros((2000, 32, 32, 3), np.uint8), labels=np.zeros(2000, int))
    assert path.stat().st_size < 20_000
    monkeypatch.setenv("GDWS_MAX_BYTES", SMALL)
    with pytest.raises(GdwsError, match=r"x.npz would take 6,160,\d\d\d bytes of memory: expected at most 1,048,576"):
        data.load(f"npz:{path}", "test")


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.zeros((200_000, 1), np.int8)},
        {"images": np.zeros((400_000, 1), np.float16)},
        {"x": np.zeros((200_000, 1, 1), np.uint8)},
        {"images": np.zeros((200_000, 1, 1, 1), np.uint8), "labels": np.zeros(200_000, np.int8)},
    ],
)
def test_packed_arrays_are_refused_by_what_they_become(tmp_path, monkeypatch, arrays):
    """Bug: 1 MB of packed bytes became 8 GB of whole numbers."""
    monkeypatch.setenv("GDWS_MAX_BYTES", SMALL)
    with pytest.raises(GdwsError, match=r"x.npz would take 1,[68]\d\d,\d\d\d bytes of memory: expected at most 1,048,576"):
        data.load(f"npz:{npz(tmp_path / 'x.npz', **arrays)}", "test", labels="labels" in arrays)


def header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    "kind", ["npy", "corrupt deflate", "shape", "no array", "nested", "method", "pickle", "empty", "text", "pipe"]
)
def test_archives_of_other_things_are_told(tmp_path, kind):
    path = npz(tmp_path / "x.npz", images=IMAGES, labels=[0, 1, 2])
    whole = path.read_bytes()
    if kind == "corrupt deflate":
        path.write_bytes(whole[:60] + b"\xff" * 40 + whole[100:])
    elif kind in ("shape", "no array", "nested"):
        with zipfile.ZipFile(path, "w") as archive:
            nested = b"\x93NUMPY\1\0\0\xff" + b"(" * 999
            images = {"shape": header((10**6, 1000, 1000, 3)), "no array": b"hello", "nested": nested}
            archive.writestr("images.npy", images[kind])
            archive.writestr("labels.npy", header((1,)) + b"\0")
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        single = io.BytesIO()
        np.save(single, IMAGES)
        method = whole.index(b"PK\1\2") + 10
        unknown = whole[:method] + b"\x63" + whole[method + 1 :]
        contents = {"npy": single.getvalue(), "pickle": pickle.dumps([1]), "method": unknown, "empty": b"", "text": b"hello"}
        path.write_bytes(contents[kind])
    with pytest.raises(GdwsError, match=r"is not an .npz file with arrays|there is no file"):
        data.load(f"npz:{path}", "test")


# CIFAR-10 and SVHN


def archive_of(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, size in members.items():
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(bytes(size)))


@pytest.mark.parametrize("name", ["cifar-10-batches-py/test_batch", "other", "x" * 90 + "/" + "y" * 120])
def test_a_packed_archive_is_refused_by_what_it_unpacks_to(tmp_path, monkeypatch, name):
    monkeypatch.setenv("GDWS_MAX_BYTES", SMALL)
    archive_of(tmp_path / "cifar-10-python.tar.gz", {name: 2**23})
    with pytest.raises(GdwsError, match=r"tar.gz would take [\d,]+ bytes of memory: expected at most 1,048,576"):
        data.load(f"cifar10:{tmp_path}", "test")


def test_a_long_name_in_an_archive_is_bounded_too(tmp_path, monkeypatch):
    """tarfile reads a name of any length into memory."""
    monkeypatch.setenv("GDWS_MAX_BYTES", SMALL)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**23
    content = info.tobuf(tarfile.GNU_FORMAT) + bytes(2**23 + 10240)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(gzip.compress(content))
    with pytest.raises(GdwsError, match=r"tar.gz would take"):
        data.load(f"cifar10:{tmp_path}", "test")


def test_an_archive_of_many_files_is_not_kept_as_a_list(tmp_path):
    """Bug: 10 MB of empty files took nearly a gigabyte for a list of them."""
    with gzip.open(tmp_path / "cifar-10-python.tar.gz", "wb") as file:
        file.write(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT) * 20_000)
    tracemalloc.start()
    try:
        with pytest.raises(GdwsError, match="has no cifar-10-batches-py/test_batch"):
            data.load(f"cifar10:{tmp_path}", "test")
        assert tracemalloc.get_traced_memory()[1] < 3 * 10**6
    finally:
        tracemalloc.stop()


def test_an_archive_is_read_to_its_checksum(tmp_path):
    """Bug: what came before the last file that was asked for could be damaged."""
    batch = pickle.dumps({b"data": RANDOM.integers(0, 256, (50, 3072), np.uint8), b"labels": [1] * 50}, 2)
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=0) as archive:
        info = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        info.size = len(batch)
        archive.addfile(info, io.BytesIO(batch))
    data.load(f"cifar10:{tmp_path}", "test")
    content = bytearray(path.read_bytes())
    content[50_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(GdwsError, match=r"tar.gz cannot be read \(CRC check failed"):
        data.load(f"cifar10:{tmp_path}", "test")


class Array:
    """A pickle of an array with a shape, without the bytes for it."""

    def __init__(self, *made):
        self.made = made

    def __reduce__(self):
        return self.made


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": Array(np.ndarray, ((10**9,), "u1"))},
        {b"data": Array(np.ndarray, ((10**6, 3072), "u1")), b"labels": Array(np.ndarray, ((10**6,), "u1"))},
        {b"data": Array(np.ndarray, ((10**6, 3072), "u1", b"x", 0, (0, 0))), b"labels": [0] * 10**6},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [[0], [1]]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10**30]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": ["a", "b"]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": 2},
        {(((((b"data",),),),),): 1},
        {},
        3,
    ],
)
def test_batches_that_claim_more_than_they_hold_are_refused(tmp_path, batch):
    content = pickle.dumps(batch, 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(GdwsError, match=r"test_batch is not a batch"):
        data.load(f"cifar10:{tmp_path}", "test")


def test_a_packed_matrix_is_refused_by_what_it_unpacks_to(tmp_path, monkeypatch):
    content = {"X": np.zeros((32, 32, 3, 3000), np.uint8), "y": np.ones((3000, 1), np.uint8)}
    savemat(tmp_path / "test_32x32.mat", content, do_compression=True)
    assert len(data.load(f"svhn:{tmp_path}", "test")) == 3000
    monkeypatch.setenv("GDWS_MAX_BYTES", SMALL)
    with pytest.raises(GdwsError, match=r"an array of .*test_32x32.mat would take 1,048,577 bytes"):
        data.load(f"svhn:{tmp_path}", "test")


def test_a_matrix_of_many_parts_is_read_to_the_last_that_counts(tmp_path):
    """Bug: a file of 1 MB took 30 GB for a list of 130 million parts without content."""
    length = 2**22
    packed = zlib.compress(struct.pack("<II", 14, length) + bytes(length))
    content = b"MATLAB 5.0".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(packed)) + packed
    (tmp_path / "test_32x32.mat").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(GdwsError, match="is not a MATLAB 5 file with arrays X and y"):
            data.load(f"svhn:{tmp_path}", "test")
        assert tracemalloc.get_traced_memory()[1] < 8 * length
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("labels", [np.array([[1.5], [2]]), np.array([[np.nan], [2]]), np.array([[-1], [2]])])
def test_labels_that_are_no_digits_are_refused(tmp_path, labels):
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": labels})
    with pytest.raises(GdwsError, match="2 labels: expected"):
        data.load(f"svhn:{tmp_path}", "test")


def frozen_sets(first):
    """Each holds the one before, alone and in a tuple, under numbers from the first."""
    later = (b"(h%ch%c\x85\x91\x94" % (number, number) for number in range(first, first + 60))
    return b"(\x91\x94" + b"".join(later)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"\x80\x02\x96" + (2**40).to_bytes(8, "little") + b".",
        b"\x80\x02}" + b")" + b"\x85" * 5_000_000 + b"K\x01s.",
        b"\x80\x02" + b"]" * 6_000_000 + b".",
        b"\x80\x02}K\x01q\x00" + b"".join(b"h%c\x86q%c" % (n, n + 1) for n in range(60)) + b"K\x01s.",
        b"\x80\x04" + frozen_sets(0) + frozen_sets(61) + b"}h\x3cK\x01sh\x79K\x01s.",
    ],
    ids=["memo", "length", "tuples", "parts", "doubled tuples", "frozen sets"],
)
def test_pickles_take_no_more_memory_than_they_are_worth(tmp_path, content):
    """Bugs: an index of some bytes took gigabytes; the hash of tuples inside tuples ended the process, or took for ever where
    each was twice in the next."""
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(GdwsError, match=r"test_batch is not a batch"):
        data.load(f"cifar10:{tmp_path}", "test")
