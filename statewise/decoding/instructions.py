"""The instructions of a step, each declared once: what it does, its operands, what each operand is, and their order.

All else follows. ``Program.emit`` takes the operands by name and checks each. ``c_header.py`` declares the same structs
for C. ``native/build.py`` runs these files while it compiles, where there may be no PyTorch and no package yet: they
import the standard library and each other alone.

A new instruction is a class here, or in ``recurrences.py`` if it has a recurrent state, and a function ``run_NAME`` in
one of the C files beside.
"""

# No `from __future__ import annotations`: the annotations are read when this runs
from typing import TYPE_CHECKING, Annotated, Any

from statewise.decoding.latent import LATENT
from statewise.decoding.memories import MEMORIES
from statewise.decoding.operands import (
    ActivationKind,
    Count,
    Flag,
    Instruction,
    Matrix,
    NormKind,
    Place,
    Real,
    RouterKind,
    Routes,
    Slot,
    doubles,
    floats,
    instructions_of,
    n_fields,
)
from statewise.decoding.recurrences import RECURRENCES
from statewise.decoding.turning import TURNING

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any


class Embed(Instruction):
    """output = the row of the matrix that is the token's."""

    weight: Matrix
    output: Place


class Linear(Instruction):
    """output = scales (W input + bias), or output += it. A thread does its share of the rows of W."""

    weight: Matrix
    bias: Annotated[Tensor, floats("weight.n_rows")] | None
    scales: Annotated[Tensor, floats("weight.n_rows")] | None
    input: Place
    rounded: Place | None  # local: the input in integers, if the weight is
    output: Place
    add: Flag  # to what is there already: the residual stream
    alone: Flag  # whether each token's numbers are those that it has alone, bit for bit, in every step
    sums: Place  # local, BLOCK wide


class Norm(Instruction):
    """A norm over each of n_groups equal parts, then times SiLU(gate), or sigmoid(gate), if there is one.

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
    gate_kind: ActivationKind = ActivationKind.SILU  # or SIGMOID


class AddRow(Instruction):
    """x += the row of the table for the position of the sequence.

    If x is local every thread does all of it for itself, otherwise its share of the columns.
    """

    width: Count
    table: Annotated[Tensor, floats(None, "width")]
    positions: Slot  # the address of the positions before the step
    x: Place


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


class Clear(Instruction):
    """x = 0"""

    width: Count
    x: Place


class Add(Instruction):
    """x += scale by, times the sigmoid of one number of each token if there is a gate."""

    width: Count
    scale: Real
    x: Place
    by: Place
    gate: Place | None


class Cap(Instruction):
    """x = cap tanh(x / cap)"""

    width: Count
    cap: Real
    x: Place


class Route(Instruction):
    """Chooses the experts of each token by their scores, and sorts the tokens by expert. Every thread does it all.

    The largest of ``asked`` are chosen, of the best groups alone, a group's score being the sum of its two best.
    """

    kind: RouterKind
    n_groups: Count
    n_groups_active: Count
    normalize: Flag  # by the sum of the chosen experts' weights
    smallest: Real  # added to that
    scale: Real
    bias: Annotated[Tensor, floats("routes.n_experts")] | None  # added to the weights where experts are chosen
    scores: Place
    every: Place  # local, n_experts wide: all weights
    asked: Place  # local, n_experts wide
    groups: Place  # local, n_groups wide
    chosen: Place  # local, twice n_active wide
    routes: Routes


class ExpertsIn(Instruction):
    """For each pair output = f(W input), or f(W input) (V input) if gated, with the maps of the pair's expert.

    The pairs' outputs lie one behind the other. Threads share the blocks of all experts that are read, each once.
    """

    weight: Matrix  # of one expert, behind which those of the others lie: if gated, W and V in turns of BLOCK rows
    d_hidden: Count
    kind: ActivationKind
    gated: Flag
    input: Place
    rounded: Place | None  # local: the input in integers, if the weight is
    gathered: Place  # local: the inputs of one expert, as wide as one of the two above
    output: Place
    stride: Count  # of a pair's output, in floats
    sums: Place  # local, twice BLOCK wide
    routes: Routes


class ExpertsOut(Instruction):
    """output = the sum over a token's pairs of weight W input, or output += it, in the order of the experts.

    A thread does its share of the rows of each expert's W, which it reads once.
    """

    weight: Matrix  # of one expert, behind which those of the others lie
    input: Place
    stride: Count  # of a pair's input, in floats
    rounded: Place | None  # local: the inputs in integers, if the weight is
    rounded_stride: Count
    output: Place
    add: Flag
    sums: Place  # local, BLOCK wide
    routes: Routes


class Advance(Instruction):
    """The counts of each sequence's history, after all threads have attended. The first thread does it."""

    history: Slot


INSTRUCTIONS = (*RECURRENCES, *MEMORIES, *LATENT, *TURNING, *instructions_of(__name__))
N_FIELDS = 2 + max(map(n_fields, INSTRUCTIONS))  # its kind, whether all wait after it, its operands
