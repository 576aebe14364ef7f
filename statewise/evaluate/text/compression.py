"""How far general compressors shrink the same bytes, to compare with a model's bits per byte."""

from __future__ import annotations

import lzma
import zlib
from dataclasses import dataclass
from typing import Any

from statewise.errors import InputError

BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Compression:
    """Compressed sizes in bytes, containers included, and in bits for each byte of the original."""

    n_bytes: int
    xz_bytes: int
    zlib_bytes: int
    xz_bits_per_byte: float
    zlib_bits_per_byte: float


def compress(data: bytes) -> Compression:
    """The size of ``data`` under ``xz -9`` and under zlib at level 9.

    Cost:    about a second for each megabyte, nearly all of it for xz, which needs up to 700 MB of memory.
    Errors:  InputError if there are no bytes.

    >>> compress(b"state space " * 1000).zlib_bytes < 100
    True
    """
    if not data:
        raise InputError("there are no bytes to compress; give at least one")
    xz = _compressed_size(data, lzma.LZMACompressor(lzma.FORMAT_XZ, preset=9))
    deflate = _compressed_size(data, zlib.compressobj(9))
    return Compression(
        n_bytes=len(data),
        xz_bytes=xz,
        zlib_bytes=deflate,
        xz_bits_per_byte=8 * xz / len(data),
        zlib_bits_per_byte=8 * deflate / len(data),
    )


def _compressed_size(data: bytes, compressor: Any) -> int:
    view = memoryview(data)
    size = sum(len(compressor.compress(view[begin : begin + BLOCK])) for begin in range(0, len(data), BLOCK))
    return size + len(compressor.flush())
