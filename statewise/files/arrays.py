"""numpy's files of plain arrays, .npy and .npz, read by what the format says and not by numpy's reader.

numpy's evaluates the header as Python, makes any dtype that it names, and takes the sizes that it claims. Here a header
is matched, its dtype is one of numbers or text, and its shape has to fit the bytes that are there.

Source:  numpy.lib.format, "Format Version 1.0" to 3.0.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from statewise.errors import DataError, excerpt
from statewise.files.opening import refusing, zip_members

MAGIC = b"\x93NUMPY"
LENGTH = {1: 2, 2: 4, 3: 4}  # bytes of the header's length, by version
LONGEST_HEADER = 10_000  # as numpy has it
MAX_AXES = 32
LARGEST_CHARACTER = 0x10FFFF
HEADER = re.compile(
    r"\{\s*(?:(?:'descr'\s*:\s*'(?P<dtype>[<>|=]?[biufUS]\d{1,9})'"
    r"|'fortran_order'\s*:\s*(?P<fortran>True|False)"
    r"|'shape'\s*:\s*\((?P<shape>(?:\d{1,19}L?,\s*)*(?:\d{1,19}L?)?)\))\s*,?\s*){3}\}\s*"
)
SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}  # bytes of a number


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name, in memory.

    Errors:  DataError for anything but a zip of .npy files of numbers or text, and for a zip that claims wrong sizes,
             is encrypted, or expands to more than its size allows.
    """
    found = {}
    with zip_members(path) as members:
        for name, read in members.items():
            if not name.endswith(".npy"):
                raise DataError(f"{path}: its member {excerpt(name)} is not an array; write it with numpy.savez")
            found[name.removesuffix(".npy")] = read_npy(read(), f"{path}: {excerpt(name)}")
    return found


def read_npy(data: bytes, name: str) -> np.ndarray:
    """The array of an .npy file, in memory of its own.

    Errors:  DataError, which begins with ``name``.
    """
    dtype, shape, is_fortran, begin = _header(data, name)
    n = math.prod(shape)
    if n * dtype.itemsize != len(data) - begin:
        raise DataError(
            f"{name} claims {_counted(n)} values of {dtype.itemsize} bytes, but has {len(data) - begin:,} bytes"
        )
    with refusing(f"{name} is not an array"):
        array = np.frombuffer(bytearray(data[begin:]), dtype).reshape(shape[::-1] if is_fortran else shape)
    if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise DataError(f"{name} is an array of booleans, but has bytes that are neither true nor false")
    if dtype.kind == "U" and array.size and not _is_text(array):
        raise DataError(f"{name} contains text that is not Unicode")
    return array.T if is_fortran else array


def map_npy(path: Path) -> np.ndarray:
    """The array of an .npy file, mapped and not read.

    Errors:  DataError, as :func:`read_npy`; text is not looked at.
    """
    with refusing(f"cannot read {path}"):
        with path.open("rb") as file:
            head = file.read(12 + LONGEST_HEADER)
        dtype, shape, is_fortran, begin = _header(head, str(path))
        if math.prod(shape) * dtype.itemsize != path.stat().st_size - begin or not math.prod(shape):
            raise DataError(f"{path} does not have the bytes that its header says")
        return np.memmap(path, dtype, "r", begin, shape, "F" if is_fortran else "C")


def _header(data: bytes, name: str) -> tuple[np.dtype, tuple[int, ...], bool, int]:
    """dtype, shape, whether the first axis is the fastest, and where the values begin."""
    width = LENGTH.get(data[6] if len(data) > 6 else 0)
    if not data.startswith(MAGIC) or width is None:
        raise DataError(f"{name} is not a .npy file; it begins with {data[:6].hex(' ') or 'nothing'}")
    begin = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if begin > min(len(data), 8 + width + LONGEST_HEADER):
        raise DataError(f"{name} is cut short, or has a header that is too long")
    text = data[8 + width : begin].decode("latin1")
    match = HEADER.fullmatch(text)
    if match is None or None in (match["dtype"], match["fortran"], match["shape"]):
        raise DataError(f"{name} is not a plain array of numbers or text; its header is {excerpt(text.strip())}")
    kind, size = match["dtype"].lstrip("<>|=")[0], int(match["dtype"].lstrip("<>|=")[1:])
    shape = tuple(int(n.strip().rstrip("L")) for n in match["shape"].split(",") if n.strip())
    if (size not in SIZES[kind] if kind in SIZES else not 1 <= size < 1 << 28) or len(shape) > MAX_AXES:
        raise DataError(f"{name} is not a plain array of numbers or text; its header is {excerpt(text.strip())}")
    return np.dtype(match["dtype"]), shape, match["fortran"] == "True", begin


def _counted(n: int) -> str:
    return f"{n:,}" if n < 1 << 80 else "more than 2^80"


def _is_text(array: np.ndarray) -> bool:
    codes = array.reshape(-1).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
    return bool((codes <= LARGEST_CHARACTER).all()) and not bool(((codes >= 0xD800) & (codes < 0xE000)).any())
