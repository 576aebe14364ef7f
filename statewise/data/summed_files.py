"""Files of the cache with their sizes and checksums, so that a damaged one is found."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


class SummedWriter:
    """Counts and sums what goes into a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.blake2b(digest_size=32)
        self.n_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        data = memoryview(data).cast("B")
        self._file.write(data)
        self._digest.update(data)
        self.n_bytes += len(data)

    def record(self) -> dict[str, Any]:
        return {"bytes": self.n_bytes, "blake2b": self._digest.hexdigest()}


def map_summed(path: Path, record: dict[str, Any], dtype: np.dtype) -> np.ndarray:
    """A memory map of a file that has this record.

    Errors:  ValueError if it has another; OSError, KeyError.
    """
    array: np.ndarray = np.memmap(path, dtype, mode="r")
    data = array.view(np.uint8).data
    if len(data) != record["bytes"] or hashlib.blake2b(data, digest_size=32).hexdigest() != record["blake2b"]:
        raise ValueError(path.name)
    return array
