"""Arrays of any shape and type without labels, in .npy and .npz files: against NumPy, and what broken files claim."""

import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from gdws import data
from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments
from gdws.data import Dataset, npy

RANDOM = np.random.default_rng(0)


def saved(path, array):
    np.save(path, array)
    return f"npy:{path}"


def together(found):
    return torch.cat(list(found)).numpy()


# .npy


@pytest.mark.parametrize(
    ("kind", "comes_as"),
    [
        ("<f4", np.float32),
        (">f4", np.float32),
        ("<f8", np.float32),
        ("<f2", np.float32),
        ("<i8", np.int64),
        (">i2", np.int64),
        ("u1", np.int64),
        ("<u4", np.int64),
        ("?", np.bool_),
    ],
)
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 3), (7, 2, 3, 1, 2)])
def test_values_come_as_numpy_has_them(tmp_path, kind, comes_as, shape):
    array = (100 * RANDOM.random(shape)).astype(kind)
    found = data.load(saved(tmp_path / "x.npy", array), "train").take(None, 3)
    batches = list(found)
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert (len(found), found.number_of_batches) == (7, 3)
    assert together(found).dtype == comes_as
    assert np.array_equal(together(found), array.astype(comes_as))
    chosen = torch.tensor([5, 6, 0, 2, -1])
    assert np.array_equal(found.select(chosen).images, array[chosen.numpy()].astype(comes_as))
    assert np.array_equal(found.select(chosen).select(slice(1, 3)).images, array[[6, 0]].astype(comes_as))
    assert np.array_equal(found.select(slice(1, 6, 2)).select(torch.tensor([2, 0])).images, array[[5, 1]].astype(comes_as))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("last", [True, False])
def test_bytes_of_four_dimensions_are_images(tmp_path, channels, last):
    array = RANDOM.integers(0, 256, (5, 8, 6, channels) if last else (5, channels, 8, 6), dtype=np.uint8)
    expected = array.transpose(0, 3, 1, 2) if last else array
    for order in (np.ascontiguousarray, np.asfortranarray):
        found = data.load(saved(tmp_path / "x.npy", order(array)), "train")
        assert found.images.dtype == torch.uint8
        assert np.array_equal(found.images, expected)
        assert np.array_equal(next(iter(found)), expected.astype(np.float32) / 255)


def test_columns_first_are_read_too(tmp_path):
    array = np.asfortranarray(RANDOM.normal(size=(5, 4, 3)).astype(np.float32))
    assert np.array_equal(together(data.load(saved(tmp_path / "x.npy", array), "train")), array)


def test_a_large_file_is_read_in_parts(tmp_path, monkeypatch):
    array = RANDOM.normal(size=(4000, 1000)).astype(np.float32)  # 16 MB
    name = saved(tmp_path / "x.npy", array)
    tracemalloc.start()
    found = data.load(name, "train")
    first, *_ = found.select(slice(1000, 1010))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    assert np.array_equal(first, array[1000:1010])
    monkeypatch.setattr(npy, "MOST_VALUES", 2500)
    assert [len(batch) for batch in found.take(5)] == [2, 2, 1]


def test_unlabelled_data_is_split_too(tmp_path):
    array = np.arange(10.0)
    rest, held = data.load(saved(tmp_path / "x.npy", array), "train").split(4)
    assert sorted([*together(rest), *together(held)]) == array.tolist()
    assert together(rest).tolist() == sorted(together(rest))


def claiming(shape, descr="<f4", content=b"", fortran=False):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return file.getvalue() + content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (claiming((10**9, 1000)), r"claims an array of shape \(1000000000, 1000\) and has 128 bytes"),
        (claiming((10**9, 1000), fortran=True), "claims an array of shape"),
        (claiming((3, 4), content=bytes(47)), "claims an array of shape"),
        (claiming((3, 4), content=bytes(49)), "claims an array of shape"),
        (claiming((-1, -12), content=bytes(48)), r"shape \(-1, -12\): expected \(N, ...\)"),
        (claiming((), content=bytes(4)), r"shape \(\): expected \(N, ...\)"),
        (claiming((0, 4)), r"shape \(0, 4\): expected"),
        (claiming((4, 0)), r"shape \(4, 0\): expected"),
        (claiming((1,), "|O", b"\x80\x04N."), "holds object: expected floats"),
        (claiming((1,), "<c8", bytes(8)), "holds complex64: expected floats"),
        (claiming((1,), "<u8", bytes(8)), "holds uint64: expected floats"),
        (claiming((1,), "<M8[s]", bytes(8)), r"holds datetime64\[s\]: expected floats"),
        (claiming((1,), "<U2", bytes(8)), "holds <U2: expected floats"),
        (claiming((1,), [("a", "<f4"), ("b", "<f4")], bytes(8)), "expected floats"),
        (b"\x93NUMPY\1\0\0\xff" + b"(" * 999, "is not an .npy file"),
        (b"PK\3\4", "is not an .npy file"),
        (b"", "is not an .npy file"),
        (b"hello", "is not an .npy file"),
    ],
)
def test_broken_files_are_told_before_memory_is_taken(tmp_path, content, words):
    (tmp_path / "x.npy").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(GdwsError, match=words):
        data.load(f"npy:{tmp_path / 'x.npy'}", "train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_missing_and_changed_files_are_told(tmp_path, monkeypatch):
    with pytest.raises(GdwsError, match=r"there is no file .*x.npy"):
        data.load(f"npy:{tmp_path / 'x.npy'}", "train")
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(GdwsError, match=r"there is no file .*x.npy"):
        data.load(f"npy:{tmp_path / 'x.npy'}", "train")
    (tmp_path / "x.npy").unlink()
    found = data.load(saved(tmp_path / "x.npy", np.zeros((8, 100), np.float32)), "train").take(None, 4)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:2200])
    batches = iter(found)
    next(batches)
    with pytest.raises(GdwsError, match=r"x.npy ends early"):
        next(batches)
    name = saved(tmp_path / "x.npy", np.asfortranarray(np.zeros((300, 100))))
    monkeypatch.setattr(npy, "check_bytes", lambda what, *_: (_ for _ in ()).throw(GdwsError(str(what))))
    with pytest.raises(GdwsError, match=r"x.npy, whose rows do not lie one after the other,"):
        data.load(name, "train")


# .npz


def npz(path, **arrays):
    np.savez_compressed(path, **arrays)
    return f"npz:{path}"


def test_named_arrays_are_arguments(tmp_path):
    noisy, sigma = RANDOM.normal(size=(5, 1, 8, 8)), RANDOM.random(5)
    seen = RANDOM.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    name = npz(tmp_path / "x.npz", noisy=noisy, sigma=sigma, seen=seen)
    found = data.load(name, "train", labels=False).take(None, 2)
    batches = list(found)
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert all(isinstance(batch, Arguments) and batch.names == ["noisy", "sigma", "seen"] for batch in batches)
    assert np.array_equal(torch.cat([batch.named["noisy"] for batch in batches]), noisy.astype(np.float32))
    assert np.array_equal(torch.cat([batch.named["sigma"] for batch in batches]), sigma.astype(np.float32))
    assert np.array_equal(batches[0].named["seen"], seen[:2].transpose(0, 3, 1, 2).astype(np.float32) / 255)
    (picked,) = found.select(torch.tensor([4, 1]))
    assert np.array_equal(picked.named["sigma"], sigma[[4, 1]].astype(np.float32))
    with pytest.raises(GdwsError, match="holds the arguments noisy, sigma, seen: expected images"):
        _ = found.images
    with pytest.raises(GdwsError, match=r"is not an .npz file with arrays `images` and `labels`"):
        data.load(name, "train")


def test_arguments_may_have_splits_and_labels(tmp_path):
    name = npz(tmp_path / "x.npz", train_x=np.zeros((2, 3)), test_x=np.ones((4, 3)), test_labels=np.arange(4))
    (batch,) = data.load(name, "train", labels=False)
    assert batch.named["x"].shape == (2, 3)
    ((batch, labels),) = data.load(name, "test", labels=False)
    assert (batch.named["x"].sum(), labels.tolist()) == (12, [0, 1, 2, 3])
    name = npz(tmp_path / "x.npz", train_x=np.zeros((2, 3)), time=np.ones(2))
    assert next(iter(data.load(name, "test", labels=False))).names == ["train_x", "time"]


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int16])
def test_images_of_another_type_need_no_labels(tmp_path, kind):
    array = (50 * RANDOM.normal(size=(4, 2, 5, 6))).astype(kind)
    name = npz(tmp_path / "x.npz", images=array)
    assert np.array_equal(together(data.load(name, "train", labels=False)), array.astype(np.float32))
    name = npz(tmp_path / "x.npz", images=array, labels=np.arange(4))
    ((images, labels),) = data.load(name, "train", labels=False)
    assert (images.shape, labels.tolist()) == ((4, 2, 5, 6), [0, 1, 2, 3])
    with pytest.raises(GdwsError, match=r"images of shape \(4, 2, 5, 6\) .*: expected \(N, H, W, C\) or \(N, C, H, W\) uint8"):
        data.load(name, "train")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 8, 6, 1), (4, 1, 8, 6)),
        ((4, 8, 6, 4), (4, 4, 8, 6)),
        ((4, 3, 8, 6), (4, 3, 8, 6)),
        ((4, 13, 8, 6), (4, 13, 8, 6)),
        ((4, 8, 6), (4, 1, 8, 6)),
    ],
)
def test_images_may_have_any_number_of_channels(tmp_path, shape, expected):
    array = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    found = data.load(npz(tmp_path / "x.npz", images=array, labels=np.arange(4)), "train")
    assert tuple(found.images.shape) == expected
    images, labels = next(iter(found))
    assert images.shape == expected
    assert float(images.sum() * 255) == pytest.approx(array.sum(), rel=1e-5)
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.zeros((3, 2)), "b": np.zeros((4, 2))}, "3 rows in a, 4 rows in b: expected arguments of one number"),
        ({"a": np.zeros(()), "b": np.zeros(4)}, "a single number in a: expected a row for each sample"),
        ({"a b": np.zeros(4)}, "an array 'a b': expected the names of arguments"),
        ({"self": np.zeros(4)}, "an array 'self': expected the names"),
        ({"a": np.array(["x"])}, "the array a of .* holds <U1: expected floats"),
        ({"a": np.array([None])}, "holds objects"),
        ({"a": np.zeros(4, complex)}, "holds complex128: expected floats"),
        ({"labels": np.zeros(4, int)}, "no arrays of the kind"),
        ({"test_a": np.zeros(4)}, "no arrays of the kind"),
        ({"a": np.zeros((0, 4))}, "holds no images"),
        ({}, "no arrays of the kind"),
    ],
)
def test_arrays_that_are_no_arguments_are_told(tmp_path, arrays, words):
    np.savez(tmp_path / "x.npz", **{("s" if name == "self" else name): array for name, array in arrays.items()})
    if "self" in arrays:
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("self.npy", claiming((1,), content=bytes(4)))
    with pytest.raises(GdwsError, match=words):
        data.load(f"npz:{tmp_path / 'x.npz'}", "train", labels=False)


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("second", ["images.npy", "images"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused(tmp_path, second, labels):
    """Bug: the last of them was read, without a word; NumPy takes one, other readers another."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, array in {"images.npy": np.zeros((2, 8, 8, 3), np.uint8), "labels.npy": np.zeros(2, int)}.items():
            with archive.open(name, "w") as member:
                np.save(member, array)
        with archive.open(second, "w") as member:
            np.save(member, np.ones(2, int))
    with pytest.raises(GdwsError, match="holds 'images' twice"):
        data.load(f"npz:{tmp_path / 'x.npz'}", "train", labels=labels)


def test_arguments_that_claim_more_than_they_hold_are_refused(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", claiming((10**9, 1000)))
    with pytest.raises(GdwsError, match="claims an array of shape"):
        data.load(f"npz:{tmp_path / 'x.npz'}", "train", labels=False)
    name = npz(tmp_path / "x.npz", a=np.zeros((100, 1000)), b=np.zeros((100, 1000)))
    monkeypatch.setenv("GDWS_MAX_BYTES", "1000000")
    with pytest.raises(GdwsError, match=r"x.npz would take 1,600,\d\d\d bytes"):
        data.load(name, "train", labels=False)


# In memory


def test_a_data_set_may_hold_anything():
    values = Dataset("values", torch.arange(6.0).view(3, 2), None, batch_size=2)
    assert [batch.tolist() for batch in values] == [[[0, 1], [2, 3]], [[4, 5]]]
    gray = Dataset("gray", torch.full((2, 1, 4, 4), 255, dtype=torch.uint8), None)
    assert torch.equal(next(iter(gray)), torch.ones(2, 1, 4, 4))
    with pytest.raises(GdwsError, match=r"torch.uint8 \(2, 4\): expected uint8 \(N, C, H, W\)"):
        Dataset("bytes", torch.zeros(2, 4, dtype=torch.uint8), None)
