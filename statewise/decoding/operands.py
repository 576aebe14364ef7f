"""What the operands of a step's instructions can be: numbers, pointers, enumerations, structs. And how to ask a
declaration for its members.

``instructions.py`` and ``recurrences.py`` declare the instructions with these.
"""

# No `from __future__ import annotations`: the annotations are read when this runs
import re
from dataclasses import dataclass
from enum import IntEnum
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, dataclass_transform, get_args

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

BLOCK = 16  # rows of a packed matrix that lie together, and the unit of every share of work
TILE = 256  # columns whose x is rounded with one scale where the matrix is of integers: sums of them fit into 32 bits
HEADS = 4  # of latent attention that a key is read once for
LOGITS = -1  # in the place of a buffer
NOWHERE = -2  # there as well: an operand that is absent

# -- what an operand can be: one of these, an enumeration or a struct; with `| None` where it may be absent ------------
Count = int
Flag = bool
Real = float


class Slot(int):
    """An entry of the table of states, of which the instruction reads the one or the several that begin there."""


@dataclass(frozen=True)
class Pointer:
    """A pointer to numbers of a C type. shape: of a tensor; an axis is named like another operand (None: any)."""

    to: str
    shape: tuple[str | None, ...] | None = None


def floats(*shape: str | None) -> Pointer:
    return Pointer("const float", shape)


def doubles(*shape: str | None) -> Pointer:
    return Pointer("const double", shape)


class Precision(IntEnum):
    """The precision of the numbers of a matrix."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


class Prefetch(IntEnum):
    """How a step asks for weights ahead of their use: not at all, into all caches, or past those that can be spared."""

    NONE = 0
    NEAR = 1
    PASSING = 2


class NormKind(IntEnum):
    """x / sqrt(mean x^2 + eps) w;   (x - mean) / sqrt(var + eps) w + b;   x w + b"""

    RMS = 0
    LAYER = 1
    AFFINE = 2


class ActivationKind(IntEnum):
    GELU = 0
    GELU_TANH = 1
    RELU = 2
    SILU = 3
    TANH = 4
    RELU2 = 5
    SIGMOID = 6
    IDENTITY = 7


class DecayKind(IntEnum):
    """log(1 + e^x);   log(1 + e^-x);   1 / (1 + e^-x)"""

    SOFTPLUS = 0
    SOFTPLUS_OF_NEGATIVE = 1
    LOGISTIC = 2


class RouterKind(IntEnum):
    """An expert's weight: its part of the softmax of all scores, or of the chosen experts' alone, or its sigmoid."""

    SOFTMAX_OF_ALL = 0
    SOFTMAX_OF_CHOSEN = 1
    SIGMOID_OF_EACH = 2


# -- structs -----------------------------------------------------------------------------------------------------------
class Buffer(NamedTuple):
    """One row of floats for each sequence. Offset and width in floats of one sequence; local: one for each thread."""

    offset: Count
    width: Count
    local: Flag


class Place(NamedTuple):
    """A buffer, and a first column in it."""

    buffer: Count
    column: Count = 0

    def after(self, n: int) -> "Place":
        """The same buffer, n columns on."""
        return Place(self.buffer, self.column + n)


class Matrix(NamedTuple):
    """(n_rows, n_columns), as packing.py writes it and decode_linear.h reads it.

    Scales: (blocks, groups, BLOCK) in bfloat16, or in float32 if they are ``wide``; offsets alike, in float32.
    """

    data: Annotated[Tensor, Pointer("const void")]
    scales: Annotated[Tensor, Pointer("const void")] | None
    offsets: Annotated[Tensor, Pointer("const float")] | None
    precision: Precision
    n_rows: Count
    n_columns: Count
    group: Count  # of columns that share a scale
    wide: Flag


class Routes(NamedTuple):
    """Which tokens each expert reads, of all tokens of a step together. Places of local buffers.

    A pair is a token and one of the experts that it has chosen; pairs are in the order of the experts, and those of an
    expert in that of the tokens.
    """

    n_experts: Count
    n_active: Count  # of each token
    weights: Place  # n_active wide: of each pair
    tokens: Place  # alike, as whole numbers: whose pair it is
    begins: Place  # n_experts + 1 wide: where each expert's pairs begin, and how many pairs there are


class History(NamedTuple):
    """The state of attention, in the table of states; what ends in _next is written.

    Keys and values: (batch, capacity, n_kv_heads, d_head), the rows of the batch ``stride`` floats apart; the others
    (batch,).

    Where ``source`` is there, the rows are continuations of prefixes that they share: what is in the slots before a
    row's ``border`` lies in the row ``prefix_row`` of the prefix, and the slot ``border + i`` in slot i of the row
    ``source[row, i]`` of the keys and values.
    """

    keys: Annotated[int, Pointer("float")]
    values: Annotated[int, Pointer("float")]
    key_stride: Count
    value_stride: Count
    start: Annotated[int, Pointer("const int64_t")]
    end: Annotated[int, Pointer("const int64_t")]
    position: Annotated[int, Pointer("const int64_t")]
    start_next: Annotated[int, Pointer("int64_t")]
    end_next: Annotated[int, Pointer("int64_t")]
    position_next: Annotated[int, Pointer("int64_t")]
    filled: Annotated[int, Pointer("int64_t")]
    prefix_keys: Annotated[int, Pointer("const float")] = 0
    prefix_values: Annotated[int, Pointer("const float")] = 0
    prefix_key_stride: Count = 0
    prefix_value_stride: Count = 0
    prefix_row: Annotated[int, Pointer("const int64_t")] = 0
    border: Annotated[int, Pointer("const int64_t")] = 0
    source: Annotated[int, Pointer("const int64_t")] = 0
    source_stride: Count = 0


# -- an instruction ----------------------------------------------------------------------------------------------------
@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
class Instruction:
    """Its operands, each by its name. Every subclass is an instruction."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True, eq=False)(cls)


def instructions_of(module: str) -> tuple[type[Instruction], ...]:
    """Those that a module has declared, in their order."""
    return tuple(one for one in Instruction.__subclasses__() if one.__module__ == module)


# -- what each is ------------------------------------------------------------------------------------------------------
def members(declared: type) -> dict[str, Any]:
    """The names of a struct's or an instruction's members, and what each is."""
    return dict(declared.__annotations__)


def present(kind: Any) -> Any:
    """What a member is where it is not absent."""
    kinds = get_args(kind)
    return next(one for one in kinds if one is not NoneType) if NoneType in kinds else kind


def pointer(kind: Any) -> Pointer | None:
    return next((mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Pointer)), None)


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, (tuple, Instruction))


def n_fields(kind: Any) -> int:
    """Numbers of 64 bits that a member, a struct or an instruction takes."""
    kind = present(kind)
    return sum(map(n_fields, members(kind).values())) if is_struct(kind) else 1


def c_name(declared: type) -> str:
    """AddRow -> add_row"""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", declared.__name__).lower()
