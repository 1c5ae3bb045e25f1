"""Picture files: which lie in a folder, what their headers say, and their pixels, none of it trusted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from PIL import Image, ImageFile
from PIL.TiffImagePlugin import TILELENGTH, TILEWIDTH

from gdws.core.errors import GdwsError
from gdws.core.reading.limits import BYTES_A_PIXEL, check_bytes, open_file

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP")
"""What Pillow reads here, whatever the name ends in: some others of its readers run programs."""

LARGE = 4 * 2**20
"""Images of more pixels are decoded one at a time."""
_DECODING = threading.Lock()


def size_of(path: Path) -> tuple[int, int]:
    """(width, height) as the header has them."""
    with _opened(path, "an image") as image:
        return image.size


@contextmanager
def decoded(path: Path, mode: str = "RGB") -> Iterator[Image.Image]:
    """The pixels of a file: gray "L", "RGB", or with transparency "RGBA". What fails inside is told of the file."""
    with _opened(path, "a whole image of 8 bits a channel") as image, _DECODING if _room(image) > LARGE else nullcontext():
        if deep := _deep_mode(image):
            raise ValueError(f"its pixels have mode {deep}")
        see_through = image.mode == "P" and "transparency" in image.info  # Pillow warns of a direct way
        yield (image.convert("RGBA") if see_through else image).convert(mode)


@contextmanager
def _opened(path: Path, expected: str) -> Iterator[ImageFile.ImageFile]:
    """An image of one of the FORMATS whose header is read, and which is not too large to be decoded."""
    try:
        with open_file(path) as file, Image.open(file, formats=FORMATS) as image:
            check_bytes(path, BYTES_A_PIXEL * _room(image), path.stat().st_size)
            yield image
    except GdwsError:
        raise
    except Exception as error:  # Pillow's decoders fail in many ways
        raise GdwsError(f"{path} cannot be decoded ({error}): expected {expected}") from None


def _room(image: Image.Image) -> int:
    """Pixels that decoding makes room for: of the image, or of one of the tiles of a TIFF file, which may be larger."""
    tags = getattr(image, "tag_v2", {})
    return max(image.width * image.height, int(tags.get(TILEWIDTH, 0)) * int(tags.get(TILELENGTH, 0)))


def _deep_mode(image: ImageFile.ImageFile) -> str | None:
    """How the file has its pixels, if in more than 8 bits a channel; Pillow makes 8 bits of colors without a word."""
    if image.mode.startswith(("I", "F")):
        return image.mode
    for tile in image.tile:
        for value in tile[3] if isinstance(tile[3], tuple) else (tile[3],):
            if isinstance(value, str) and ";16" in value:
                return value
        if tile[0].startswith("ppm") and isinstance(tile[3], tuple) and tile[3][-1] > 255:
            return f"{image.mode} up to {tile[3][-1]}"
    return None


def files_below(folder: Path) -> list[Path]:
    """Image files at any depth, sorted, but none in hidden folders. Links are followed, but nothing is taken twice, and so none
    leads round in a circle."""
    images, linked, visited = list[Path](), list[Path](), set[str]()
    places, linked_places = [str(folder)], list[str]()
    while places or linked_places:
        place = (places or linked_places).pop()
        if (real := os.path.realpath(place)) in visited:
            continue
        visited.add(real)
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    places.append(entry.path)
                elif entry.is_symlink() and os.path.isdir(entry.path):
                    if not leads_back(entry.path, folder):
                        linked_places.append(entry.path)
                elif entry.name.lower().endswith(SUFFIXES):
                    (linked if entry.is_symlink() else images).append(Path(entry.path))
    known = {os.path.realpath(path) for path in images} if linked else set()
    for path in sorted(linked):
        if (real := os.path.realpath(path)) not in known:
            known.add(real)
            images.append(path)
    return sorted(images)


def leads_back(link: str, folder: Path) -> bool:
    """Whether a link leads to the folder or to one that holds it."""
    target, real = os.path.realpath(link), os.path.realpath(folder)
    return os.path.commonpath([target, real]) == target
