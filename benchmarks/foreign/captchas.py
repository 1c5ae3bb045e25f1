"""Pictures that ask for characters to be found: letters, Chinese characters and pictograms, turned and colored, on photographs.

    calibration_captchas(cache, count)    (count, 3, 416, 416), on photographs to calibrate on
    test_captchas(cache, count)           the same on the others, from other seeds
    draw(photographs, fonts, seed)        one after another, without an end

Values are BGR in [0, 255], as the detector of foreign.onnx_files takes them: a picture is enlarged to fit the square and put
at its top left, the rest is gray (114).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count as count_up
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foreign import pictures
from foreign.packages import from_debian, from_pypi

SIDE, GRAY = 416, 114
LATIN = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789"
CHINESE = range(0x4E00, 0x9000)
PICTOGRAMS = range(0x2600, 0x26C0)
CALIBRATION_SEED, TEST_SEED = 0, 1
"""For others to keep off: from one seed, captchas on other photographs get the same signs now and then."""


Fonts = list[tuple[Path, str]]
"""Font files, and the characters that are drawn with each."""


def calibration_captchas(cache: Path, count: int) -> Tensor:
    return torch.stack(list(islice(draw(pictures.calibration_files(cache), fonts_of(cache), CALIBRATION_SEED), count)))


def test_captchas(cache: Path, count: int) -> Tensor:
    return torch.stack(list(islice(draw(pictures.test_files(cache), fonts_of(cache), TEST_SEED), count)))


def draw(photographs: Iterable[Path], fonts: Fonts, seed: int) -> Iterator[Tensor]:
    """Captchas (3, 416, 416) on the photographs in turn, without an end."""
    images = [Image.fromarray(pictures.photograph(file).movedim(0, 2).numpy()) for file in photographs]
    random = Random(seed)
    for index in count_up():
        yield _squared(_captcha(images[index % len(images)], fonts, random))


def fonts_of(cache: Path) -> Fonts:
    latin = from_pypi("matplotlib", "3.10.7", cache) / "matplotlib" / "mpl-data" / "fonts" / "ttf"
    chinese = from_debian("fonts-wqy-zenhei", cache) / "usr/share/fonts/truetype/wqy/wqy-zenhei.ttc"
    fonts = [(latin / "DejaVuSans-Bold.ttf", LATIN), (latin / "DejaVuSerif.ttf", LATIN)]
    return [*fonts, (latin / "DejaVuSans.ttf", "".join(map(chr, PICTOGRAMS))), (chinese, "".join(map(chr, CHINESE)))]


def _captcha(photograph: Image.Image, fonts: Fonts, random: Random) -> Image.Image:
    """A part of a photograph with three to six signs in one or two kinds, which may touch."""
    width = min(random.randint(240, 400), photograph.width)
    height = min(random.randint(140, 360), photograph.height)
    left, top = random.randint(0, photograph.width - width), random.randint(0, photograph.height - height)
    picture = photograph.crop((left, top, left + width, top + height))
    count = random.randint(3, 6)
    font, signs = random.choice(fonts)
    columns = random.sample(range(count), count)
    for column in columns:
        size = random.randint(28, min(72, height // 2))
        sign = _sign(random.choice(signs), ImageFont.truetype(str(font), size), random)
        x = round((column + 0.5) * width / count + random.uniform(-0.15, 0.15) * width / count - sign.width / 2)
        y = random.randint(0, max(0, height - sign.height))
        picture.paste(sign, (min(max(0, x), width - sign.width), y), sign)
    return picture


def _sign(character: str, font: ImageFont.FreeTypeFont, random: Random) -> Image.Image:
    """One character, turned, in a color with an outline, on nothing."""
    side = round(2 * font.size)
    sign = Image.new("RGBA", (side, side))
    fill, outline = (tuple(random.randint(0, 255) for _ in range(3)) for _ in range(2))
    width = random.choice([0, 1, 2])
    ImageDraw.Draw(sign).text((side / 2, side / 2), character, fill, font, "mm", stroke_width=width, stroke_fill=outline)
    turned = sign.rotate(random.uniform(-40, 40), Image.Resampling.BICUBIC)
    return turned.crop(turned.getbbox())


def _squared(picture: Image.Image) -> Tensor:
    factor = SIDE / max(picture.size)
    size = (int(picture.width * factor), int(picture.height * factor))
    square = Image.new("RGB", (SIDE, SIDE), (GRAY,) * 3)
    square.paste(picture.resize(size, Image.Resampling.BILINEAR), (0, 0))
    return torch.from_numpy(np.array(square)[..., ::-1].copy()).movedim(2, 0).float()
