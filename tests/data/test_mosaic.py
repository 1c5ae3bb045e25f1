"""Mosaics of images, drawn here with Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image

from gdws import data
from gdws.core.errors import GdwsError


@pytest.fixture
def folder(tmp_path):
    """A split of 150 images in two mosaics, of two rows and of one, and the images."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (150, 32, 32, 3), dtype=np.uint8)
    for number, part in enumerate((images[:100], images[100:])):
        mosaic = Image.new("RGB", (1600, 32 * (len(part) // 50)))
        for index, pixels in enumerate(part):
            mosaic.paste(Image.fromarray(pixels), (32 * (index % 50), 32 * (index // 50)))
        mosaic.save(tmp_path / f"train_{number:02d}.webp", lossless=True)
    np.save(tmp_path / "train_labels.npy", np.arange(150, dtype=np.uint8) % 10)
    return tmp_path, images


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_images_come_out_row_by_row(folder, name):
    path, images = folder
    found = data.load(f"{name}:{path}", "train")
    assert torch.equal(found.images, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert found.labels.tolist() == [number % 10 for number in range(150)]


def test_a_mosaic_that_is_missing_or_of_another_size_is_named(folder):
    path, _ = folder
    (path / "train_01.webp").unlink()
    with pytest.raises(GdwsError, match="has 100 train images and 150 labels"):
        data.load(f"cifar10:{path}", "train")
    Image.new("RGB", (1600, 48)).save(path / "train_01.webp")
    with pytest.raises(GdwsError, match="has 1600 x 48 pixels: expected 50 images of 32 x 32"):
        data.load(f"svhn:{path}", "train")
