"""A GGUF file by the ``gguf`` package (extra ``gguf``): named values, and tensors with their names, types and shapes.

Two methods of its reader and one of its writer are replaced, for files that are cut short, for damaged lengths, and
for arrays without values; see docs/decisions/0016-gguf-by-its-package.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.checkpoints.convert.gguf_parts import joined, parts_at
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS
from statewise.checkpoints.convert.gguf_values import Value
from statewise.errors import CheckpointError, importing, reason
from statewise.models.quantised import QuantisedTensor

with importing("gguf", "gguf", "GGUF files need", CheckpointError):
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys
    from gguf.quants import dequantize, quantize

PIECE = 2**20  # numbers that are widened at once
VALUE_TYPES = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
    list: GGUFValueType.ARRAY,
}


class StoredTensor(NamedTuple):
    """type: its name, as "Q8_0"; shape: rows first, as here and not as in the file; data: mapped from the file."""

    type: str
    shape: tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True)
class GGUF:
    """What a file says, and where its numbers are."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]

    def read(self, name: str, *, keep_quantised: bool = False) -> Tensor:
        """One tensor in float32, in memory of its own: exactly the numbers of the file, whatever they are stored in
        (F64 is rounded). keep_quantised: a matrix in integers, or several in one tensor, stay as they are, a
        ``QuantisedTensor``.

        Errors:  CheckpointError for a shape that its type cannot have.
        """
        stored = self.tensors[name]
        with _refusing(self.path):
            if keep_quantised and stored.type in QUANTISATIONS and len(stored.shape) in (2, 3) and stored.data.size:
                from statewise.checkpoints.convert.gguf_integers import GGUFBlocks

                *n, n_rows, n_columns = stored.shape
                flat = stored._replace(shape=(math.prod(n) * n_rows, n_columns))
                return QuantisedTensor(GGUFBlocks(flat), *n)
            return widened(stored)


def widened(stored: StoredTensor) -> Tensor:
    """Its numbers in float32. Piece by piece, since the package needs twice the memory of what it is given at once."""
    kind, shape, data = stored
    if kind in ("F32", "F64"):
        return torch.from_numpy(np.array(data, np.float32).reshape(shape))
    out = torch.empty(shape)
    rows = out.numpy().reshape(-1, shape[-1]) if out.numel() else np.empty((0, 1), np.float32)
    raw = data.reshape(len(rows), -1)
    at_once = max(1, PIECE // rows.shape[1])
    for i in range(0, len(rows), at_once):
        with np.errstate(all="ignore"):
            rows[i : i + at_once] = dequantize(raw[i : i + at_once], GGMLQuantizationType[kind])
    return out


def read_file(path: Path) -> GGUF:
    """All values, and the tensors mapped into memory. Takes time and memory in proportion to the file's header,
    whatever lengths it claims. For one of the parts of a model: the values and tensors of the whole model.

    Errors:  CheckpointError if it is not a GGUF file that the package knows, is cut short or damaged, or has the other
             byte order; for a part that is missing, or is of another model.
    """
    own = _read_one(path)
    paths = parts_at(path, own.metadata)
    return own if len(paths) == 1 else joined([own if each == path else _read_one(each) for each in paths])


def _read_one(path: Path) -> GGUF:
    with _refusing(path):
        reader = _Reader(path)
        if reader.byte_order == "S":
            raise CheckpointError(f"{path} is a GGUF file in the other byte order, which Statewise does not read")
        values = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        return GGUF(
            path,
            {name: _value_of(field) for name, field in values.items()},
            {t.name: StoredTensor(t.tensor_type.name, tuple(t.shape.tolist()[::-1]), t.data) for t in reader.tensors},
        )


def narrowed(tensor: Tensor, kind: str) -> StoredTensor:
    """A float32 tensor in one of ``gguf_types.WRITTEN``, whose block divides its last axis."""
    with np.errstate(all="ignore"):  # the caller looks at what is left
        data = quantize(tensor.contiguous().numpy(), GGMLQuantizationType[kind])
    return StoredTensor(kind, tuple(tensor.shape), data)


def write_file(path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, Tensor | StoredTensor]) -> None:
    """A new GGUF file. Integers are written in 32 bits, numbers in float32; tensors as they are: float32, float16, or
    what :func:`narrowed` made of them.

    Errors:  OSError, also if there is a file.
    """
    writer = _Writer(path, str(metadata[Keys.General.ARCHITECTURE]))
    for key, value in metadata.items():
        if key != Keys.General.ARCHITECTURE:  # the writer has put it first
            writer.add_key_value(key, value, VALUE_TYPES[type(value)])
    for name, tensor in tensors.items():
        if isinstance(tensor, StoredTensor):
            writer.add_tensor(name, tensor.data, raw_dtype=GGMLQuantizationType[tensor.type])
        else:
            writer.add_tensor(name, tensor.detach().cpu().contiguous().numpy())
    path.touch(exist_ok=False)  # the writer would replace a file
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


class _Reader(GGUFReader):
    """Refuses what lies beyond the file's end, and reads an array of numbers at once.

    The package takes the numbers of an array one by one, each an object of its own, and past the end of the file
    continues with none: a damaged length takes hours and all of the memory.
    """

    data: Any

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> np.ndarray:
        if isinstance(self.data, np.memmap):
            self.data = self.data.view(np.ndarray)  # still mapped; slices of it cost a third
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("it ends before the data that it lists")
        found: np.ndarray = super()._get(offset, dtype, count, override_order)
        return found

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type == GGUFValueType.ARRAY:
            start = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            kind = GGUFValueType(start[0][0])
            if kind in self.gguf_scalar_to_np:
                parts = [*start, self._get(orig_offs + 12, self.gguf_scalar_to_np[kind], start[1][0])]
                return sum(part.nbytes for part in parts), parts, [2], [GGUFValueType.ARRAY, kind]
        found: tuple[int, list[Any], list[int], list[GGUFValueType]] = super()._get_field_parts(orig_offs, raw_type)
        return found


class _Writer(GGUFWriter):
    """Also writes an array of no values: llama.cpp wants the merges of a vocabulary, which may be none."""

    def _pack_val(self, val: Any, vtype: GGUFValueType, *options: Any, **named: Any) -> bytes:
        if vtype == GGUFValueType.ARRAY and not val:
            return struct.pack("<IIQ", GGUFValueType.ARRAY, GGUFValueType.STRING, 0)
        found: bytes = super()._pack_val(val, vtype, *options, **named)
        return found


def _value_of(field: Any) -> Value:
    value = field.contents()
    if field.types[0] == GGUFValueType.FLOAT32:  # the shortest number that is this float32: 1e-5 is 1e-5
        return float(str(np.float32(value)))
    found: Value = value
    return found


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """What the package and NumPy raise on files that are not in order, as one line."""
    try:
        with np.errstate(over="raise"):  # a tensor's place is added up in 64 bits
            yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged file may make the package raise anything
        quoted = isinstance(error, KeyError) and error.args  # its text would be in quotes
        why = reason(ValueError(error.args[0]) if quoted else error)
        raise CheckpointError(
            f"{path} is not a GGUF file, is damaged, or is newer than the gguf package: {why}"
        ) from error
