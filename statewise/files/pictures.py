"""Pictures, decoded by Pillow: of few formats, and no other that Pillow knows.

Pillow knows dozens, some of which it hands to other programs; a name that ends in .png says nothing.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.errors import DataError, excerpt, importing
from statewise.files.limits import require_within
from statewise.files.opening import open_file, refusing

PUBLISHED = ("JPEG", "PNG")  # of data sets
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")  # of one's own
EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
GREY = ("1", "L", "LA", "La")
ORIENTATION = 0x0112  # of EXIF: how the camera was held
TURNED = (5, 6, 7, 8)  # where height and width change places
BYTES = 4  # of a pixel, while it is decoded


class Look(NamedTuple):
    """What a picture's header says: size (height, width), as it is looked at, and whether it has no colour."""

    size: tuple[int, int]
    is_grey: bool


def read_picture(data: bytes, name: str, *, side: int, mode: str) -> np.ndarray:
    """(side, side) uint8 for mode "L", (side, side, 3) for "RGB": of a data set, whose size is known.

    Errors:  DataError for anything but a JPEG or PNG of this size, before it is decoded; if Pillow is not installed.
    """
    with _opened(io.BytesIO(data), name, PUBLISHED) as image:
        if image.size != (side, side):
            raise DataError(f"{name} has {image.size[0]} x {image.size[1]} pixels, expected {side} x {side}")
        return np.asarray(image.convert(mode))


def look_at_picture(path: Path) -> Look:
    """By its header alone; nothing is decoded.

    Errors:  DataError as :func:`fit_picture`.
    """
    with refusing(f"cannot read {path}"), open_file(path) as file, _opened(file, str(path), FORMATS) as image:
        size = _checked_size(image, path)
        turned = image.getexif().get(ORIENTATION) in TURNED
        return Look(size[::-1] if turned else size, image.mode in GREY)


def fit_picture(path: Path, *, size: tuple[int, int], mode: str) -> np.ndarray:
    """(height, width) uint8 for mode "L", (height, width, 3) for "RGB": turned as the camera was held, laid on white
    where it is transparent, and brought to ``size``, whatever its own proportions are.

    Numerics: grey is 0.299 R + 0.587 G + 0.114 B, rounded; sizes are changed by Pillow's bilinear filter, which takes
              the mean of what it makes smaller.
    Errors:   DataError for what is none of JPEG, PNG, BMP, GIF and WebP, for several pictures in one, for more than 8
              bits a number, and for more pixels than the file's size allows; if Pillow is not installed.
    """
    with refusing(f"cannot read {path}"), open_file(path) as file, _opened(file, str(path), FORMATS) as image:
        _checked_size(image, path)
        from PIL import Image, ImageOps

        turned = ImageOps.exif_transpose(image)
        if "transparency" in turned.info or turned.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
            turned = turned.convert("RGBA")
            turned = Image.alpha_composite(Image.new("RGBA", turned.size, "white"), turned)
        turned = turned.convert(mode)
        if turned.size != size[::-1]:
            turned = turned.resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(turned)


@contextmanager
def _opened(file: Any, name: str, formats: tuple[str, ...]) -> Iterator[Any]:
    with importing("PIL", "files", f"{name}: pictures need", DataError):
        from PIL import Image, UnidentifiedImageError
    with refusing(f"{name} is not an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes, which are looked at here, and of what is odd in a file
        try:
            image = Image.open(file, formats=formats)
        except UnidentifiedImageError as error:  # its message has the place of the bytes in memory
            raise DataError(f"{name} is not an image") from error
        yield image


def _checked_size(image: Any, path: Path) -> tuple[int, int]:
    """(height, width)."""
    width, height = image.size
    require_within(str(path), width * height * BYTES, path.stat().st_size)
    if image.mode not in EIGHT_BITS:
        raise DataError(f"{path} has more than 8 bits a number (mode {excerpt(image.mode)}); convert it to 8 bits")
    if getattr(image, "is_animated", False):
        raise DataError(f"{path} holds {image.n_frames} pictures; expected one: save each as a file of its own")
    return height, width
