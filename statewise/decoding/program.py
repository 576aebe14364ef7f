"""A model's step as a list of instructions for the C code: what decode_program.h reads, written."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.decoding.packing import BLOCK, Packed, pack
from statewise.errors import InputError

# In the order of decode_program.h
INSTRUCTIONS = (
    "embed",
    "linear",
    "norm",
    "add_row",
    "convolution",
    "selective",
    "ssd",
    "diagonal",
    "angles",
    "attention",
    "activation",
    "advance",
)
N_FIELDS = 32
LOGITS = -1


class Place(NamedTuple):
    """A buffer, and a first column in it."""

    buffer: int
    column: int = 0

    def after(self, n: int) -> Place:
        """The same buffer, n columns on."""
        return Place(self.buffer, self.column + n)


Operand = int | float | bool | Place | Packed | Tensor | None
Field = int | Tensor  # a tensor stands for its address, which a copy or another process has elsewhere


@dataclass(frozen=True)
class Weights:
    """In which precision the matrices are packed, each once, also where a model uses it twice."""

    precision: str
    group: int | None
    packed: dict[int, Packed]

    def pack(self, weight: Tensor) -> Packed:
        if id(weight) not in self.packed:
            self.packed[id(weight)] = pack(weight, self.precision, self.group)
        return self.packed[id(weight)]


class Program:
    """Instructions, the buffers that they work in, and all memory that they point to."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.n_state = 0  # entries of the table of states
        self.widths = [0, 0]  # floats of one sequence in all shared buffers, and in all local ones
        self.kept: list[Tensor] = []
        self._instructions: list[list[Field]] = []
        self._buffers: list[tuple[int, int, int]] = []
        self._places: dict[tuple[str, int, bool], Place] = {}

    def buffer(self, name: str, width: int, *, local: bool = False) -> Place:
        """Memory for ``width`` floats of each sequence; the same for the same name and width."""
        key = (name, width, local)
        if key not in self._places:
            stride = -(-width // BLOCK) * BLOCK
            self._places[key] = Place(len(self._buffers))
            self._buffers.append((self.widths[local], stride, int(local)))
            self.widths[local] += stride
        return self._places[key]

    def state(self, n: int) -> int:
        """The first of n new entries of the table of states."""
        self.n_state += n
        return self.n_state - n

    def emit(self, kind: str, *operands: Operand, wait: bool = False) -> None:
        """Appends an instruction; all threads meet after it if they are to ``wait``."""
        fields: list[Field] = [INSTRUCTIONS.index(kind), int(wait)]
        for operand in operands:
            fields += self._fields(operand)
        self._instructions.append(fields + [0] * (N_FIELDS - len(fields)))

    def linear(self, weight: Tensor, bias: Tensor | None, x: Place, y: Place, *, add: bool = False, wait: bool) -> None:
        """y = W x + b, or y += W x + b."""
        sums = self.buffer("sums", BLOCK, local=True)
        self.emit("linear", self.weights.pack(weight), bias, x, y, add, sums, wait=wait)

    def tables(self) -> tuple[Tensor, Tensor]:
        """The instructions and the buffers, as the C code takes them, for as long as this program lives.

        Errors:  InputError if the weights have been moved from the CPU.
        """
        rows = [[_address(field) for field in fields] for fields in self._instructions]
        return _table(rows), _table(self._buffers)

    def __len__(self) -> int:
        return len(self._instructions)

    def _fields(self, operand: Operand) -> list[Field]:
        if operand is None:
            return [0]
        if isinstance(operand, float):
            return list(struct.unpack("q", struct.pack("d", operand)))
        if isinstance(operand, Packed):
            return operand.operands()
        if isinstance(operand, Place):
            return list(operand)
        if isinstance(operand, Tensor):
            dtype = torch.float64 if operand.dtype == torch.float64 else torch.float32
            self.kept.append(operand.detach().to(dtype).contiguous().clone())
            return [self.kept[-1]]
        return [int(operand)]


def _address(field: Field) -> int:
    if not isinstance(field, Tensor):
        return field
    if field.device.type != "cpu" or not field.is_contiguous():
        raise InputError(f"the decoder's weights are on {field.device.type}; the step is for the CPU, load them there")
    return field.data_ptr()


def _table(rows: list[list[int]] | list[tuple[int, int, int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device="cpu")
