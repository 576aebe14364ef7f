"""The kernels of the selective scan in Triton, forwards and backwards.

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
    c, channel = _channels(d, each, programs, OWN, WIDTH, WHOLE)
    at_state, real, rate = _states(A, row, c, i, d, n, N)
    h = tl.load(h0 + at_state)
    inside = _inside(i, c, n, OWN)
    skip, bias = _per_channel(D, c), _per_channel(dt_bias, c)
    at = _starts(u, dt, B, C, gate, segments, row, c, i, length, programs, u_row, dt_row, gate_row, groups, n, OWN)
    by = _by(u_step, dt_step, gate_step, nothing, groups, n)
    at_y = y + (row * length * d + c)
    at_kept = i[None, :] * d + c[:, None]
    if kept is not None:
        at_kept += row * chunks * n * d
    before = nothing
    length = nothing + length
    whole = length // STEPS
    now = ()
    for j in tl.static_range(STEPS):
        now = now + (_read(at, by, tl.minimum(nothing + j, length - 1), inside, gate, segments, n, N),)  # type: ignore[assignment]
    for part in range(0, whole):
        t = (nothing + part) * STEPS
        if kept is None:
            pass
        elif part % (TIME // STEPS) == 0:
            tl.store(kept + (at_kept + (nothing + part // (TIME // STEPS)) * n * d), h, mask=real)
        following = tl.minimum(nothing + part + 1, nothing + whole - 1) * STEPS
        then = ()
        for j in tl.static_range(STEPS):
            h, before, out = _step(now[j], h, before, rate, real, skip, bias, D, gate, segments, n, N, SOFTPLUS, EXACT)
            tl.store(at_y + (t + j) * d, out.to(y.dtype.element_ty), mask=channel)
            # asked for where the numbers of this step are no longer needed, whose registers they can have
            then = then + (_read(at, by, following + j, inside, gate, segments, n, N),)  # type: ignore[assignment]
        now = then
    for step in range(whole * STEPS, length):
        t = nothing + step
        if kept is None:
            pass
        elif step % TIME == 0:
            tl.store(kept + (at_kept + (nothing + step // TIME) * n * d), h, mask=real)
        given = _read(at, by, t, inside, gate, segments, n, N)
        h, before, out = _step(given, h, before, rate, real, skip, bias, D, gate, segments, n, N, SOFTPLUS, EXACT)
        tl.store(at_y + t * d, out.to(y.dtype.element_ty), mask=channel)
    tl.store(state + at_state, h, mask=channel[:, None] & (i >= 0)[None, :])


@triton.jit(do_not_specialize=["length", "each", "programs", "chunks", "rows"])
def scan_backward(
    grad, grad_state, kept, u, dt, A, B, C, D, gate, dt_bias, segments,
    d_u, d_dt, d_A, d_B, d_C, d_h0, d_D, d_gate, d_bias, begun,
    length, d, each, programs, chunks, rows,
    grad_row, grad_step, u_row, u_step, dt_row, dt_step, gate_row, gate_step,
    n: tl.constexpr, groups: tl.constexpr, SOFTPLUS: tl.constexpr, EXACT: tl.constexpr, OWN: tl.constexpr,
    TIME: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, N: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The chunks from the last to the first. In each forwards from the state that was kept, which leaves the states
    before every STEPS steps in ``begun``; then these from the last to the first, forwards once more with the states in
    registers, and backwards.

    d_u, d_dt, d_gate  (b, length, d)     d_A, d_h0 (b, d, N)     d_D, d_bias (b, d): d_A too to be summed over rows
    d_B, d_C           (programs, b, length, groups, N): to be summed over the programs of a group
    begun              (b, TIME / STEPS + STEPS, d, N), memory for states
    """
    row = tl.program_id(0).to(tl.int64)
    nothing = row * 0
    i = tl.arange(0, N).to(tl.int64)
    c, channel = _channels(d, each, programs, OWN, WIDTH, WHOLE)
    at_state, real, rate = _states(A, row, c, i, d, n, N)
    inside = _inside(i, c, n, OWN)
    skip, bias = _per_channel(D, c), _per_channel(dt_bias, c)
    at = _starts(u, dt, B, C, gate, segments, row, c, i, length, programs, u_row, dt_row, gate_row, groups, n, OWN)
    by = _by(u_step, dt_step, gate_step, nothing, groups, n)
    at_grad, by_grad = grad + (row * grad_row + c), nothing + grad_step
    slots: tl.constexpr = TIME // STEPS + STEPS
    at_begun = begun + ((row * slots * d + c[:, None]) * N + i[None, :])
    by_begun = (nothing + d) * N
    at_kept = kept + (row * chunks * n * d + i[None, :] * d + c[:, None])
    along = row * length * d + c
    at_gate = d_u
    if gate is not None:
        at_gate = d_gate + along
    if OWN:
        at_key = (row * length * groups + c[:, None]) * N + i[None, :]
        key = channel[:, None] & (i >= 0)[None, :]
    else:
        share = (tl.program_id(1) % programs).to(tl.int64)
        group = (tl.program_id(1) // programs).to(tl.int64)
        # a tile of one address a state, of which one channel writes: so the sum stays in the registers where it is
        at_key = ((share * rows + row) * length * groups + group) * N + i[None, :] + c[:, None] * 0
        key = (tl.arange(0, WIDTH) == 0)[:, None] & (i >= 0)[None, :]
    into = (d_u + along, d_dt + along, at_gate, d_B + at_key, d_C + at_key)
    fixed = (rate, real, channel, key, skip, bias)
    g = tl.where(channel[:, None], tl.load(grad_state + at_state), 0.0)
    sums = (tl.zeros((WIDTH, N), tl.float32), tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32))
    # kept lies channel by channel: read from it, states would be in another order in the registers of all that follows
    at_first = at_begun + (slots - 1) * by_begun
    tl.store(at_first, tl.load(at_kept + (nothing + chunks - 1) * n * d, mask=real, other=0.0))
    tl.debug_barrier()
    for back in range(0, chunks):
        chunk = nothing + chunks - 1 - back
        begin = chunk * TIME
        count = tl.minimum(nothing + length - begin, TIME)
        whole = count // STEPS
        h = tl.load(at_first)
        before = _before(at, begin, segments)
        now = ()
        for j in tl.static_range(STEPS):
            t = begin + tl.minimum(nothing + j, count - 1)
            now = now + (_read(at, by, t, inside, gate, segments, n, N),)  # type: ignore[assignment]
        parts = (count - 1) // STEPS  # before the last
        for part in range(0, parts):
            tl.store(at_begun + part * by_begun, h)
            following = begin + tl.minimum(part + 1, parts - 1) * STEPS
            then = ()
            for j in tl.static_range(STEPS):
                h, before, _ = _step(
                    now[j], h, before, rate, real, skip, bias, None, None, segments, n, N, SOFTPLUS, EXACT
                )
                then = then + (_read(at, by, following + j, inside, gate, segments, n, N),)  # type: ignore[assignment]
            now = then
        tl.store(at_begun + parts * by_begun, h)
        for step in range(whole * STEPS, count):
            tl.store(at_begun + (TIME // STEPS + step - whole * STEPS) * by_begun, h)
            given = _read(at, by, begin + step, inside, gate, segments, n, N)
            h, before, _ = _step(given, h, before, rate, real, skip, bias, None, None, segments, n, N, SOFTPLUS, EXACT)
        tl.debug_barrier()  # what one thread has left another may read
        tl.store(at_first, tl.load(at_kept + tl.maximum(chunk - 1, 0) * n * d, mask=real, other=0.0))
        for step in range(0, count - whole * STEPS):
            t = begin + count - 1 - step
            h = tl.load(at_begun + (TIME // STEPS + count - 1 - step - whole * STEPS) * by_begun)
            given = (_read(at, by, t, inside, gate, segments, n, N),)
            slope = (tl.load(at_grad + t * by_grad),)
            before = _before(at, t, segments)
            g, sums = _back(
                given, slope, t, before, h, g, sums, fixed, into, d, D, gate, dt_bias, segments, groups, n, N,
                SOFTPLUS, EXACT, OWN, 1,
            )  # fmt: skip
        t = begin + tl.maximum(whole - 1, 0) * STEPS
        h = tl.load(at_begun + tl.maximum(whole - 1, 0) * by_begun)
        before = _before(at, t, segments)
        now, slopes = (), ()
        for j in tl.static_range(STEPS):
            t_j = tl.minimum(t + j, begin + count - 1)
            now = now + (_read(at, by, t_j, inside, gate, segments, n, N),)  # type: ignore[assignment]
            slopes = slopes + (tl.load(at_grad + t_j * by_grad),)  # type: ignore[assignment]
        for part in range(0, whole):
            t = begin + (whole - 1 - part) * STEPS
            earlier = tl.maximum(whole - 2 - part, 0)
            then, slopes_then = (), ()
            for j in tl.static_range(STEPS):
                t_j = begin + earlier * STEPS + j
                then = then + (_read(at, by, t_j, inside, gate, segments, n, N),)  # type: ignore[assignment]
                slopes_then = slopes_then + (tl.load(at_grad + t_j * by_grad),)  # type: ignore[assignment]
            h_then = tl.load(at_begun + earlier * by_begun)
            before_then = _before(at, begin + earlier * STEPS, segments)
            g, sums = _back(
                now, slopes, t, before, h, g, sums, fixed, into, d, D, gate, dt_bias, segments, groups, n, N,
                SOFTPLUS, EXACT, OWN, STEPS,
            )  # fmt: skip
            now, slopes, h, before = then, slopes_then, h_then, before_then
        tl.debug_barrier()
    to_A, to_D, to_bias = sums
    tl.store(d_A + at_state, to_A, mask=channel[:, None] & (i >= 0)[None, :])
    tl.store(d_h0 + at_state, g, mask=channel[:, None] & (i >= 0)[None, :])
    if D is not None:
        tl.store(d_D + (row * d + c), to_D, mask=channel)
    if dt_bias is not None:
        tl.store(d_bias + (row * d + c), to_bias, mask=channel)


@triton.jit
def _back(
    given, slopes, begin, before, h, g, sums, fixed, into, d, D, gate, dt_bias, segments,
    groups: tl.constexpr, n: tl.constexpr, N: tl.constexpr, SOFTPLUS: tl.constexpr, EXACT: tl.constexpr,
    OWN: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """STEPS steps forwards from the state h before them, and then backwards with g, a_{t+1} g_{t+1} of the last."""
    rate, real, channel, key, skip, bias = fixed
    at_u, at_dt, at_gate, at_B, at_C = into
    to_A, to_D, to_bias = sums
    kept, decays, deltas, passing = (), (), (), ()
    for j in tl.static_range(STEPS):
        raw, x, z, keys, queries, now = given[j]
        delta = _delta(raw, bias, SOFTPLUS)
        a = tl.exp2(delta[:, None] * (rate * LOG2_E))
        passes = now == before
        kept = kept + (h,)  # type: ignore[assignment]
        decays = decays + (a,)  # type: ignore[assignment]
        deltas = deltas + (delta,)  # type: ignore[assignment]
        passing = passing + (passes,)  # type: ignore[assignment]
        h = _passed(a * h, passes, segments) + _added(delta, rate, x.to(tl.float32), keys, EXACT)
        if n != N:
            h = tl.where(real, h, 0.0)
        before = now
    for j in tl.static_range(STEPS - 1, -1, -1):
        raw, x, z, keys, queries, now = given[j]
        delta, a, t = deltas[j], decays[j], begin + j
        x, keys, queries = x.to(tl.float32), _row(keys, OWN), _row(queries, OWN)
        slope = tl.where(channel, slopes[j].to(tl.float32), 0.0)
        if gate is not None:
            z = z.to(tl.float32)
            sigmoid = tl.sigmoid(z)
            out = tl.sum(h * queries, 1)
            if D is not None:
                out += x * skip
            to_gate = slope * out * sigmoid * (1.0 + z * (1.0 - sigmoid))
            tl.store(at_gate + t * d, to_gate.to(at_gate.dtype.element_ty), mask=channel)
            slope *= z * sigmoid
        to_queries = slope[:, None] * h
        h = kept[j]
        g += slope[:, None] * queries
        flow = g * a
        to_B = g * keys
        if EXACT:
            held = _held(delta, rate)
            to_u = tl.sum(to_B * held, 1)
            to_held = to_B * x[:, None]
            to_keys = g * held * x[:, None]
            past = _passed(flow * h, passing[j], segments)
            to_delta = tl.sum(past * rate + to_held * a, 1)
            to_A += past * delta[:, None] + to_held * _slope_of_hold(delta, rate)
        else:
            through = tl.sum(to_B, 1)
            to_u = through * delta
            to_keys = g * (delta * x)[:, None]
            past = _passed(flow * h, passing[j], segments)
            to_delta = tl.sum(past * (rate * LOG2_E), 1) * LN_2 + through * x
            to_A += past * delta[:, None]
        g = _passed(flow, passing[j], segments)
        if D is not None:
            to_u += slope * skip
            to_D += slope * x
        if SOFTPLUS:
            to_delta *= tl.sigmoid(raw.to(tl.float32) + bias)
        if dt_bias is not None:
            to_bias += to_delta
        tl.store(at_u + t * d, to_u.to(at_u.dtype.element_ty), mask=channel)
        tl.store(at_dt + t * d, to_delta.to(at_dt.dtype.element_ty), mask=channel)
        at_key = t * (groups * N)
        if OWN:
            tl.store(at_B + at_key, to_keys, mask=key)
            tl.store(at_C + at_key, to_queries, mask=key)
        else:
            tl.store(at_B + at_key, tl.broadcast_to(tl.sum(to_keys, 0, keep_dims=True), to_keys.shape), mask=key)
            tl.store(at_C + at_key, tl.broadcast_to(tl.sum(to_queries, 0, keep_dims=True), to_keys.shape), mask=key)
    return g, (to_A, to_D, to_bias)


@triton.jit
def _channels(d, each, programs, OWN: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
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
def _states(A, row, c, i, d, n: tl.constexpr, N: tl.constexpr):
    """Where a row's states are in (b, d, N), which of a channel's are, and their A."""
    at = c[:, None] * N + i[None, :]
    return row * d * N + at, (c >= 0)[:, None] & (i < n)[None, :], tl.load(A + at)


@triton.jit
def _inside(i, c, n: tl.constexpr, OWN: tl.constexpr):
    """Which states of B and C at a step are."""
    if OWN:
        return (c >= 0)[:, None] & (i < n)[None, :]
    else:
        return i < n


@triton.jit
def _per_channel(m, c):
    if m is None:
        return tl.zeros(c.shape, tl.float32)
    else:
        return tl.load(m + c)


@triton.jit
def _starts(
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
def _by(u_step, dt_step, gate_step, nothing, groups: tl.constexpr, n: tl.constexpr):
    return nothing + u_step, nothing + dt_step, nothing + gate_step, groups * n


@triton.jit
def _read(at, by, t, inside, gate, segments, n: tl.constexpr, N: tl.constexpr):
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
def _before(at, t, segments):
    """The segment before step t; before the first step there was segment 0."""
    if segments is not None:
        return tl.load(at[5] + (t - 1), mask=t > 0, other=0)
    else:
        return t


@triton.jit
def _row(m, OWN: tl.constexpr):
    """B or C of a step as a tile, or as a row of one."""
    if OWN:
        return m.to(tl.float32)
    else:
        return m.to(tl.float32)[None, :]


@triton.jit
def _step(
    given, h, before, rate, real, skip, bias, D, gate, segments,
    n: tl.constexpr, N: tl.constexpr, SOFTPLUS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The state after a step, the step's segment, and what it gives."""
    raw, x, z, keys, queries, now = given
    x = x.to(tl.float32)
    delta = _delta(raw, bias, SOFTPLUS)
    a = tl.exp2(delta[:, None] * (rate * LOG2_E))
    h = _passed(a * h, now == before, segments) + _added(delta, rate, x, keys, EXACT)
    if n != N:
        h = tl.where(real, h, 0.0)
    out = tl.sum(h * _row(queries, len(queries.shape) == 2), 1)
    if D is not None:
        out += x * skip
    if gate is not None:
        z = z.to(tl.float32)
        out *= z * tl.sigmoid(z)
    return h, now, out


@triton.jit
def _passed(m, passes, segments):
    """Where nothing passes, nothing does, not even a NaN or an infinity."""
    if segments is not None:
        return tl.where(passes, m, 0.0)
    else:
        return m


@triton.jit
def _added(delta, rate, x, keys, EXACT: tl.constexpr):
    keys = _row(keys, len(keys.shape) == 2)
    if EXACT:
        return _held(delta, rate) * x[:, None] * keys
    else:
        return (delta * x)[:, None] * keys


@triton.jit
def _delta(raw, bias, SOFTPLUS: tl.constexpr):
    """Delta; log(1 + e) by Kahan's quotient, which mends the rounding of 1 + e."""
    delta = raw.to(tl.float32) + bias
    if SOFTPLUS:
        e = tl.exp(tl.minimum(delta, 40.0))
        w = 1.0 + e
        smooth = tl.where(w == 1.0, e, tl.log(w) * (e / tl.where(w == 1.0, 1.0, w - 1.0)))
        delta = tl.where(delta > 40.0, delta, smooth)
    return delta


@triton.jit
def _held(delta, rate):
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
def _slope_of_hold(delta, rate):
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
