"""A model's step as a list of instructions for the C code, and the buffers that they work in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from statewise.decoding.instructions import INSTRUCTIONS, N_FIELDS, Linear
from statewise.decoding.operands import (
    BLOCK,
    NOWHERE,
    Buffer,
    Instruction,
    Matrix,
    Place,
    Pointer,
    Real,
    Slot,
    c_name,
    is_struct,
    members,
    pointer,
    present,
)
from statewise.decoding.packing import Packed, pack
from statewise.errors import InputError
from statewise.models.quantised_parts import some_rows

Field = int | Tensor  # a tensor stands for its address, which a copy or another process has elsewhere
DTYPES = {"const float": torch.float32, "const double": torch.float64}


@dataclass(frozen=True)
class Weights:
    """In which precision the matrices are packed, each once, also where a model uses it twice."""

    precision: str
    group: int | None
    packed: dict[Hashable, Packed]

    def pack(self, weight: Tensor, rows: slice | None = None) -> Packed:
        """rows: of the weight, which alone are meant; their numbers are those that the whole would have."""
        key = id(weight) if rows is None else (id(weight), rows.start, rows.stop)
        part = weight if rows is None else some_rows(weight, rows)
        return self.kept(key, lambda: pack(part, self.precision, self.group))

    def kept(self, key: Hashable, make: Callable[[], Packed]) -> Packed:
        """What has been made of a weight of the model, or is made of it now. key: its ``id``, and which part it is"""
        if key not in self.packed:
            self.packed[key] = make()
        return self.packed[key]


class Program:
    """Instructions, their buffers, and all memory that they point to."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.n_state = 0  # entries of the table of states
        self.widths = [0, 0]  # floats of one sequence in all shared buffers, and in all local ones
        self.kept: list[Tensor] = []
        self._instructions: list[list[Field]] = []
        self._buffers: list[Buffer] = []
        self._places: dict[tuple[str, int, bool], Place] = {}

    def buffer(self, name: str, width: int, *, local: bool = False) -> Place:
        """Memory for ``width`` floats of each sequence; the same for the same name and width."""
        key = (name, width, local)
        if key not in self._places:
            stride = -(-width // BLOCK) * BLOCK
            self._places[key] = Place(len(self._buffers))
            self._buffers.append(Buffer(offset=self.widths[local], width=stride, local=local))
            self.widths[local] += stride
        return self._places[key]

    def state(self, n: int) -> Slot:
        """The first of n new entries of the table of states."""
        self.n_state += n
        return Slot(self.n_state - n)

    def matrix(self, weight: Tensor, rows: slice | None = None) -> Matrix:
        """The weight, or these rows of it, as it is packed."""
        return self.weights.pack(weight, rows).matrix()

    def emit(self, instruction: Instruction, *, wait: bool = False) -> None:
        """Appends an instruction; all threads meet after it if they are to ``wait``.

        Errors:  TypeError for an operand of another type or shape than it is declared with.
        """
        fields: list[Field] = [INSTRUCTIONS.index(type(instruction)), int(wait)]
        for name, kind in members(type(instruction)).items():
            fields += self._fields(instruction, name, kind)
        self._instructions.append(fields + [0] * (N_FIELDS - len(fields)))

    def linear(
        self,
        weight: Tensor | Packed,
        bias: Tensor | None,
        x: Place,
        y: Place,
        *,
        add: bool = False,
        alone: bool = False,
        scales: Tensor | None = None,
        wait: bool,
        rows: slice | None = None,
    ) -> None:
        """y = scales (W x + b), or y += it. rows: of the weight, which are W; None: all. alone: see :class:`Linear`"""
        packed = self.weights.pack(weight, rows) if isinstance(weight, Tensor) else weight
        linear = Linear(
            weight=packed.matrix(),
            bias=bias,
            scales=scales,
            input=x,
            rounded=self.rounded(packed),
            output=y,
            add=add,
            alone=alone,
            sums=self.buffer("sums", BLOCK, local=True),
        )
        self.emit(linear, wait=wait)

    def rounded(self, packed: Packed, n: int = 1) -> Place | None:
        """Where n inputs of a matrix are rounded to, if they are."""
        width = packed.rounded_width
        return self.buffer("rounded", n * width, local=True) if width else None

    def tables(self) -> tuple[Tensor, Tensor]:
        """The instructions and the buffers, as the C code takes them, for as long as this program lives.

        Errors:  InputError if the weights have been moved from the CPU.
        """
        rows = [[_address(field) for field in fields] for fields in self._instructions]
        return _table(rows), _table(self._buffers)

    def __len__(self) -> int:
        return len(self._instructions)

    def _fields(self, instruction: Instruction, name: str, declared: Any) -> list[Field]:
        value, kind = getattr(instruction, name), present(declared)
        if value is None and kind is not declared:
            return [NOWHERE, 0] if kind is Place else [0]
        where = f"{c_name(type(instruction))}.{name}"
        if (to := pointer(kind)) is not None:
            return [self._kept(where, to, value, instruction)]
        if not (isinstance(value, kind) if issubclass(kind, IntEnum) else type(value) is kind):
            raise TypeError(f"{where} is {type(value).__name__}, expected {kind.__name__}")
        if is_struct(kind):  # made by the program or by packing, which know what they put in
            return list(_flat(value))
        return list(struct.unpack("q", struct.pack("d", value))) if kind is Real else [int(value)]

    def _kept(self, where: str, to: Pointer, value: Any, instruction: Instruction) -> Tensor:
        """A copy of a tensor that C can read."""
        if not isinstance(value, Tensor):
            raise TypeError(f"{where} is {type(value).__name__}, expected a tensor")
        shape = tuple(axis and reduce(getattr, axis.split("."), instruction) for axis in to.shape or ())
        if value.ndim != len(shape) or any(size not in (n, None) for n, size in zip(value.shape, shape)):
            raise TypeError(f"{where} is {tuple(value.shape)}, expected {shape}")
        if to.to == "const double" and value.dtype != torch.float64:
            raise TypeError(f"{where} is {value.dtype}, expected {torch.float64}")
        self.kept.append(value.detach().to(DTYPES[to.to]).contiguous().clone())
        return self.kept[-1]


def _flat(value: tuple[Any, ...]) -> Iterator[Field]:
    for member in value:
        if isinstance(member, tuple):
            yield from _flat(member)
        else:
            yield 0 if member is None else member


def _address(field: Field) -> int:
    if not isinstance(field, Tensor):
        return field
    if field.device.type != "cpu" or not field.is_contiguous():
        raise InputError(f"the decoder's weights are on {field.device.type}; the step runs on the CPU: load them there")
    return field.data_ptr()


def _table(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device="cpu")
