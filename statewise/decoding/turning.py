"""The instructions of Mamba-3, whose memory turns by angles that each token selects."""

# No `from __future__ import annotations`: the annotations are read when this runs
from typing import TYPE_CHECKING, Annotated, Any

from statewise.decoding.operands import Count, Flag, Instruction, Place, Real, Slot, floats, instructions_of

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any


class TurningKeys(Instruction):
    """For each head Delta = softplus(dt + dt_bias), lambda = sigmoid(share), alpha = e^{-Delta max(f(rate), least)};
    with R the turn back by pi tanh(angle) Delta, alpha R s = same_n s_n + crossed_n s_m, n and m being a pair;
    k = key + key_bias, write = lambda Delta k, past = (1 - lambda) Delta alpha R (k of the token before),
    query = query_in + query_bias.

    Threads share the heads. State: (batch, n_heads, n_ranks, d_state), k.
    """

    n_heads: Count
    n_ranks: Count
    n_groups: Count
    d_state: Count
    n_angles: Count
    heavy_tail: Flag  # f(x) is 1 + x above 0 and 1 / (1 - x) below; otherwise softplus
    least: Real
    dt_bias: Annotated[Tensor, floats("n_heads")]
    key_bias: Annotated[Tensor, floats("n_heads", None)]  # each head's are those of its ranks
    query_bias: Annotated[Tensor, floats("n_heads", None)]
    dt: Place  # this and the next two: n_heads wide
    rate: Place
    share: Place
    angle: Place
    turns: Place  # local, n_angles wide
    key: Place  # this and the next: of each rank its groups, each of which serves consecutive heads
    query_in: Place
    same: Place  # this and the next: n_heads d_state wide
    crossed: Place
    past: Place  # this and the next two: n_heads n_ranks d_state wide
    write: Place
    query: Place
    state: Slot


class TurningMemory(Instruction):
    """For each head and each of its d_head channels, with v_r = scale_r v, and v'_r the same of the token before:
    s = alpha R s + sum_r (v'_r past_r + v_r write_r), y_r = sum_n s_n query_rn + D v_r.

    States: (batch, n_heads, d_head, d_state), s; (batch, n_heads, d_head), v.
    """

    n_heads: Count
    n_ranks: Count
    d_head: Count
    d_state: Count
    D: Annotated[Tensor, floats("n_heads")]
    scales: Annotated[Tensor, floats("n_heads", "n_ranks", "d_head")] | None  # without it 1
    same: Place  # this and the next four: as of TurningKeys
    crossed: Place
    past: Place
    write: Place
    query: Place
    v: Place
    inputs: Place  # local, 2 n_ranks wide
    y: Place  # rank by rank, n_heads d_head wide each; of one rank, may be v
    state: Slot
    last: Slot


class JoinRanks(Instruction):
    """output = sum_r out_scale_r y_r SiLU(gate_scale_r z). If the output is local every thread does all of it."""

    width: Count
    n_ranks: Count
    gate_scales: Annotated[Tensor, floats("n_ranks", "width")]
    out_scales: Annotated[Tensor, floats("n_ranks", "width")]
    z: Place
    y: Place  # rank by rank
    output: Place  # may be the y of the first rank


TURNING = instructions_of(__name__)
