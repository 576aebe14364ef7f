"""SSD backwards in Triton, in three launches: states and their gradients, then what each head has, then each group.

The states before each chunk and the gradients of those after it are kept, in the dtype of x, between the launches. Each
gradient has one program that sums it, over heads in their order: no atomics, the same bits on every run.

log_a_t scales whatever crosses from before t to t or later: from step to step inside the chunk, from the carried state,
to the end, and across. Its gradient is the sum of these four, as in pytorch_chunks.py; the shorter formula
<dy, y> - <dx, x> would subtract large equal numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statewise.kernels.gpu.triton_products import dot
from statewise.kernels.ssd.triton_kernels import decays_of, ids_of, load_steps, within_chunk


@triton.jit
def states_and_gradients(
    grad, grad_state, x, log_a, B, C, h0, dt, segments, before, after, d_h0,
    length, heads, per_group, width, states, chunks, grad_row, grad_step, x_row, x_step, B_row, B_step, C_row, C_step,
    PRODUCT: tl.constexpr, Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """before, after (b, heads, chunks, width, states): the states before chunks, the gradients of those after them.

    The programs of axis 2 that are 0 go with the time, those that are 1 against it.
    """
    of_head = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    row = (tl.program_id(0) // heads).to(tl.int64)
    group = ((tl.program_id(0) % heads) // per_group).to(tl.int64)
    blocks = tl.cdiv(states, N)
    q = tl.arange(0, Q).to(tl.int64)
    p = (tl.program_id(1) // blocks).to(tl.int64) * P + tl.arange(0, P).to(tl.int64)
    n = (tl.program_id(1) % blocks).to(tl.int64) * N + tl.arange(0, N).to(tl.int64)
    is_state = (p < width)[:, None] & (n < states)[None, :]
    at_state = (of_head * width + p)[:, None] * states + n[None, :]
    backwards = tl.program_id(2) == 1
    if backwards:
        h = tl.load(grad_state + at_state, mask=is_state, other=0.0)
    else:
        h = tl.load(h0 + at_state, mask=is_state, other=0.0)
    for step_of_sweep in range(0, chunks):
        chunk = of_head * 0 + (chunks - 1 - step_of_sweep if backwards else step_of_sweep)
        first = chunk * Q
        t = first + q
        coarse, fine, whole, rest, step = decays_of(log_a, dt, row, t, length, heads, head)
        to_end = tl.exp((whole - coarse) + (rest - fine)) * step
        from_start = tl.exp(coarse + fine)
        across = tl.exp(whole + rest)
        if segments is not None:
            ids, earlier, now = ids_of(segments, row, t, first, length, Q)
            to_end = tl.where(ids == now, to_end, 0.0)
            from_start = tl.where(ids == earlier, from_start, 0.0)
            across = tl.where(now == earlier, across, 0.0)
        at = ((of_head * chunks + chunk) * width + p)[:, None] * states + n[None, :]
        if backwards:
            tl.store(after + at, h.to(after.dtype.element_ty), mask=is_state)
            u = load_steps(grad, row * grad_row + head * width, t, p, grad_step, length, width)
            keys = load_steps(C, row * C_row + group * states, t, n, C_step, length, states)
            keys = keys.to(tl.float32) * from_start[:, None]
        else:
            tl.store(before + at, h.to(before.dtype.element_ty), mask=is_state)
            u = load_steps(x, row * x_row + head * width, t, p, x_step, length, width)
            keys = load_steps(B, row * B_row + group * states, t, n, B_step, length, states)
            keys = keys.to(tl.float32) * to_end[:, None]
        h = h * across + dot(tl.trans(u), keys, PRODUCT)
    if backwards:
        tl.store(d_h0 + at_state, h, mask=is_state)


@triton.jit
def of_heads(
    grad, x, log_a, B, C, dt, D, segments, before, after, d_x, d_log_a, d_dt, d_D,
    length, heads, per_group, width, states, chunks, grad_row, grad_step, x_row, x_step, B_row, B_step, C_row, C_step,
    PRODUCT: tl.constexpr, Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """d_x (b, length, heads, width); d_log_a, d_dt (b, length, heads); d_D (b, heads, chunks), to be summed."""
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    of_head = tl.program_id(0) // chunks
    head = (of_head % heads).to(tl.int64)
    row = (of_head // heads).to(tl.int64)
    group = ((of_head % heads) // per_group).to(tl.int64)
    q = tl.arange(0, Q).to(tl.int64)
    first = chunk * Q
    t = first + q
    real = t < length
    at_step = (row * length + t) * heads + head
    coarse, fine, whole, rest, step = decays_of(log_a, dt, row, t, length, heads, head)
    to_end = tl.exp((whole - coarse) + (rest - fine))
    from_start = tl.exp(coarse + fine)
    across = tl.exp(whole + rest)
    within = within_chunk(coarse, fine, q)
    if segments is not None:
        ids, earlier, now = ids_of(segments, row, t, first, length, Q)
        to_end = tl.where(ids == now, to_end, 0.0)
        from_start = tl.where(ids == earlier, from_start, 0.0)
        across = tl.where(now == earlier, across, 0.0)
        within = tl.where(ids[:, None] == ids[None, :], within, 0.0)
    scores = tl.zeros((Q, Q), tl.float32)
    for first_state in range(0, states, N):
        n = first_state + tl.arange(0, N).to(tl.int64)
        keys = load_steps(B, row * B_row + group * states, t, n, B_step, length, states)
        queries = load_steps(C, row * C_row + group * states, t, n, C_step, length, states)
        scores += dot(queries, tl.trans(keys), PRODUCT)
    scores *= within
    skip = 0.0
    if D is not None:
        skip = tl.load(D + head)
    flow = tl.zeros((Q, Q), tl.float32)
    from_state = tl.zeros((Q,), tl.float32)
    to_state = tl.zeros((Q,), tl.float32)
    of_step = tl.zeros((Q,), tl.float32)
    of_skip = tl.zeros((Q,), tl.float32)
    of_across = tl.zeros((N,), tl.float32)
    for first_p in range(0, width, P):
        p = first_p + tl.arange(0, P).to(tl.int64)
        slope = load_steps(grad, row * grad_row + head * width, t, p, grad_step, length, width)
        u = load_steps(x, row * x_row + head * width, t, p, x_step, length, width)
        flow += dot(slope, tl.trans(u), PRODUCT)
        d_u = tl.zeros((Q, P), tl.float32)
        read = tl.zeros((Q, P), tl.float32)
        for first_state in range(0, states, N):
            n = first_state + tl.arange(0, N).to(tl.int64)
            is_state = (p < width)[:, None] & (n < states)[None, :]
            at = ((of_head.to(tl.int64) * chunks + chunk) * width + p)[:, None] * states + n[None, :]
            h = tl.load(before + at, mask=is_state, other=0.0)
            g = tl.load(after + at, mask=is_state, other=0.0)
            of_across += tl.sum(h.to(tl.float32) * g.to(tl.float32), 0)
            keys = load_steps(B, row * B_row + group * states, t, n, B_step, length, states)
            d_u += dot(keys, tl.trans(g), PRODUCT)
            queries = load_steps(C, row * C_row + group * states, t, n, C_step, length, states)
            read += dot(queries, tl.trans(h), PRODUCT)
        from_state += tl.sum(read * slope.to(tl.float32), 1)
        d_u *= to_end[:, None]
        to_state += tl.sum(d_u * u.to(tl.float32), 1)
        d_u += dot(tl.trans(scores), slope, PRODUCT)
        of_step += tl.sum(d_u * u.to(tl.float32), 1)
        of_skip += tl.sum(slope.to(tl.float32) * u.to(tl.float32), 1)
        d_u = d_u * step[:, None] + skip * slope.to(tl.float32)
        at = at_step[:, None] * width + p[None, :]
        tl.store(d_x + at, d_u.to(d_x.dtype.element_ty), mask=real[:, None] & (p < width)[None, :])
    later = q[:, None] > q[None, :]
    flow = tl.where(later, flow * scores * step[None, :], 0.0)
    # from s to u, and so across every t with s < t <= u
    crossing = tl.sum(tl.where(later, tl.cumsum(flow, 0, reverse=True), 0.0), 1)
    crossing += tl.cumsum(from_state * from_start, 0, reverse=True)
    crossing += tl.sum(tl.where(later, (to_state * step)[None, :], 0.0), 1)
    crossing += tl.sum(of_across, 0) * across
    tl.store(d_log_a + at_step, crossing, mask=real)
    if dt is not None:
        tl.store(d_dt + at_step, of_step, mask=real)
    if D is not None:
        tl.store(d_D + tl.program_id(0).to(tl.int64), tl.sum(of_skip, 0))


@triton.jit
def of_groups(
    grad, x, log_a, B, C, dt, segments, before, after, d_B, d_C,
    length, heads, per_group, width, states, chunks, grad_row, grad_step, x_row, x_step, B_row, B_step, C_row, C_step,
    PRODUCT: tl.constexpr, Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """d_B, d_C (b, length, groups, states): a program has a chunk and some states of a group, and walks its heads.

    The programs of axis 2 that are 0 have d_C, those that are 1 d_B: both at once would spill.
    """
    groups = heads // per_group
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    of_group = tl.program_id(0) // chunks
    group = (of_group % groups).to(tl.int64)
    row = (of_group // groups).to(tl.int64)
    has_keys = tl.program_id(2) == 1
    q = tl.arange(0, Q).to(tl.int64)
    n = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N).to(tl.int64)
    first = chunk * Q
    t = first + q
    if segments is not None:
        ids, earlier, now = ids_of(segments, row, t, first, length, Q)
    d_scores = tl.zeros((Q, Q), tl.float32)
    total = tl.zeros((Q, N), tl.float32)
    for of_these in range(0, per_group):
        head = group * per_group + of_these
        coarse, fine, whole, rest, step = decays_of(log_a, dt, row, t, length, heads, head)
        to_end = tl.exp((whole - coarse) + (rest - fine)) * step
        from_start = tl.exp(coarse + fine)
        if segments is not None:
            to_end = tl.where(ids == now, to_end, 0.0)
            from_start = tl.where(ids == earlier, from_start, 0.0)
        flow = tl.zeros((Q, Q), tl.float32)
        for first_p in range(0, width, P):
            p = first_p + tl.arange(0, P).to(tl.int64)
            slope = load_steps(grad, row * grad_row + head * width, t, p, grad_step, length, width)
            u = load_steps(x, row * x_row + head * width, t, p, x_step, length, width)
            flow += dot(slope, tl.trans(u), PRODUCT)
            is_state = (p < width)[:, None] & (n < states)[None, :]
            at = (((row * heads + head) * chunks + chunk) * width + p)[:, None] * states + n[None, :]
            if has_keys:
                total += dot(u.to(tl.float32) * to_end[:, None], tl.load(after + at, mask=is_state, other=0.0), PRODUCT)
            else:
                h = tl.load(before + at, mask=is_state, other=0.0)
                total += dot(slope.to(tl.float32) * from_start[:, None], h, PRODUCT)
        d_scores += flow * within_chunk(coarse, fine, q) * step[None, :]
    if segments is not None:
        d_scores = tl.where(ids[:, None] == ids[None, :], d_scores, 0.0)
    at = ((row * length + t) * groups + group)[:, None] * states + n[None, :]
    inside = (t < length)[:, None] & (n < states)[None, :]
    if has_keys:
        queries = load_steps(C, row * C_row + group * states, t, n, C_step, length, states)
        total += dot(tl.trans(d_scores), queries, PRODUCT)
        tl.store(d_B + at, total.to(d_B.dtype.element_ty), mask=inside)
    else:
        keys = load_steps(B, row * B_row + group * states, t, n, B_step, length, states)
        total += dot(d_scores, keys, PRODUCT)
        tl.store(d_C + at, total.to(d_C.dtype.element_ty), mask=inside)
