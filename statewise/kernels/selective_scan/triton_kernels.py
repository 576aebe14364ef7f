"""The kernel of the selective scan in Triton, and what its adjoint (triton_adjoint.py) shares with it.

A program has some channels of a row, all of one group of B and C, with all of their states in its registers, and walks
through the steps one after the other: a step is one exponential and one multiply-add a state. What a step reads is
asked for STEPS steps before it is used, for a warp has few others beside it to wait with.

Letters: c channels, i states; a = exp(Delta A), p = a h_{t-1}, g the gradient of h. Tiles are (channels, states).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["length", "each", "programs", "chunks"])
def scan_forward(
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, y, state, kept,
    length, d, each, programs, chunks, u_row, u_step, dt_row, dt_step, gate_row, gate_step,
    n: tl.constexpr, groups: tl.constexpr, SOFTPLUS: tl.constexpr, EXACT: tl.constexpr, OWN: tl.constexpr,
    TIME: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, N: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """y (b, length, d); state (b, d, N); kept (b, chunks, n, d), the states before the chunks of TIME steps, or None.

    u, dt, gate  (b, length, d) with strides of their own; A (d, N); B, C (b, length, groups, n); h0 (b, d, N)
    each         channels of a group, in ``programs`` programs; OWN if it is one channel, and a program has many groups
    EXACT        what multiplies B u is not Delta but its exact hold
    N            a power of two, no less than n, so that states lie in fours; A is -1 where there are none, h0 is 0
    WHOLE        no program has fewer than WIDTH channels
    """
    row = tl.program_id(0).to(tl.int64)
    nothing = row * 0  # in 64 bits: what is counted from it cannot overflow
    i = tl.arange(0, N).to(tl.int64)
    c, channel = channels_of(d, each, programs, OWN, WIDTH, WHOLE)
    at_state, real, rate = states_of(A, row, c, i, d, n, N)
    h = tl.load(h0 + at_state)
    inside = are_inside(i, c, n, OWN)
    skip, bias = per_channel(D, c), per_channel(dt_bias, c)
    at = starts_of(u, dt, B, C, gate, segments, row, c, i, length, programs, u_row, dt_row, gate_row, groups, n, OWN)
    by = strides_of(u_step, dt_step, gate_step, nothing, groups, n)
    at_y = y + (row * length * d + c)
    at_kept = i[None, :] * d + c[:, None]
    if kept is not None:
        at_kept += row * chunks * n * d
    before = nothing
    length = nothing + length
    whole = length // STEPS
    now = ()
    for j in tl.static_range(STEPS):
        now = now + (read_step(at, by, tl.minimum(nothing + j, length - 1), inside, gate, segments, n, N),)  # type: ignore[assignment]
    for part in range(0, whole):
        t = (nothing + part) * STEPS
        if kept is None:
            pass
        elif part % (TIME // STEPS) == 0:
            tl.store(kept + (at_kept + (nothing + part // (TIME // STEPS)) * n * d), h, mask=real)
        following = tl.minimum(nothing + part + 1, nothing + whole - 1) * STEPS
        then = ()
        for j in tl.static_range(STEPS):
            h, before, out = take_step(
                now[j], h, before, rate, real, skip, bias, D, gate, segments, n, N, SOFTPLUS, EXACT
            )
            tl.store(at_y + (t + j) * d, out.to(y.dtype.element_ty), mask=channel)
            # asked for where the numbers of this step are no longer needed, whose registers they can have
            then = then + (read_step(at, by, following + j, inside, gate, segments, n, N),)  # type: ignore[assignment]
        now = then
    for step in range(whole * STEPS, length):
        t = nothing + step
        if kept is None:
            pass
        elif step % TIME == 0:
            tl.store(kept + (at_kept + (nothing + step // TIME) * n * d), h, mask=real)
        given = read_step(at, by, t, inside, gate, segments, n, N)
        h, before, out = take_step(given, h, before, rate, real, skip, bias, D, gate, segments, n, N, SOFTPLUS, EXACT)
        tl.store(at_y + t * d, out.to(y.dtype.element_ty), mask=channel)
    tl.store(state + at_state, h, mask=channel[:, None] & (i >= 0)[None, :])


@triton.jit
def channels_of(d, each, programs, OWN: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """A program's channels, and which of them are: those beyond the last are the last once more, with
    the same states, and with gradients of 0, of which none is written."""
    inside = tl.arange(0, WIDTH).to(tl.int64)
    first, last = tl.program_id(1).to(tl.int64) * 0, d
    if not OWN:
        first, last = (tl.program_id(1) // programs).to(tl.int64) * each, each
    c = (tl.program_id(1) % programs).to(tl.int64) * WIDTH + inside
    if WHOLE:
        return first + c, inside >= 0
    else:
        return first + tl.minimum(c, last - 1), c < last


@triton.jit
def states_of(A, row, c, i, d, n: tl.constexpr, N: tl.constexpr):
    """Where a row's states are in (b, d, N), which of a channel's are, and their A."""
    at = c[:, None] * N + i[None, :]
    return row * d * N + at, (c >= 0)[:, None] & (i < n)[None, :], tl.load(A + at)


@triton.jit
def are_inside(i, c, n: tl.constexpr, OWN: tl.constexpr):
    """Which states of B and C at a step are."""
    if OWN:
        return (c >= 0)[:, None] & (i < n)[None, :]
    else:
        return i < n


@triton.jit
def per_channel(m, c):
    if m is None:
        return tl.zeros(c.shape, tl.float32)
    else:
        return tl.load(m + c)


@triton.jit
def starts_of(
    u, dt, B, C, gate, segments, row, c, i, length, programs, u_row, dt_row, gate_row,
    groups: tl.constexpr, n: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """Where what a step reads is for step 0: vectors over channels and over states, and tiles of B and C if OWN."""
    if OWN:
        at_key = (row * length * groups + c[:, None]) * n + i[None, :]
    else:
        at_key = (row * length * groups + (tl.program_id(1) // programs).to(tl.int64)) * n + i
    at_gate, at_id = u, u
    if gate is not None:
        at_gate = gate + (row * gate_row + c)
    if segments is not None:
        at_id = segments + row * length
    return u + (row * u_row + c), dt + (row * dt_row + c), B + at_key, C + at_key, at_gate, at_id


@triton.jit
def strides_of(u_step, dt_step, gate_step, nothing, groups: tl.constexpr, n: tl.constexpr):
    return nothing + u_step, nothing + dt_step, nothing + gate_step, groups * n


@triton.jit
def read_step(at, by, t, inside, gate, segments, n: tl.constexpr, N: tl.constexpr):
    """dt, u, gate, B, C and the segment of step t; for a gate and a segment that are not given some number."""
    at_u, at_dt, at_B, at_C, at_gate, at_id = at
    u_step, dt_step, gate_step, key_step = by
    x = tl.load(at_u + t * u_step)
    z, now = x, t
    if gate is not None:
        z = tl.load(at_gate + t * gate_step)
    if segments is not None:
        now = tl.load(at_id + t)
    if n == N:
        keys, queries = tl.load(at_B + t * key_step), tl.load(at_C + t * key_step)
    else:
        keys = tl.load(at_B + t * key_step, mask=inside, other=0.0)
        queries = tl.load(at_C + t * key_step, mask=inside, other=0.0)
    return tl.load(at_dt + t * dt_step), x, z, keys, queries, now


@triton.jit
def segment_before(at, t, segments):
    """The segment before step t; before the first step there was segment 0."""
    if segments is not None:
        return tl.load(at[5] + (t - 1), mask=t > 0, other=0)
    else:
        return t


@triton.jit
def row_of(m, OWN: tl.constexpr):
    """B or C of a step as a tile, or as a row of one."""
    if OWN:
        return m.to(tl.float32)
    else:
        return m.to(tl.float32)[None, :]


@triton.jit
def take_step(
    given, h, before, rate, real, skip, bias, D, gate, segments,
    n: tl.constexpr, N: tl.constexpr, SOFTPLUS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The state after a step, the step's segment, and what it gives."""
    raw, x, z, keys, queries, now = given
    x = x.to(tl.float32)
    delta = step_size(raw, bias, SOFTPLUS)
    a = tl.exp2(delta[:, None] * (rate * LOG2_E))
    h = passed_on(a * h, now == before, segments) + added_by(delta, rate, x, keys, EXACT)
    if n != N:
        h = tl.where(real, h, 0.0)
    out = tl.sum(h * row_of(queries, len(queries.shape) == 2), 1)
    if D is not None:
        out += x * skip
    if gate is not None:
        z = z.to(tl.float32)
        out *= z * tl.sigmoid(z)
    return h, now, out


@triton.jit
def passed_on(m, passes, segments):
    """Where nothing passes, nothing does, not even a NaN or an infinity."""
    if segments is not None:
        return tl.where(passes, m, 0.0)
    else:
        return m


@triton.jit
def added_by(delta, rate, x, keys, EXACT: tl.constexpr):
    keys = row_of(keys, len(keys.shape) == 2)
    if EXACT:
        return hold_of(delta, rate) * x[:, None] * keys
    else:
        return (delta * x)[:, None] * keys


@triton.jit
def step_size(raw, bias, SOFTPLUS: tl.constexpr):
    """Delta; log(1 + e) by Kahan's quotient, which mends the rounding of 1 + e."""
    delta = raw.to(tl.float32) + bias
    if SOFTPLUS:
        e = tl.exp(tl.minimum(delta, 40.0))
        w = 1.0 + e
        smooth = tl.where(w == 1.0, e, tl.log(w) * (e / tl.where(w == 1.0, 1.0, w - 1.0)))
        delta = tl.where(delta > 40.0, delta, smooth)
    return delta


@triton.jit
def hold_of(delta, rate):
    """(e^{Delta A} - 1) / A as reference.py has it: by its series where Delta A is small."""
    z = delta[:, None] * rate
    near = tl.abs(z) < 1.0
    short = tl.where(near, z, 0.0)
    series = tl.full(z.shape, 1.0, tl.float32)
    for k in tl.static_range(12, 1, -1):
        series = 1.0 + short * series * (1.0 / k)
    far = tl.where(near, 1.0, rate)
    return tl.where(near, delta[:, None] * series, (tl.exp(tl.where(near, 1.0, z)) - 1.0) / far)


@triton.jit
def slope_of_hold(delta, rate):
    """The derivative of the exact hold by A."""
    delta = delta[:, None]
    z = delta * rate
    near = tl.abs(z) < 1.0
    short = tl.where(near, z, 0.0)
    series = tl.full(z.shape, 1.0, tl.float32)
    for k in tl.static_range(12, 0, -1):
        series = 1.0 + short * series * ((k + 1) / (k * (k + 2)))
    far = tl.where(near, 1.0, rate)
    e = tl.exp(tl.where(near, 1.0, z))
    return tl.where(near, delta * delta * (series * 0.5), (delta * e - (e - 1.0) / far) / far)
