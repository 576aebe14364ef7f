"""The GGUF file: a header of named values, the tensors' names, types and shapes, and then their numbers."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.errors import CheckpointError

Value = bool | int | float | str | list[Any]

MAGIC = b"GGUF"
VERSION = 3
VERSIONS = (2, 3)  # the same but for byte orders
ALIGNMENT = 32  # of each tensor's numbers, unless general.alignment says otherwise
STRING, ARRAY = 8, 9
SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", 32)])
# The types of tensors by their number; those that are not read have names for the error
TYPES = {0: "F32", 1: "F16", 8: "Q8_0", 30: "BF16"}
OTHER_TYPES = {
    2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K",
    14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


class StoredTensor(NamedTuple):
    """type: its name, as "Q8_0"; shape: rows first, as here and not as in the file; start: its first byte."""

    type: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class GGUF:
    """What a file says before its numbers."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]

    def read(self, name: str) -> Tensor:
        """One tensor in float32, in memory of its own: exactly the numbers of the file, whatever they are stored in.

        Errors:  CheckpointError for a type that is not read, and for a file that ends before the tensor does.
        """
        kind, shape, start = self.tensors[name]
        n = math.prod(shape)
        if kind == "Q8_0":  # blocks of 32 along a row: eight bits and eleven make nineteen, so that float32 is exact
            if not shape or shape[-1] % 32:
                raise CheckpointError(f"{self.path}: {name} is Q8_0 in rows of {shape[-1:]}, expected a multiple of 32")
            blocks = self._numbers(name, start, Q8_0_BLOCK, n // 32)
            numbers = blocks["values"].astype(np.float32)
            numbers *= blocks["scale"].astype(np.float32)[:, None]
        elif kind == "BF16":
            numbers = (self._numbers(name, start, np.dtype("<u2"), n).astype(np.uint32) << 16).view(np.float32)
        elif kind in ("F32", "F16"):
            numbers = self._numbers(name, start, np.dtype("<f4" if kind == "F32" else "<f2"), n)
        else:
            raise CheckpointError(f"{self.path}: {name} is {kind}; read are {', '.join(TYPES.values())}")
        return torch.from_numpy(numbers.astype(np.float32, copy=False).reshape(shape))

    def _numbers(self, name: str, start: int, dtype: np.dtype, n: int) -> np.ndarray:
        if start + n * dtype.itemsize > self.path.stat().st_size:
            raise CheckpointError(f"{self.path} ends before the tensor {name} does; it was not copied in full")
        return np.fromfile(self.path, dtype, n, offset=start)


def read_header(path: Path) -> GGUF:
    """All but the numbers. Takes time and memory in proportion to the header, whatever the header claims.

    Errors:  CheckpointError if it is no GGUF file of version 2 or 3, or is damaged.
    """
    try:
        with open(path, "rb") as file:
            if file.read(4) != MAGIC:
                raise CheckpointError(f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Header(path, data).read()
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: its header does not end, or is not of GGUF's form") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


class _Header:
    """Reads from the front. Reading past the end of the data is a struct.error or ValueError."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, len(MAGIC)

    def read(self) -> GGUF:
        version = self.number("<I")
        if version not in VERSIONS:
            order = " (it may be in the other byte order)" if version & 0xFFFF == 0 else ""
            raise CheckpointError(f"{self.path} is GGUF of version {version}{order}; versions 2 and 3 are read")
        n_tensors, n_values = self.number("<Q"), self.number("<Q")
        metadata: dict[str, Value] = {}
        for _ in range(n_values):
            key = self.string()
            self.require_new(key, metadata)
            metadata[key] = self.value(self.number("<I"))
        found: dict[str, StoredTensor] = {}
        for _ in range(n_tensors):
            name = self.string()
            self.require_new(name, found)
            shape = tuple(self.number("<Q") for _ in range(self.number("<I")))[::-1]
            kind = self.number("<I")
            known = TYPES.get(kind) or OTHER_TYPES.get(kind) or f"number {kind}"
            found[name] = StoredTensor(known, shape, self.number("<Q"))
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError
        start = -(-self.at // alignment) * alignment
        return GGUF(self.path, metadata, {name: t._replace(start=start + t.start) for name, t in found.items()})

    def require_new(self, name: str, found: Mapping[str, object]) -> None:
        if name in found:
            raise CheckpointError(f"{self.path} is damaged: {name} is there twice")

    def number(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(found)

    def string(self) -> str:
        return self.take(self.number("<Q")).decode()

    def take(self, n_bytes: int) -> bytes:
        if self.at + n_bytes > len(self.data):
            raise ValueError
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def value(self, kind: int) -> Value:
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            value: Value = self.scalars(kind, 1)[0]
            return value
        kind, n = self.number("<I"), self.number("<Q")
        return [self.string() for _ in range(n)] if kind == STRING else self.scalars(kind, n)

    def scalars(self, kind: int, n: int) -> list[Any]:
        if kind not in SCALARS:  # also an array of arrays, which nothing here has
            raise ValueError
        dtype = np.dtype(SCALARS[kind])
        found: list[Any] = np.frombuffer(self.take(n * dtype.itemsize), dtype).tolist()
        if kind == 6:  # the shortest number that is this float32: 1e-5 is 1e-5
            found = [float(str(np.float32(x))) for x in found]
        return found


def write_file(path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> None:
    """A new GGUF file of version 3. Integers are written in 32 bits, numbers in float32; tensors in float32 or 16.

    Errors:  OSError.
    """
    with open(path, "xb") as file:
        file.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            file.write(_string(key) + _encoded(value))
        start = 0
        for name, tensor in tensors.items():
            kind = {torch.float32: 0, torch.float16: 1}[tensor.dtype]
            file.write(_string(name) + struct.pack("<I", tensor.ndim))
            file.write(struct.pack(f"<{tensor.ndim}Q", *reversed(tensor.shape)) + struct.pack("<IQ", kind, start))
            start += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        for tensor in tensors.values():
            _align(file)
            numbers = tensor.detach().cpu().contiguous().numpy()
            file.write(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).reshape(-1).view("u1").data)
        _align(file)


def _align(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % ALIGNMENT))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _encoded(value: Value) -> bytes:
    """Its type and itself."""
    if isinstance(value, list):
        return struct.pack("<I", ARRAY) + _encoded_array(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", STRING) + _string(value)


def _encoded_array(values: Sequence[object]) -> bytes:
    """Of text, or of integers."""
    if values and isinstance(values[0], int):
        return struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)
    return struct.pack("<IQ", STRING, len(values)) + b"".join(_string(str(value)) for value in values)
