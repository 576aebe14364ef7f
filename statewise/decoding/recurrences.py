"""The instructions that go through time: each has a state of fixed size for each sequence, in the table of states."""

# No `from __future__ import annotations`: the annotations are read when this runs
from typing import TYPE_CHECKING, Annotated, Any

from statewise.decoding.operands import Count, Flag, Instruction, Place, Real, Slot, floats, instructions_of

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any


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


RECURRENCES = instructions_of(__name__)
