"""JPEG and PNG, decoded by Pillow: of the size that is expected, and no other format that Pillow knows.

Pillow knows dozens, some of which it hands to other programs; a name that ends in .png says nothing.
"""

from __future__ import annotations

import io
import warnings

import numpy as np

from statewise.errors import DataError, importing
from statewise.files.opening import refusing

FORMATS = ("JPEG", "PNG")


def read_picture(data: bytes, name: str, *, side: int, mode: str) -> np.ndarray:
    """(side, side) uint8 for mode "L", (side, side, 3) for "RGB". Its size is looked at before any of it is decoded.

    Errors:  DataError for what is no image of this size; if Pillow is not installed.
    """
    with importing("PIL", "tasks", "JPEG and PNG need", DataError):
        from PIL import Image, UnidentifiedImageError
    with refusing(f"{name} is no image"), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # its size is looked at here
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError as error:  # its message has the place of the bytes in memory
            raise DataError(f"{name} is no image") from error
        if image.size != (side, side):
            raise DataError(f"{name} has {image.size[0]} x {image.size[1]} pixels, expected {side} x {side}")
        return np.asarray(image.convert(mode))
