"""The selective scan backwards in Triton: chunks from the last to the first, states again from what was kept.

Letters and tiles as in triton_kernels.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statewise.kernels.selective_scan.triton_kernels import (
    LN_2,
    LOG2_E,
    added_by,
    are_inside,
    channels_of,
    hold_of,
    passed_on,
    per_channel,
    read_step,
    row_of,
    segment_before,
    slope_of_hold,
    starts_of,
    states_of,
    step_size,
    strides_of,
    take_step,
)


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
    c, channel = channels_of(d, each, programs, OWN, WIDTH, WHOLE)
    at_state, real, rate = states_of(A, row, c, i, d, n, N)
    inside = are_inside(i, c, n, OWN)
    skip, bias = per_channel(D, c), per_channel(dt_bias, c)
    at = starts_of(u, dt, B, C, gate, segments, row, c, i, length, programs, u_row, dt_row, gate_row, groups, n, OWN)
    by = strides_of(u_step, dt_step, gate_step, nothing, groups, n)
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
        before = segment_before(at, begin, segments)
        now = ()
        for j in tl.static_range(STEPS):
            t = begin + tl.minimum(nothing + j, count - 1)
            now = now + (read_step(at, by, t, inside, gate, segments, n, N),)  # type: ignore[assignment]
        parts = (count - 1) // STEPS  # before the last
        for part in range(0, parts):
            tl.store(at_begun + part * by_begun, h)
            following = begin + tl.minimum(part + 1, parts - 1) * STEPS
            then = ()
            for j in tl.static_range(STEPS):
                h, before, _ = take_step(
                    now[j], h, before, rate, real, skip, bias, None, None, segments, n, N, SOFTPLUS, EXACT
                )
                then = then + (read_step(at, by, following + j, inside, gate, segments, n, N),)  # type: ignore[assignment]
            now = then
        tl.store(at_begun + parts * by_begun, h)
        for step in range(whole * STEPS, count):
            tl.store(at_begun + (TIME // STEPS + step - whole * STEPS) * by_begun, h)
            given = read_step(at, by, begin + step, inside, gate, segments, n, N)
            h, before, _ = take_step(
                given, h, before, rate, real, skip, bias, None, None, segments, n, N, SOFTPLUS, EXACT
            )
        tl.debug_barrier()  # what one thread has left another may read
        tl.store(at_first, tl.load(at_kept + tl.maximum(chunk - 1, 0) * n * d, mask=real, other=0.0))
        for step in range(0, count - whole * STEPS):
            t = begin + count - 1 - step
            h = tl.load(at_begun + (TIME // STEPS + count - 1 - step - whole * STEPS) * by_begun)
            given = (read_step(at, by, t, inside, gate, segments, n, N),)
            slope = (tl.load(at_grad + t * by_grad),)
            before = segment_before(at, t, segments)
            g, sums = _back(
                given, slope, t, before, h, g, sums, fixed, into, d, D, gate, dt_bias, segments, groups, n, N,
                SOFTPLUS, EXACT, OWN, 1,
            )  # fmt: skip
        t = begin + tl.maximum(whole - 1, 0) * STEPS
        h = tl.load(at_begun + tl.maximum(whole - 1, 0) * by_begun)
        before = segment_before(at, t, segments)
        now, slopes = (), ()
        for j in tl.static_range(STEPS):
            t_j = tl.minimum(t + j, begin + count - 1)
            now = now + (read_step(at, by, t_j, inside, gate, segments, n, N),)  # type: ignore[assignment]
            slopes = slopes + (tl.load(at_grad + t_j * by_grad),)  # type: ignore[assignment]
        for part in range(0, whole):
            t = begin + (whole - 1 - part) * STEPS
            earlier = tl.maximum(whole - 2 - part, 0)
            then, slopes_then = (), ()
            for j in tl.static_range(STEPS):
                t_j = begin + earlier * STEPS + j
                then = then + (read_step(at, by, t_j, inside, gate, segments, n, N),)  # type: ignore[assignment]
                slopes_then = slopes_then + (tl.load(at_grad + t_j * by_grad),)  # type: ignore[assignment]
            h_then = tl.load(at_begun + earlier * by_begun)
            before_then = segment_before(at, begin + earlier * STEPS, segments)
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
        delta = step_size(raw, bias, SOFTPLUS)
        a = tl.exp2(delta[:, None] * (rate * LOG2_E))
        passes = now == before
        kept = kept + (h,)  # type: ignore[assignment]
        decays = decays + (a,)  # type: ignore[assignment]
        deltas = deltas + (delta,)  # type: ignore[assignment]
        passing = passing + (passes,)  # type: ignore[assignment]
        h = passed_on(a * h, passes, segments) + added_by(delta, rate, x.to(tl.float32), keys, EXACT)
        if n != N:
            h = tl.where(real, h, 0.0)
        before = now
    for j in tl.static_range(STEPS - 1, -1, -1):
        raw, x, z, keys, queries, now = given[j]
        delta, a, t = deltas[j], decays[j], begin + j
        x, keys, queries = x.to(tl.float32), row_of(keys, OWN), row_of(queries, OWN)
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
            held = hold_of(delta, rate)
            to_u = tl.sum(to_B * held, 1)
            to_held = to_B * x[:, None]
            to_keys = g * held * x[:, None]
            past = passed_on(flow * h, passing[j], segments)
            to_delta = tl.sum(past * rate + to_held * a, 1)
            to_A += past * delta[:, None] + to_held * slope_of_hold(delta, rate)
        else:
            through = tl.sum(to_B, 1)
            to_u = through * delta
            to_keys = g * (delta * x)[:, None]
            past = passed_on(flow * h, passing[j], segments)
            to_delta = tl.sum(past * (rate * LOG2_E), 1) * LN_2 + through * x
            to_A += past * delta[:, None]
        g = passed_on(flow, passing[j], segments)
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
