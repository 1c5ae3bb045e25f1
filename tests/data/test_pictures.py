"""Any pictures in a folder, without labels: against Pillow, and what is wrong with folders, files and options."""

import os
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image

from gdws import data
from gdws.core.errors import GdwsError
from gdws.data import dataset, picture_files, pictures

RANDOM = np.random.default_rng(0)


def picture(path, size=(50, 40), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = RANDOM.integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    image = Image.fromarray(pixels[..., 0] if mode == "L" else pixels)
    image.save(path)
    return image


def as_tensor(image, channels=3):
    return (
        torch.from_numpy(np.asarray(image).reshape(image.height, image.width, channels).copy()).permute(2, 0, 1).float() / 255
    )


def same_pieces(found, expected):
    """The same tensors in any order."""
    return sorted(part.numpy().tobytes() for part in found) == sorted(part.numpy().tobytes() for part in expected)


def test_pictures_of_any_size_come_as_they_are(tmp_path):
    made = [
        picture(tmp_path / name, size) for name, size in (("a.png", (50, 40)), ("b/c.bmp", (7, 90)), ("b/d/e.PNG", (50, 40)))
    ]
    made.append(picture(tmp_path / "f.webp", (20, 20)))
    made[-1] = Image.open(tmp_path / "f.webp").convert("RGB")  # which is not lossless
    (tmp_path / "notes.txt").write_text("hello")
    picture(tmp_path / ".thumbnails" / "a.png")
    found = data.load(f"images:{tmp_path}", "train")
    batches = list(found)
    assert len(found) == 4
    assert found.number_of_batches == len(batches)
    assert {batch.dtype for batch in batches} == {torch.float32}
    assert same_pieces([image for batch in batches for image in batch], map(as_tensor, made))
    again = data.load(f"images:{tmp_path}/", "test")
    assert all(torch.equal(one, other) for one, other in zip(again, batches, strict=True))
    with pytest.raises(GdwsError, match=r"\d+ x \d+ and \d+ x \d+ pixels: expected one size"):
        _ = found.images


def test_pictures_of_one_size_share_batches(tmp_path, monkeypatch):
    for index in range(7):
        picture(tmp_path / f"{index}.png", (32, 16))
    found = data.load(f"images:{tmp_path}", "train")
    assert [tuple(batch.shape) for batch in found.take(None, 3)] == [(3, 3, 16, 32), (3, 3, 16, 32), (1, 3, 16, 32)]
    assert torch.equal(found.images.float() / 255, next(iter(found)))
    assert torch.equal(found.select(torch.tensor([5, 2])).images, found.images[[5, 2]])
    assert torch.equal(found.select(slice(2, 6, 2)).images, found.images[2:6:2])
    rest, held = found.split(3)
    assert (len(rest), len(held)) == (4, 3)
    monkeypatch.setattr(pictures, "MOST_VALUES", 2 * 3 * 16 * 32 + 1)  # which bounds the batches of large pictures
    assert [len(batch) for batch in found] == [2, 2, 2, 1]
    monkeypatch.setattr(pictures, "MOST_VALUES", 1)
    assert found.number_of_batches == len(list(found)) == 7
    with pytest.raises(GdwsError, match="has no labels"):
        _ = found.labels


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_channels_are_those_that_are_asked_for(tmp_path, mode, channels):
    image = picture(tmp_path / "x.png", mode=mode)
    expected = as_tensor(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]), channels)
    found = next(iter(data.load(f"images:{tmp_path},channels={channels}", "train")))
    assert torch.equal(found[0], expected)


def test_opacity_of_a_palette_is_kept(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(tmp_path / "x.png", transparency=1)
    found = data.load(f"images:{tmp_path},channels=4", "train").images
    assert found[0, :, 0, 0].tolist() == [255, 0, 0, 0]


def test_a_crop_is_cut_from_the_middle_after_scaling(tmp_path):
    images = [picture(tmp_path / f"{width}.png", (width, height)) for width, height in ((90, 61), (64, 200))]
    expected = []
    for image in images:
        small = image.resize((round(image.width / 2), round(image.height / 2)), Image.Resampling.BICUBIC)
        left, top = (small.width - 24) // 2, (small.height - 24) // 2
        expected.append(as_tensor(small.crop((left, top, left + 24, top + 24))))
    found = data.load(f"images:{tmp_path},crop=24,scale=0.5", "train")
    (batch,) = found
    assert batch.shape == (2, 3, 24, 24)
    assert same_pieces(batch, expected)


def test_patches_are_all_squares_that_fit_in_an_order_that_never_changes(tmp_path):
    """Every start has all pictures alike."""
    images = [picture(tmp_path / f"{index}.png", size) for index, size in enumerate([(100, 70), (64, 97), (31, 500)])]
    expected = [
        as_tensor(image.crop((x, y, x + 32, y + 32)))
        for image in images
        for y in range(image.height % 32 // 2, image.height - 31, 32)
        for x in range(image.width % 32 // 2, image.width - 31, 32)
    ]
    found = data.load(f"images:{tmp_path},patches=32", "train").take(None, 5)
    assert len(found) == len(expected) == 6 + 6
    assert found.number_of_batches == 3
    assert same_pieces([part for batch in found for part in batch], expected)
    files = [piece.path.name for piece in found._source.pieces]
    assert all(len({"0.png", "1.png"} & set(files[start : start + 2])) == 2 for start in range(0, 12, 2))
    again = data.load(f"images:{tmp_path},patches=32", "test").take(4)
    assert torch.equal(again.images, found.images[:4])
    assert files != sorted(files)


def test_a_batch_of_patches_decodes_every_picture_once(tmp_path, monkeypatch):
    for index in range(2):
        picture(tmp_path / f"{index}.png", (64, 64))
    found = data.load(f"images:{tmp_path},patches=16", "train")
    opened, real = [], Image.open
    monkeypatch.setattr(picture_files.Image, "open", lambda file, formats: opened.append(1) or real(file, formats=formats))
    assert [len(batch) for batch in found] == [32]
    assert len(opened) == 2


def test_splits_are_folders_or_the_same(tmp_path):
    picture(tmp_path / "train" / "a.png", (8, 8))
    assert len(data.load(f"images:{tmp_path}", "test")) == 1
    for index in range(2):
        picture(tmp_path / "val" / f"{index}.png", (8, 8))
    assert [len(data.load(f"images:{tmp_path}", split)) for split in ("train", "test")] == [1, 2]
    for index in range(3):
        picture(tmp_path / "test" / "more" / f"{index}.png", (8, 8))
    assert [len(data.load(f"images:{tmp_path}", split)) for split in ("train", "test")] == [1, 3]


@pytest.mark.parametrize("folder", ["a, b", "a=b", "a,b", "x,Y=1"])
def test_commas_in_paths_are_no_options(tmp_path, folder):
    picture(tmp_path / folder / "x.png", (8, 8))
    assert data.load(f"images:{tmp_path / folder}", "train").images.shape == (1, 3, 8, 8)
    assert data.load(f"images:{tmp_path / folder},channels=1", "train").images.shape == (1, 1, 8, 8)


def test_a_slash_ends_a_path_that_looks_like_options(tmp_path):
    picture(tmp_path / "x,crop=4" / "x.png", (8, 8))
    picture(tmp_path / "x" / "x.png", (6, 6))
    assert data.load(f"images:{tmp_path}/x,crop=4", "train").images.shape == (1, 3, 4, 4)
    assert data.load(f"images:{tmp_path}/x,crop=4/", "train").images.shape == (1, 3, 8, 8)
    assert data.load(f"images:{tmp_path}/x,crop=4/,crop=5", "train").images.shape == (1, 3, 5, 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("crop=0", "crop=0 was given: expected the side of a square in pixels"),
        ("crop=x", "crop=x was given"),
        ("crop=", "crop= was given"),
        ("patches=-1", "patches=-1 was given"),
        ("patches=1.5", "patches=1.5 was given"),
        ("patches=99999999999999999999", "patches=9"),
        ("crop=4,patches=4", "crop=4 and patches=4 were given: expected one of them"),
        ("crop=4,crop=4", "'crop=4' is unknown or given twice"),
        ("size=4", "'size=4' is unknown or given twice: expected each of crop, patches, scale, channels"),
        ("scale=0", "scale=0 was given: expected a factor above 0"),
        ("scale=nan", "scale=nan was given"),
        ("scale=-1", "scale=-1 was given"),
        ("scale=inf", "scale=inf was given"),
        ("scale=two", "scale=two was given"),
        ("channels=2", "channels=2 was given: expected 1"),
        ("crop=100", r"x.png has 50 x 40 pixels: expected at least 100 x 100"),
        ("crop=40,scale=0.5", r"x.png has 25 x 20 pixels: expected at least 40 x 40"),
        ("patches=41", r"up to 50 x 40 pixels: expected at least one with 41 x 41"),
        ("scale=1000", r"x.png, scaled by 1000, would take 32,000,000,000 bytes"),
    ],
)
def test_wrong_options_are_told(tmp_path, options, words):
    picture(tmp_path / "x.png")
    with pytest.raises(GdwsError, match=words):
        data.load(f"images:{tmp_path},{options}", "train")


def test_a_list_of_patches_is_bounded(tmp_path, monkeypatch):
    picture(tmp_path / "x.png", (200, 200))
    monkeypatch.setenv("GDWS_MAX_BYTES", "1000000")
    assert len(data.load(f"images:{tmp_path},patches=10", "train")) == 400
    with pytest.raises(GdwsError, match=r"the list of the 40,000 pieces of .* would take 20,000,000 bytes"):
        data.load(f"images:{tmp_path},patches=1", "train")


def test_missing_and_empty_folders_are_told(tmp_path):
    with pytest.raises(GdwsError, match=r"there is no folder .*none"):
        data.load(f"images:{tmp_path}/none", "train")
    with pytest.raises(GdwsError, match="there is no folder ''"):
        data.load("images:,crop=4", "train")
    with pytest.raises(GdwsError, match="holds no pictures: expected files with names that end in"):
        data.load(f"images:{tmp_path}", "train")
    picture(tmp_path / "x.png")
    with pytest.raises(GdwsError, match="there is no folder"):
        data.load(f"images:{tmp_path / 'x.png'}", "train")
    for path in ("a" * 5000, "a\0b"):
        with pytest.raises(GdwsError):
            data.load(f"images:{path}", "train")


def test_broken_pictures_are_named(tmp_path):
    picture(tmp_path / "x.png", (300, 300))
    found = data.load(f"images:{tmp_path}", "train")
    whole = (tmp_path / "x.png").read_bytes()
    (tmp_path / "x.png").write_bytes(whole[:5000])
    with pytest.raises(GdwsError, match=r"x.png cannot be decoded .*: expected a whole image"):
        list(found)
    picture(tmp_path / "x.png", (200, 300))
    with pytest.raises(GdwsError, match=r"x.png cannot be decoded \(it has another size than before\)"):
        list(found)
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "x.png")
    with pytest.raises(GdwsError, match=r"x.png cannot be decoded .*I;16.*8 bits"):
        list(data.load(f"images:{tmp_path}", "train"))
    (tmp_path / "x.png").write_bytes(b"GIF89a")
    with pytest.raises(GdwsError, match=r"x.png cannot be decoded"):
        data.load(f"images:{tmp_path}", "train")
    (tmp_path / "x.png").unlink()
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(GdwsError, match=r"x.png is no ordinary file"):
        data.load(f"images:{tmp_path}", "train")


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "ppm", "tif", "webp"])
def test_damaged_pictures_are_told_in_a_sentence(tmp_path, suffix):
    file = tmp_path / f"x.{suffix}"
    picture(file)
    whole = file.read_bytes()
    for _ in range(40):
        mutant = bytearray(whole[: RANDOM.integers(1, len(whole) + 1)])
        for place in RANDOM.integers(0, len(mutant), 4):
            mutant[place] = RANDOM.integers(256)
        file.write_bytes(mutant)
        with suppress(GdwsError):
            list(data.load(f"images:{tmp_path},patches=8,scale=0.9,channels=4", "test"))


def test_a_line_of_pixels_takes_no_more_than_it_has(tmp_path):
    Image.new("RGB", (1, 60_000)).save(tmp_path / "x.png")
    (batch,) = data.load(f"images:{tmp_path}", "train")
    assert batch.shape == (1, 3, 60_000, 1)
    with pytest.raises(GdwsError, match=r"x.png, scaled by 300, would take 86,400,000,000 bytes"):
        data.load(f"images:{tmp_path},scale=300", "train")


def test_links_in_a_circle_count_nothing_twice(tmp_path):
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "a" / "b" / "2.png")
    for name, target in (("a/self", "."), ("a/b/up", ".."), ("a/b/top", "../.."), ("all", "a")):
        (tmp_path / name).symlink_to(target, target_is_directory=True)
    (tmp_path / "again.png").symlink_to("a/1.png")
    assert len(data.load(f"images:{tmp_path}", "test")) == 2


def test_batches_of_several_sizes_are_no_data_set_in_memory():
    batches = [(torch.rand(2, 3, size, size), torch.zeros(2, dtype=torch.int64)) for size in (4, 5)]
    with pytest.raises(GdwsError, match=r"own has images \(3, 4, 4\) and \(3, 5, 5\): expected one size"):
        dataset.Dataset.from_batches("own", batches)
