"""The instructions of memories with gates: of Kimi Delta Attention, RWKV-7 and gated linear attention, of mLSTM and of
RG-LRU."""

# No `from __future__ import annotations`: the annotations are read when this runs
from typing import TYPE_CHECKING, Annotated, Any

from statewise.decoding.operands import Count, DecayKind, Flag, Instruction, Place, Real, Slot, floats, instructions_of

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any


class ChannelDecay(Instruction):
    """In place, x = e^{A f(x + bias)}, f being softplus, softplus of the negative, or the logistic function."""

    kind: DecayKind
    width: Count
    factor: Annotated[Tensor, floats("width")]  # A log2(e)
    bias: Annotated[Tensor, floats("width")] | None
    x: Place


class RankOneMemory(Instruction):
    """For each head and each of its d_value channels, a, read, erase, write and query being the head's and g its gain:
    held = sum_n s_n read_n, of a_n s_n in place of s_n if ``decayed``; s_n = a_n s_n + g (v write_n - held erase_n);
    y = scale sum_n s_n query_n.

    State: (batch, n_heads, d_value, d_key).
    """

    n_heads: Count
    d_value: Count
    d_key: Count
    decay: Place  # this and the next four: n_heads d_key wide
    read: Place | None  # without it nothing is looked up
    erase: Place | None  # without it, as write
    write: Place
    query: Place
    gain: Place | None  # n_heads wide; without it 1
    most_gain: Real  # by which all gains are multiplied
    decayed: Flag
    scale: Real
    v: Place
    y: Place  # may be v
    state: Slot


class TokenShift(Instruction):
    """output_m = x + mu_m (x of the token before - x), for each of n_mixes, one behind the other.

    State: (batch, 1, width), x.
    """

    width: Count
    n_mixes: Count
    mu: Annotated[Tensor, floats("n_mixes", "width")]
    x: Place
    output: Place  # n_mixes width wide
    state: Slot


class MixValues(Instruction):
    """In place, x += sigmoid(share) (other - x)"""

    width: Count
    share: Place
    other: Place
    x: Place


class Rwkv7Keys(Instruction):
    """For each head read = xi k at length 1, erase = sigmoid(rate) read, write = k (1 + (sigmoid(rate) - 1) alpha)."""

    n_heads: Count
    d_head: Count
    epsilon: Real  # beside a squared length
    xi: Annotated[Tensor, floats(None)]
    alpha: Annotated[Tensor, floats(None)]
    k: Place
    rate: Place
    read: Place  # this and the next two: local
    erase: Place
    write: Place


class Rwkv7Bonus(Instruction):
    """For each head x = gate (x + (sum_n r_n rho_n k_n) v)"""

    n_heads: Count
    d_head: Count
    rho: Annotated[Tensor, floats(None)]
    r: Place
    k: Place
    v: Place
    gate: Place
    x: Place  # local


class MlstmGates(Instruction):
    """For each head, the inputs of both gates capped: log i = cap tanh(raw_i / cap), log f = log sigmoid of raw_f, and
    m' = max(log f + m, log i); decay = f e^{m - m'}, input = i e^{-m'}, least = e^{-m'}.

    State: (batch, n_heads), m.
    """

    n_heads: Count
    cap: Real
    raw: Place  # raw_i, then raw_f
    decay: Place
    input: Place
    least: Place
    state: Slot


class MlstmMemory(Instruction):
    """For each head and each of its d_value channels, and a last one whose v is 1, s_n = decay s_n + input v k_n,
    y = sum_n s_n q_n / sqrt(d_key).

    State: (batch, n_heads, d_value + 1, d_key).
    """

    n_heads: Count
    d_value: Count
    d_key: Count
    q: Place
    k: Place
    v: Place
    decay: Place
    input: Place
    y: Place  # n_heads (d_value + 1) wide
    state: Slot


class MlstmRead(Instruction):
    """For each head the y of its channels over that of the last one, or over ``least`` if that is larger in size."""

    n_heads: Count
    d_value: Count
    epsilon: Real  # added to the divisor
    y: Place
    least: Place
    output: Place  # local


class RgLru(Instruction):
    """In place, a = e^{A r}, h = a h + sqrt(1 - a^2) i x, and h = i x at the first token of a document; i and r are the
    gates' sigmoids.

    State: (batch, width).
    """

    width: Count
    log_decay: Annotated[Tensor, floats("width")]  # A log2(e)
    least: Real  # of 1 - a^2
    input_gate: Place
    recurrence_gate: Place
    x: Place
    state: Slot
    n_read: Slot  # as of CountTokens


class CountTokens(Instruction):
    """Adds one for each token, after all threads have read the count. State: (batch,) int64."""

    n_read: Slot


MEMORIES = instructions_of(__name__)
