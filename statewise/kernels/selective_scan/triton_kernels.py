"""The kernels of the selective scan in Triton, forwards and backwards.

A program has some channels of a row, all of one group of B and C, and walks through their chunks of steps. In a chunk
it takes the states one after the other, each for all channels and steps at once, by a scan over the steps: nothing of
size (steps, channels, states) is ever there. What a state passes on to the next chunk lies in memory between the two.

Letters: k the steps of a chunk, c channels, i a state; a = exp(Delta A), p = a h_{t-1}, g the gradient of h.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scan_forward(
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, y, state, kept, carry,
    length, d, n, groups, each, programs, chunks, u_row, u_step, dt_row, dt_step, gate_row, gate_step,
    SOFTPLUS: tl.constexpr, EXACT: tl.constexpr, OWN: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """y (b, length, d); state (b, d, n); kept (b, chunks, n, d), the states before the chunks, or None.

    u, dt, gate  (b, length, d) with strides of their own; A (d, n); B, C (b, length, groups, n); h0 (b, d, n)
    carry        (b, n, d), memory for the states between chunks
    each         channels of a group, in ``programs`` programs; OWN if it is one channel, and a program has many groups
    EXACT        what multiplies B u is not Delta but its exact hold
    """
    row = tl.program_id(0).to(tl.int64)
    nothing = row * 0  # in 64 bits: what is counted from it cannot overflow
    k = tl.arange(0, TIME).to(tl.int64)
    c, channel = _channels(d, each, programs, OWN, WIDTH)
    group = (tl.program_id(1) // programs).to(tl.int64)
    for chunk in range(0, chunks):
        t = (nothing + chunk) * TIME + k
        real = (t < length)[:, None] & channel[None, :]
        delta = _delta(dt + row * dt_row, dt_bias, t, c, real, channel, dt_step, SOFTPLUS)
        x = tl.load(u + (row * u_row + t[:, None] * u_step + c[None, :]), mask=real, other=0.0).to(tl.float32)
        passes = _passes(segments, row, t, length)
        out = tl.zeros((TIME, WIDTH), tl.float32)
        for i in range(0, n):
            state_i = nothing + i
            at = (row * n + state_i) * d + c
            if chunk == 0:
                h = tl.load(h0 + ((row * d + c) * n + i), mask=channel, other=0.0)
            else:
                h = tl.load(carry + at, mask=channel, other=0.0)
            if kept is not None:
                tl.store(kept + (((row * chunks + chunk) * n + i) * d + c), h, mask=channel)
            rate = tl.load(A + (c * n + i), mask=channel, other=0.0)
            a = tl.where(passes[:, None], tl.exp(delta * rate[None, :]), 0.0)
            keys = _read(B, row, t, c, group, i, length, groups, n, real, OWN)
            added = _held(delta, rate, EXACT) * x * keys
            added = tl.where((k == 0)[:, None] & (a != 0.0), a * h[None, :] + added, added)
            a, states = tl.associative_scan((a, added), 0, _chain)
            out += states * _read(C, row, t, c, group, i, length, groups, n, real, OWN)
            h = tl.sum(tl.where((k == TIME - 1)[:, None], states, 0.0), 0)
            if chunk == chunks - 1:
                tl.store(state + ((row * d + c) * n + i), h, mask=channel)
            else:
                tl.store(carry + at, h, mask=channel)
        if D is not None:
            out += x * tl.load(D + c, mask=channel, other=0.0)[None, :]
        if gate is not None:
            z = tl.load(gate + (row * gate_row + t[:, None] * gate_step + c[None, :]), mask=real, other=0.0)
            z = z.to(tl.float32)
            out *= z * tl.sigmoid(z)
        tl.store(y + ((row * length + t)[:, None] * d + c[None, :]), out.to(y.dtype.element_ty), mask=real)
        tl.debug_barrier()  # what one thread leaves for the next chunk another may read


@triton.jit
def scan_backward(
    grad, grad_state, kept, u, dt, A, B, C, D, gate, dt_bias, segments,
    d_u, d_dt, d_A, d_B, d_C, d_h0, d_D, d_gate, d_bias, carry,
    length, d, n, groups, each, programs, chunks, rows,
    grad_row, grad_step, u_row, u_step, dt_row, dt_step, gate_row, gate_step,
    SOFTPLUS: tl.constexpr, EXACT: tl.constexpr, OWN: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The chunks from the last to the first, the states of each again from the one that was kept.

    d_u, d_dt, d_gate  (b, length, d)     d_h0 (b, d, n)     carry (b, n, d)
    d_A, d_D, d_bias   (b, n, d), (b, d), (b, d): to be summed over rows
    d_B, d_C           (programs, b, length, groups, n): to be summed over the programs of a group
    """
    row = tl.program_id(0).to(tl.int64)
    nothing = row * 0
    k = tl.arange(0, TIME).to(tl.int64)
    c, channel = _channels(d, each, programs, OWN, WIDTH)
    group = (tl.program_id(1) // programs).to(tl.int64)
    share = (tl.program_id(1) % programs).to(tl.int64)
    sum_D = tl.zeros((WIDTH,), tl.float32)
    sum_bias = tl.zeros((WIDTH,), tl.float32)
    skip = tl.zeros((WIDTH,), tl.float32)
    if D is not None:
        skip = tl.load(D + c, mask=channel, other=0.0)
    for back in range(0, chunks):
        t = (nothing + chunks - 1 - back) * TIME + k
        real = (t < length)[:, None] & channel[None, :]
        begun = ((t > 0) & (t <= length))[:, None] & channel[None, :]
        follows = (t + 1 < length)[:, None] & channel[None, :]
        delta = _delta(dt + row * dt_row, dt_bias, t, c, real, channel, dt_step, SOFTPLUS)
        next_delta = _delta(dt + row * dt_row, dt_bias, t + 1, c, follows, channel, dt_step, SOFTPLUS)
        x = tl.load(u + (row * u_row + t[:, None] * u_step + c[None, :]), mask=real, other=0.0).to(tl.float32)
        last_delta = _delta(dt + row * dt_row, dt_bias, t - 1, c, begun, channel, dt_step, SOFTPLUS)
        last_x = tl.load(u + (row * u_row + (t - 1)[:, None] * u_step + c[None, :]), mask=begun, other=0.0)
        last_x = last_x.to(tl.float32)
        passes = _passes(segments, row, t, length)
        next_passes = _passes(segments, row, t + 1, length)
        at_y = (row * length + t)[:, None] * d + c[None, :]
        slope = tl.load(grad + (row * grad_row + t[:, None] * grad_step + c[None, :]), mask=real, other=0.0)
        slope = slope.to(tl.float32)
        out = x * skip[None, :]
        outer = slope
        if gate is not None:
            z = tl.load(gate + (row * gate_row + t[:, None] * gate_step + c[None, :]), mask=real, other=0.0)
            z = z.to(tl.float32)
            slope = slope * (z * tl.sigmoid(z))
        to_u = slope * skip[None, :]
        to_delta = tl.zeros((TIME, WIDTH), tl.float32)
        if D is not None:
            sum_D += tl.sum(slope * x, 0)
        for i in range(0, n):
            at = (row * n + nothing + i) * d + c
            at_own = (row * d + c) * n + i
            rate = tl.load(A + (c * n + i), mask=channel, other=0.0)
            h = tl.load(kept + (((row * chunks + chunks - 1 - back) * n + i) * d + c), mask=channel, other=0.0)
            if back == 0:
                after = tl.load(grad_state + at_own, mask=channel, other=0.0)
            else:
                after = tl.load(carry + at, mask=channel, other=0.0)
            # p_t = a_t (p_{t-1} + b_{t-1}), and so a_t h_{t-1} without a difference of large equal numbers
            a = tl.where(passes[:, None], tl.exp(delta * rate[None, :]), 0.0)
            earlier = last_x * _read(B, row, t - 1, c, group, i, length, groups, n, begun, OWN)
            earlier *= _held(last_delta, rate, EXACT)
            added = tl.where((k == 0)[:, None], h[None, :], earlier)
            added = tl.where(a != 0.0, a * added, 0.0)
            decay, p = tl.associative_scan((a, added), 0, _chain)
            keys = _read(B, row, t, c, group, i, length, groups, n, real, OWN)
            queries = _read(C, row, t, c, group, i, length, groups, n, real, OWN)
            held = _held(delta, rate, EXACT)
            states = p + held * x * keys
            out += states * queries
            # g_t = dy_t C_t + a_{t+1} g_{t+1}, of which the next chunk has left the last product
            decay = tl.where(next_passes[:, None], tl.exp(next_delta * rate[None, :]), 0.0)
            g = slope * queries
            g = tl.where((k == TIME - 1)[:, None], g + after[None, :], g)
            decay, g = tl.associative_scan((decay, g), 0, _chain, reverse=True)
            tl.store(carry + at, tl.sum(tl.where((k == 0)[:, None] & (a != 0.0), a * g, 0.0), 0), mask=channel)
            flow = g * p
            to_held = g * keys * x
            to_u += g * keys * held
            to_rate = tl.sum(flow * delta, 0)
            if EXACT:
                to_delta += flow * rate[None, :] + to_held * tl.exp(delta * rate[None, :])
                to_rate += tl.sum(to_held * _slope_of_hold(delta, rate), 0)
            else:
                to_delta += flow * rate[None, :] + to_held
            if back != 0:
                to_rate += tl.load(d_A + at, mask=channel, other=0.0)
            tl.store(d_A + at, to_rate, mask=channel)
            to_keys = g * held * x
            to_queries = slope * states
            if OWN:
                at_key = ((row * length + t)[:, None] * groups + c[None, :]) * n + i
                tl.store(d_B + at_key, to_keys, mask=real)
                tl.store(d_C + at_key, to_queries, mask=real)
            else:
                at_key = (((share * rows + row) * length + t) * groups + group) * n + i
                tl.store(d_B + at_key, tl.sum(tl.where(real, to_keys, 0.0), 1), mask=t < length)
                tl.store(d_C + at_key, tl.sum(tl.where(real, to_queries, 0.0), 1), mask=t < length)
        if gate is not None:
            sigmoid = tl.sigmoid(z)
            to_gate = outer * out * sigmoid * (1.0 + z * (1.0 - sigmoid))
            tl.store(d_gate + at_y, to_gate.to(d_gate.dtype.element_ty), mask=real)
        if SOFTPLUS:
            to_delta *= tl.sigmoid(_raw(dt + row * dt_row, dt_bias, t, c, real, channel, dt_step))
        to_delta = tl.where(real, to_delta, 0.0)
        if dt_bias is not None:
            sum_bias += tl.sum(to_delta, 0)
        tl.store(d_u + at_y, to_u.to(d_u.dtype.element_ty), mask=real)
        tl.store(d_dt + at_y, to_delta.to(d_dt.dtype.element_ty), mask=real)
        tl.debug_barrier()
    for i in range(0, n):
        first = tl.load(carry + ((row * n + nothing + i) * d + c), mask=channel, other=0.0)
        tl.store(d_h0 + ((row * d + c) * n + i), first, mask=channel)
    if D is not None:
        tl.store(d_D + (row * d + c), sum_D, mask=channel)
    if dt_bias is not None:
        tl.store(d_bias + (row * d + c), sum_bias, mask=channel)


@triton.jit
def _channels(d, each, programs, OWN: tl.constexpr, WIDTH: tl.constexpr):
    """A program's channels, and which of them are."""
    if OWN:
        c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
        return c, c < d
    else:
        inside = (tl.program_id(1) % programs).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
        return (tl.program_id(1) // programs).to(tl.int64) * each + inside, inside < each


@triton.jit
def _raw(dt, dt_bias, t, c, real, channel, dt_step):
    raw = tl.load(dt + (t[:, None] * dt_step + c[None, :]), mask=real, other=0.0).to(tl.float32)
    if dt_bias is not None:
        raw += tl.load(dt_bias + c, mask=channel, other=0.0)[None, :]
    return raw


@triton.jit
def _delta(dt, dt_bias, t, c, real, channel, dt_step, SOFTPLUS: tl.constexpr):
    """Delta, 0 where there is no step; log(1 + e) by Kahan's quotient, which mends the rounding of 1 + e."""
    delta = _raw(dt, dt_bias, t, c, real, channel, dt_step)
    if SOFTPLUS:
        e = tl.exp(tl.minimum(delta, 40.0))
        w = 1.0 + e
        smooth = tl.where(w == 1.0, e, tl.log(w) * (e / tl.where(w == 1.0, 1.0, w - 1.0)))
        delta = tl.where(delta > 40.0, delta, smooth)
    return tl.where(real, delta, 0.0)


@triton.jit
def _held(delta, rate, EXACT: tl.constexpr):
    """Delta, or (e^{Delta A} - 1) / A as reference.py has it: by its series where Delta A is small."""
    if EXACT:
        z = delta * rate[None, :]
        near = tl.abs(z) < 1.0
        short = tl.where(near, z, 0.0)
        series = tl.full(z.shape, 1.0, tl.float32)
        for k in tl.static_range(12, 1, -1):
            series = 1.0 + short * series * (1.0 / k)
        far = tl.where(near, 1.0, rate[None, :])
        return tl.where(near, delta * series, (tl.exp(tl.where(near, 1.0, z)) - 1.0) / far)
    else:
        return delta


@triton.jit
def _slope_of_hold(delta, rate):
    """The derivative of the exact hold by A."""
    z = delta * rate[None, :]
    near = tl.abs(z) < 1.0
    short = tl.where(near, z, 0.0)
    series = tl.full(z.shape, 1.0, tl.float32)
    for k in tl.static_range(12, 0, -1):
        series = 1.0 + short * series * ((k + 1) / (k * (k + 2)))
    far = tl.where(near, 1.0, rate[None, :])
    e = tl.exp(tl.where(near, 1.0, z))
    return tl.where(near, delta * delta * (series * 0.5), (delta * e - (e - 1.0) / far) / far)


@triton.jit
def _passes(segments, row, t, length):
    """Whether the state before step t reaches it; before the first step there was segment 0."""
    passes = t >= 0
    if segments is not None:
        inside = (t >= 0) & (t < length)
        now = tl.load(segments + (row * length + t), mask=inside, other=0)
        earlier = tl.load(segments + (row * length + t - 1), mask=inside & (t > 0), other=0)
        passes = (now == earlier) | (t >= length)
    return passes


@triton.jit
def _read(m, row, t, c, group, i, length, groups, n, real, OWN: tl.constexpr):
    """B or C of state i at steps t: (TIME, 1), or of each channel its own."""
    if OWN:
        return tl.load(m + (((row * length + t)[:, None] * groups + c[None, :]) * n + i), mask=real, other=0.0)
    else:
        inside = (t >= 0) & (t < length)
        return tl.load(m + (((row * length + t) * groups + group) * n + i), mask=inside, other=0.0)[:, None]


@triton.jit
def _chain(a1, b1, a2, b2):
    """Where nothing passes, nothing does, not even a NaN or an infinity."""
    return a2 * a1, tl.where(a2 == 0.0, b2, a2 * b1 + b2)
