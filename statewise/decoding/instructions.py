"""The instructions of a step, each declared once: what it does, its operands, what each operand is, and their order.

All else follows. ``Program.emit`` takes the operands by name and checks each. ``c_header.py`` declares the same structs
for C. ``native/build.py`` runs both files while it compiles, where there may be no PyTorch and no package yet: they
import the standard library alone.

A new instruction is a class here, and a function ``run_NAME`` in one of the C files beside.
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

    Scales: (blocks, groups, BLOCK) in bfloat16.
    """

    data: Annotated[Tensor, Pointer("const void")]
    scales: Annotated[Tensor, Pointer("const uint16_t")] | None
    precision: Precision
    n_rows: Count
    n_columns: Count
    group: Count  # of columns that share a scale


class History(NamedTuple):
    """The state of attention, in the table of states; what ends in _next is written.

    Keys and values: (batch, capacity, n_kv_heads, d_head), the rows of the batch ``stride`` floats apart; the others
    (batch,).
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


# -- instructions ------------------------------------------------------------------------------------------------------
@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
class Instruction:
    """Its operands, each by its name. Every subclass is an instruction."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True, eq=False)(cls)


class Embed(Instruction):
    """output = the row of the matrix that is the token's."""

    weight: Matrix
    output: Place


class Linear(Instruction):
    """output = W input + bias, or output += it. A thread does its share of the rows of W."""

    weight: Matrix
    bias: Annotated[Tensor, floats("weight.n_rows")] | None
    input: Place
    rounded: Place | None  # local: the input in integers, if the weight is
    output: Place
    add: Flag  # to what is there already: the residual stream
    sums: Place  # local, BLOCK wide


class Norm(Instruction):
    """A norm over each of n_groups equal parts, then times SiLU(gate) if there is a gate.

    With a local output every thread does all of it for itself; otherwise a thread does its share of the sequences.
    """

    kind: NormKind
    width: Count
    n_groups: Count
    epsilon: Real
    weight: Annotated[Tensor, floats("width")] | None
    bias: Annotated[Tensor, floats("width")] | None
    input: Place
    output: Place
    gate: Place | None


class AddRow(Instruction):
    """x += the row of the table for the position of the sequence.

    If x is local every thread does all of it for itself, otherwise its share of the columns.
    """

    width: Count
    table: Annotated[Tensor, floats(None, "width")]
    positions: Slot  # the address of the positions before the step
    x: Place


class Convolution(Instruction):
    """In place, x_c = f(bias_c + sum_i taps[i, c] u_{t - i, c}), f being SiLU or nothing.

    State: (batch, n_taps - 1, width), oldest first.
    """

    width: Count
    n_taps: Count
    taps: Annotated[Tensor, floats("n_taps", "width")]  # newest first
    bias: Annotated[Tensor, floats("width")] | None
    x: Place
    state: Slot
    silu: Flag


class Selective(Instruction):
    """Delta = softplus(dt + dt_bias); h_n = e^{Delta A_n} h_n + Delta B_n u, or (e^{Delta A_n} - 1) / A_n B_n u with
    zero-order hold; y = sum_n C_n h_n + D u, times SiLU(z).

    State: (batch, width, n_state).
    """

    width: Count
    n_state: Count
    zero_order_hold: Flag
    log_decay: Annotated[Tensor, floats("width", "n_state")]  # A log2(e)
    D: Annotated[Tensor, floats("width")]
    dt_bias: Annotated[Tensor, floats("width")]
    u: Place
    z: Place
    dt: Place
    B: Place
    C: Place
    y: Place  # may be u
    state: Slot


class Ssd(Instruction):
    """For each head Delta = clamp(softplus(dt + dt_bias)), a = e^{Delta A}; for each of its d_head channels
    h_n = a h_n + Delta x B_n, y = sum_n C_n h_n + D x, then times SiLU(z) if ``gated``.

    State: (batch, n_heads, d_head, n_state). A group of B and C serves consecutive heads.
    """

    n_heads: Count
    d_head: Count
    n_state: Count
    heads_per_group: Count
    log_decay: Annotated[Tensor, floats("n_heads")]  # A log2(e)
    D: Annotated[Tensor, floats("n_heads")]
    dt_bias: Annotated[Tensor, floats("n_heads")]
    low: Real  # what Delta is clamped to
    high: Real
    x: Place
    z: Place
    dt: Place
    B: Place
    C: Place
    y: Place  # may be x
    gated: Flag
    state: Slot


class DeltaMemory(Instruction):
    """For each head a = e^{softplus(raw + dt_bias) A}, b = most_beta sigmoid(beta), q and k at length 1, q over
    sqrt(d_key); for each of its d_value channels s_n = a s_n, s_n = s_n + b (v - sum_n s_n k_n) k_n, y = sum_n s_n q_n.

    State: (batch, n_heads, d_value, d_key). A group of q and k serves consecutive heads.
    """

    n_heads: Count
    d_value: Count
    d_key: Count
    heads_per_group: Count
    log_decay: Annotated[Tensor, floats("n_heads")]  # A log2(e); 0 for no decay
    dt_bias: Annotated[Tensor, floats("n_heads")]
    most_beta: Real
    epsilon: Real  # beside a squared length
    q: Place
    k: Place
    v: Place
    raw: Place
    beta: Place
    y: Place  # may be v
    state: Slot


class Diagonal(Instruction):
    """For each entry (i, j) of a head h_n = A_n h_n + B_n key_i value_j, in complex numbers, and
    output_j = sum_i query_i (sum_n Re(C_n h_n) + D key_i value_j).

    State: (batch, n_heads, d_head, d_head, n_state), the key's axis first.
    """

    n_heads: Count
    d_head: Count
    n_state: Count  # floats, two for each complex number
    same: Annotated[Tensor, floats("n_heads", "n_state")]  # Re A, Re A, ...
    crossed: Annotated[Tensor, floats("n_heads", "n_state")]  # -Im A, Im A, ...
    B: Annotated[Tensor, floats("n_heads", "n_state")]  # Re B, Im B, ...
    C: Annotated[Tensor, floats("n_heads", "n_state")]  # Re C, -Im C, ...
    D: Annotated[Tensor, floats("n_heads")]
    query: Place
    key: Place
    value: Place
    output: Place  # none of the others
    state: Slot


class Angles(Instruction):
    """output = cos(position * frequency) of all frequencies, then the sines."""

    n_angles: Count
    frequencies: Annotated[Tensor, doubles("n_angles")]
    output: Place  # local
    history: Slot


class Attention(Instruction):
    """Turns the new key and the queries, appends key and value to the history, and attends to it: softmax of
    scale q . k over the keys in the window."""

    n_heads: Count
    n_kv_heads: Count
    d_head: Count
    n_angles: Count  # features i and i + n_angles of a head are one pair
    window: Count  # 0: none
    scale: Real  # log2(e) times that of the products
    qkv: Place
    angles: Place
    output: Place
    scratch: Place  # local, d_head wide
    history: Slot


class Activation(Instruction):
    """x = f(x), or f(x) times the value in the columns after x if ``gated``."""

    kind: ActivationKind
    width: Count
    gated: Flag
    x: Place


class Multiply(Instruction):
    """x *= f(by)"""

    kind: ActivationKind
    width: Count
    x: Place
    by: Place


class Advance(Instruction):
    """The counts of each sequence's history, after all threads have attended. The first thread does it."""

    history: Slot


INSTRUCTIONS = tuple(Instruction.__subclasses__())


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


N_FIELDS = 2 + max(map(n_fields, INSTRUCTIONS))  # its kind, whether all wait after it, its operands


def c_name(declared: type) -> str:
    """AddRow -> add_row"""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", declared.__name__).lower()
