"""Data sets as they lie on a disk: the official layouts, folders of images, splits; and what is wrong with broken ones."""

import os
import pickle
import random
import tarfile
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from gdws import data
from gdws.core.errors import GdwsError
from gdws.data import Dataset, folder
from gdws.data.dataset import balanced_order

RANDOM = np.random.default_rng(0)
BATCHES = ["test_batch", *(f"data_batch_{part}" for part in range(1, 6))]


# CIFAR-10


def official(batch, protocol=2):
    """Numpy under the name that it had in 2009."""
    return pickle.dumps(batch, protocol).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.fixture
def rows():
    return {name: RANDOM.integers(0, 256, (10, 3072), dtype=np.uint8) for name in BATCHES}


@pytest.fixture
def cifar(tmp_path, rows):
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    for name in BATCHES:
        batch = {b"batch_label": name.encode(), b"labels": list(range(10)), b"data": rows[name]}
        (place / name).write_bytes(official(batch))
    return tmp_path


def packed(tmp_path, names=BATCHES):
    """Archived in an order of its own, as the official archive is, among files that nobody asked for."""
    place = tmp_path / "cifar-10-batches-py"
    (place / "readme.html").write_text("hello")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name in ("data_batch_4", "readme.html", *(name for name in names if name != "data_batch_4")):
            archive.add(place / name, f"cifar-10-batches-py/{name}")
    for file in place.iterdir():
        file.unlink()
    place.rmdir()


@pytest.mark.parametrize("layout", ["unpacked", "inside", "archive", "python 3"])
def test_cifar10_is_read_in_every_official_layout(cifar, rows, layout):
    place = cifar / "cifar-10-batches-py"
    if layout == "archive":
        packed(cifar)
    if layout == "python 3":
        for name in BATCHES:
            (place / name).write_bytes(pickle.dumps({b"labels": np.arange(10), b"data": rows[name]}, 3))
    name = f"cifar10:{place if layout == 'inside' else cifar}"
    test, train = data.load(name, "test"), data.load(name, "train")
    assert np.array_equal(test.images.numpy().reshape(10, -1), rows["test_batch"])
    assert np.array_equal(train.images.numpy().reshape(50, -1), np.concatenate([rows[part] for part in BATCHES[1:]]))
    assert train.labels.tolist() == 5 * list(range(10))
    assert test.images.shape == (10, 3, 32, 32)
    assert (test.images.dtype, test.labels.dtype) == (torch.uint8, torch.int64)
    if layout == "archive":
        assert [file.name for file in cifar.iterdir()] == ["cifar-10-python.tar.gz"]  # nothing was unpacked


class Calls:
    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("kind", ["system", "eval", "stack global", "import", "attribute"])
def test_a_pickle_that_asks_for_anything_else_is_refused(cifar, tmp_path, kind, archived):
    owned = tmp_path / "owned"
    content = {
        "system": lambda: pickle.dumps({b"data": Calls(os.system, f"touch {owned}")}, 0),
        "eval": lambda: pickle.dumps(Calls(eval, f"open({str(owned)!r}, 'w')"), 2),
        "stack global": lambda: pickle.dumps(Calls(os.mkdir, str(owned)), 5),
        "import": lambda: b"cantigravity\nmultiarray\n.",
        "attribute": lambda: b"cnumpy\nload\n.",
    }[kind]()
    (cifar / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    if archived:
        packed(cifar)
    with pytest.raises(GdwsError, match=r"test_batch is not a batch .* it asks for"):
        data.load(f"cifar10:{cifar}", "test")
    assert not owned.exists()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({b"labels": [1, 2]}, "data"),
        ({b"labels": [1, 2], b"data": np.zeros((3, 3072), np.uint8)}, r"expected uint8 data \(2, 3072\)"),
        ({b"labels": [1, 2], b"data": np.zeros((2, 3072), np.float32)}, r"expected uint8 data \(2, 3072\)"),
        ({b"labels": [1, 10], b"data": np.zeros((2, 3072), np.uint8)}, "labels from 0 to 9"),
        ([1], "not a batch"),
    ],
)
def test_batches_of_something_else_are_refused(cifar, batch, words):
    (cifar / "cifar-10-batches-py" / "test_batch").write_bytes(official(batch))
    with pytest.raises(GdwsError, match=words):
        data.load(f"cifar10:{cifar}", "test")


def test_truncated_and_missing_parts_of_cifar10_are_named(cifar, tmp_path):
    file = cifar / "cifar-10-batches-py" / "data_batch_3"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(GdwsError, match="data_batch_3 is not a batch"):
        data.load(f"cifar10:{cifar}", "train")
    file.unlink()
    with pytest.raises(GdwsError, match=r"has no data_batch_3: .*gdws download cifar10"):
        data.load(f"cifar10:{cifar}", "train")
    packed(cifar, [name for name in BATCHES if name != "data_batch_3"])
    with pytest.raises(GdwsError, match=r"tar.gz has no cifar-10-batches-py/data_batch_3"):
        data.load(f"cifar10:{cifar}", "train")
    archive = cifar / "cifar-10-python.tar.gz"
    for content in (archive.read_bytes()[:9000], b"hello", b""):
        archive.write_bytes(content)
        with pytest.raises(GdwsError, match="is it truncated"):
            data.load(f"cifar10:{cifar}", "train")
    with pytest.raises(GdwsError, match=r"has no test_batch: .*gdws download cifar10"):
        data.load(f"cifar10:{tmp_path / 'none'}", "test")


# SVHN


def write_svhn(path, images, labels, compressed=True):
    savemat(path, {"X": images.transpose(1, 2, 3, 0), "y": labels[:, None]}, do_compression=compressed)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
@pytest.mark.parametrize("count", [1, 2, 13])
def test_svhn_is_read_and_label_10_is_the_digit_0(tmp_path, compressed, kind, count):
    images = RANDOM.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = (np.arange(count) % 10 + 1).astype(kind)
    write_svhn(tmp_path / "train_32x32.mat", images, labels, compressed)
    train = data.load(f"svhn:{tmp_path}", "train")
    assert np.array_equal(train.images.permute(0, 2, 3, 1).numpy(), images)
    assert train.labels.tolist() == [(index + 1) % 10 for index in range(count)]
    assert train.images.is_contiguous()
    assert train.labels.dtype == torch.int64


def test_other_variables_of_a_mat_file_do_not_disturb(tmp_path):
    content = {"note": "hello", "s": {"a": [1.0, 2.0]}, "X": np.ones((32, 32, 3, 2), np.uint8), "y": np.array([[10], [3]])}
    savemat(tmp_path / "test_32x32.mat", {**content, "c": np.array([[1.0, "x"]], dtype=object), "e": np.zeros((0, 0), object)})
    assert data.load(f"svhn:{tmp_path}", "test").labels.tolist() == [0, 3]


def test_broken_svhn_is_named(tmp_path):
    path, name = tmp_path / "test_32x32.mat", f"svhn:{tmp_path}"
    with pytest.raises(GdwsError, match=r"has no test_32x32.mat: .*gdws download svhn"):
        data.load(name, "test")
    images, labels = np.ones((4, 32, 32, 3), np.uint8), np.ones(4)
    for compressed in (False, True):
        write_svhn(path, images, labels, compressed)
        whole = path.read_bytes()
        for length in (0, 100, 130, 200, len(whole) // 2, len(whole) - 9):
            path.write_bytes(whole[:length])
            with pytest.raises(GdwsError, match=r"test_32x32.mat is not a MATLAB 5 file"):
                data.load(name, "test")
    for changed in ((images, np.full(4, 11)), (images[:3], labels), (images[:, :8], labels), (images / 2, labels)):
        write_svhn(path, *changed)
        with pytest.raises(GdwsError, match=r"expected \(32, 32, 3, N\) uint8"):
            data.load(name, "test")


# Folders of images


def write_image(path, size=(32, 32), mode="RGB", colour=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    if colour is None:
        pixels = RANDOM.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
    else:
        image = Image.new("RGB", size, colour)
    image.convert(mode).save(path)
    return np.asarray(image)


def test_small_images_of_one_size_come_out_as_they_are(tmp_path):
    pixels = {
        name: write_image(tmp_path / name, (40, 32)) for name in ("dog/2.png", "cat/b.PNG", "cat/a.png", "dog/more/1.bmp")
    }
    (tmp_path / "cat" / "notes.txt").write_text("hello")
    (tmp_path / "cat" / "._a.png").write_text("left by another system")
    (tmp_path / ".git").mkdir()
    found = data.load(f"imagefolder:{tmp_path}", "train")
    assert found.images.shape == (4, 3, 32, 40)
    assert sorted(found.labels.tolist()) == [0, 0, 1, 1]
    assert found.labels[:2].sum() == found.labels[2:].sum() == 1  # any start has all classes alike
    expected = {(name.startswith("dog"), image.tobytes()) for name, image in pixels.items()}
    images = found.images.permute(0, 2, 3, 1).contiguous().numpy()
    assert {(bool(label), image.tobytes()) for label, image in zip(found.labels, images, strict=True)} == expected
    again = data.load(f"imagefolder:{tmp_path}", "test")
    assert torch.equal(again.images, found.images)


def test_photographs_are_cut_as_imagenet_is(tmp_path):
    wide = write_image(tmp_path / "a" / "wide.png", (321, 256))
    found = data.load(f"imagefolder:{tmp_path}", "test").images
    assert found.shape == (1, 3, 224, 224)
    # The shorter side is 256 already, and half of the odd rest, 48.5, is rounded to even.
    assert np.array_equal(found[0].permute(1, 2, 0).numpy(), wide[16:240, 48:272])


@pytest.mark.parametrize("size", [(500, 375), (300, 900), (65, 65), (30, 40)])
def test_images_of_other_sizes_are_resized(tmp_path, size):
    """Left half red, right half blue: so it stays, with the border in the middle."""
    image = Image.new("RGB", size, "red")
    image.paste("blue", (size[0] // 2, 0, *size))
    write_image(tmp_path / "a" / "other.png", (64, 64))
    image.save(tmp_path / "a" / "two.png")
    found = data.load(f"imagefolder:{tmp_path}", "test")
    halves = next(image for image in found.images if image[1].max() == 0)
    assert found.images.shape == (2, 3, 224, 224)
    assert (halves[0, :, :100] == 255).all()
    assert (halves[2, :, -100:] == 255).all()
    assert (halves[2, :, :100] == 0).all()


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("L", "png"),
        ("LA", "png"),
        ("1", "png"),
        ("RGBA", "png"),
        ("P", "png"),
        ("P", "gif.png"),
        ("CMYK", "jpg"),
        ("RGB", "webp"),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, mode, suffix):
    (tmp_path / "a").mkdir()
    image = Image.new("RGB", (16, 16), (255, 255, 255)).convert(mode)
    see_through = {"transparency": bytes([255] * 255)} if suffix == "gif.png" else {}
    image.save(tmp_path / "a" / f"x.{suffix}", **see_through)
    found = data.load(f"imagefolder:{tmp_path}", "test").images
    assert found.shape == (1, 3, 16, 16)
    assert (found.float() - 255).abs().max() <= 2


def test_images_are_decoded_when_they_are_iterated(tmp_path):
    for index in range(12):
        write_image(tmp_path / f"{index % 3}" / f"{index}.png", (100, 80))
    found = data.load(f"imagefolder:{tmp_path}", "train").take(None, 4)
    last = folder.read(tmp_path, "train")[0].paths[-1]
    last.write_bytes(last.read_bytes()[:300])
    batches = iter(found)
    images, labels = next(batches)
    assert images.shape == (4, 3, 224, 224)
    assert 0 <= images.min() < images.max() <= 1
    assert (found.number_of_batches, len(labels), len(list(found.take(8)))) == (3, 4, 2)
    next(batches)
    with pytest.raises(GdwsError, match=rf"{last} cannot be decoded .*: expected a whole image"):
        next(batches)
    rest, held = found.split(3)
    assert sorted(held.labels.tolist()) == [0, 1, 2]
    assert len(rest.labels) == 9


def test_splits_of_imagenet(tmp_path):
    for name in ("train/a/1", "train/b/1", "train/c/1", "val/a/1", "val/c/1", "val/c/2"):
        write_image(tmp_path / f"{name}.png")
    (tmp_path / "test").mkdir()
    write_image(tmp_path / "test" / "unlabelled.png")
    name = f"imagefolder:{tmp_path}"
    assert sorted(data.load(name, "train").labels.tolist()) == [0, 1, 2]
    assert sorted(data.load(name, "test").labels.tolist()) == [0, 2, 2]  # the numbers of train, though b is missing
    write_image(tmp_path / "test" / "b" / "1.png")
    assert data.load(name, "test").labels.tolist() == [1]
    assert sorted(data.load(f"{name}/val", "train").labels.tolist()) == [0, 1, 1]  # a folder without splits is its own
    write_image(tmp_path / "test" / "d" / "1.png")
    with pytest.raises(GdwsError, match=r"test has a class 'd' that .*train lacks"):
        data.load(name, "test")


def test_a_class_called_train_is_no_split(tmp_path):
    for name in ("bus/1", "train/1"):
        write_image(tmp_path / f"{name}.png")
    assert sorted(data.load(f"imagefolder:{tmp_path}", "test").labels.tolist()) == [0, 1]


def test_broken_folders_are_named(tmp_path):
    name = f"imagefolder:{tmp_path}"
    with pytest.raises(GdwsError, match=r"there is no folder .*none"):
        data.load(f"{name}/none", "test")
    with pytest.raises(GdwsError, match="has no folders inside"):
        data.load(name, "test")
    (tmp_path / "a").mkdir()
    with pytest.raises(GdwsError, match="holds no images"):
        data.load(name, "test")
    (tmp_path / "a" / "x.png").write_text("hello")
    with pytest.raises(GdwsError, match=r"x.png cannot be decoded"):
        data.load(name, "test")
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "a" / "x.png")
    with pytest.raises(GdwsError, match=r"x.png cannot be decoded .*I;16.*8 bits"):
        list(data.load(name, "test"))
    write_image(tmp_path / "train" / "a" / "x.png")
    with pytest.raises(GdwsError, match=r"no class folders in val: expected .* for its test images"):
        data.load(name, "test")


def test_headers_are_read_no_further_than_the_first_photograph(tmp_path, monkeypatch):
    for index in range(5):
        write_image(tmp_path / "a" / f"{index}.png", (100, 100))
    opened, real = [], Image.open
    monkeypatch.setattr(folder.Image, "open", lambda file, formats: opened.append(file) or real(file, formats=formats))
    data.load(f"imagefolder:{tmp_path}", "train")
    assert len(opened) == 1


# .npz and names


def test_an_npz_file_may_hold_both_splits(tmp_path):
    images = RANDOM.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    arrays = {"train_images": images[:2], "train_labels": [0, 1], "test_images": images[2:], "test_labels": [2]}
    np.savez(tmp_path / "both.npz", **arrays)
    name = f"npz:{tmp_path / 'both.npz'}"
    assert data.load(name, "train").labels.tolist() == [0, 1]
    assert np.array_equal(data.load(name, "test").images.permute(0, 2, 3, 1).numpy(), images[2:])
    np.savez(tmp_path / "both.npz", train_images=images, train_labels=[0, 1, 2])
    with pytest.raises(GdwsError, match="`test_images` and `test_labels`"):
        data.load(name, "test")


@pytest.mark.parametrize("name", ["demo:x", "cifar10", "svhn:", "imagefolder", "npz", "web:x", ""])
def test_unknown_names_are_told_the_known_ones(name):
    with pytest.raises(GdwsError, match="expected demo, cifar10:DIR, svhn:DIR, imagefolder:DIR, images:DIR, npy:FILE or npz"):
        data.load(name, "test")


def test_unknown_splits_are_refused():
    with pytest.raises(GdwsError, match="the split 'val' of demo was asked for: expected train or test"):
        data.load("demo", "val")


# Parts and splits


def numbered(labels, batch_size=100):
    """Image i holds the number i."""
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 1, 1)
    return Dataset("numbered", images, torch.tensor(labels), batch_size)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.data())
def test_a_split_is_disjoint_complete_balanced_and_repeatable(labels, choose):
    count, seed = choose.draw(st.integers(1, len(labels) - 1)), choose.draw(st.integers(0, 1000))
    before = (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[2])
    rest, held = numbered(labels).split(count, seed)
    assert (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[2]) == before
    kept, apart = ([int(image[0, 0, 0]) for image in part.images] for part in (rest, held))
    assert len(apart) == count
    assert sorted(kept + apart) == list(range(len(labels)))
    assert kept == sorted(kept)
    assert apart == sorted(apart)
    assert [labels[index] for index in kept] == rest.labels.tolist()
    assert [labels[index] for index in apart] == held.labels.tolist()
    there, drawn = Counter(labels), Counter(held.labels.tolist())
    assert all(drawn[kind] == there[kind] or drawn[kind] >= max(drawn.values()) - 1 for kind in there)
    assert torch.equal(numbered(labels).split(count, seed)[1].images, held.images)


def test_splits_are_the_same_on_every_machine():
    """Written down once: Python promises that Random(seed).random() never changes."""
    assert balanced_order([0, 0, 0, 0, 1, 1, 2, 2], seed=3) == [6, 5, 0, 2, 4, 7, 1, 3]
    _, held = numbered(list(range(10)) * 20).split(10, seed=0)
    assert held.labels.sort().values.tolist() == list(range(10))
    assert not torch.equal(numbered(list(range(10)) * 20).split(10, seed=1)[1].images, held.images)


@pytest.mark.parametrize("count", [0, -1, 4, 5])
def test_a_split_leaves_something_on_both_sides(count):
    with pytest.raises(GdwsError, match=f"{count} of the 4 images of numbered were to be held apart"):
        numbered([0, 1, 2, 3]).split(count)


def test_parts_and_batches():
    whole = numbered([0, 1, 2, 3, 4, 5, 6], batch_size=3)
    assert [len(labels) for _, labels in whole] == [3, 3, 1]
    assert (len(whole), whole.number_of_batches) == (7, 3)
    assert whole.select(torch.tensor([5, 2])).labels.tolist() == [5, 2]
    assert whole.select(slice(5, 100)).images[:, 0, 0, 0].tolist() == [5, 6]
    images, labels = next(iter(whole.take(2)))
    assert torch.equal(images[:, 0, 0, 0] * 255, labels.float())
    with pytest.raises(GdwsError, match="holds no images"):
        whole.select(slice(7, 9))
    with pytest.raises(GdwsError, match="2 images and 1 labels"):
        Dataset("odd", torch.zeros(2, 3, 1, 1, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))


def test_content_of_memory_is_not_copied_by_parts():
    whole = numbered(list(range(100)))
    assert whole.take(10).images.data_ptr() == whole.images.data_ptr()
