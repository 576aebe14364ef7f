"""SSD backwards in Triton, three launches: states and their gradients at the chunks' borders, with the sums of decays
that the others read; then what belongs to a head; then what heads of a group share, added in their order: no atomics,
the same bits on every run.

log_a_t scales whatever crosses from before t to t or later: from step to step inside the chunk, from the carried state,
to the end, and across. Its gradient is the sum of these four, as in pytorch_chunks.py; the shorter formula
<dy, y> - <dx, x> would subtract large equal numbers.

Letters and descriptors (TILED) as in triton_kernels.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statewise.kernels.gpu.triton_products import dot
from statewise.kernels.ssd.triton_kernels import (
    decays_of,
    leave_sums,
    load_state,
    scaled,
    store_state,
    tile,
    within_chunk,
)


@triton.jit(do_not_specialize=["length", "heads", "per_group", "chunks"])
def states_and_gradients(
    grad, grad_state, x, log_a, B, C, dt, segments, coarse, fine, steps, h0, before, after, d_h0,
    length, heads, per_group, width, states, chunks, grad_row, grad_step, x_row, x_step, B_row, B_step, C_row, C_step,
    TILED: tl.constexpr, PRODUCT: tl.constexpr,
    Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """before, after (b, heads, chunks, width, states): the states before chunks, the gradients of those after them.
    log_a, dt, segments; coarse, fine, steps: as in sweep, for ``chunks`` chunks

    The programs of axis 2 that are 0 go with the time, those that are 1 against it.
    """
    of_head = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    row = (tl.program_id(0) // heads).to(tl.int64)
    group = ((tl.program_id(0) % heads) // per_group).to(tl.int64)
    blocks = tl.cdiv(states, N)
    first_p = (tl.program_id(1) // blocks).to(tl.int64) * P
    first_n = (tl.program_id(1) % blocks).to(tl.int64) * N
    column, end = head * width + first_p, head * width + width
    key_column, key_end = group * states + first_n, group * states + states
    at_sums = of_head * chunks * Q
    leave_sums(log_a, dt, segments, coarse, fine, steps, row, head, row * 0, at_sums, chunks, length, heads, Q)
    if tl.program_id(2) == 1:
        h = load_state(grad_state, of_head, first_p, first_n, width, states, TILED, P, N)
        h = _walk(
            grad, C, after, h, coarse, fine, steps, of_head, row, first_p, first_n, column, end,
            key_column, key_end, length, width, states, chunks, grad_row, grad_step, C_row, C_step,
            True, TILED, PRODUCT, Q, P, N, STAGES,
        )  # fmt: skip
        store_state(d_h0, h, of_head, first_p, first_n, width, states, TILED, P, N)
    else:
        h = load_state(h0, of_head, first_p, first_n, width, states, TILED, P, N)
        _walk(
            x, B, before, h, coarse, fine, steps, of_head, row, first_p, first_n, column, end,
            key_column, key_end, length, width, states, chunks, x_row, x_step, B_row, B_step,
            False, TILED, PRODUCT, Q, P, N, STAGES,
        )  # fmt: skip


@triton.jit
def _walk(
    m, keys_of, borders, h, coarse, fine, steps, of_head, row, first_p, first_n, column, end,
    key_column, key_end, length, width, states, chunks, m_row, m_step, key_row, key_step,
    BACKWARDS: tl.constexpr, TILED: tl.constexpr, PRODUCT: tl.constexpr,
    Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Leaves h at the border of each chunk, and returns it behind the last, or backwards before the first."""
    for i in tl.range(0, chunks, num_stages=STAGES):
        chunk = of_head * 0 + i
        if BACKWARDS:
            chunk = chunks - 1 - chunk
        first = chunk * Q
        u = tile(m, row, first, column, end, m_row, m_step, length, TILED, Q, P)
        keys = tile(keys_of, row, first, key_column, key_end, key_row, key_step, length, TILED, Q, N)
        mine, rest, step, total, over = decays_of(coarse, fine, steps, (of_head * chunks + chunk) * Q, Q)
        across = tl.exp2(total + over)
        if BACKWARDS:
            factor = tl.exp2(mine + rest)
        else:
            factor = tl.exp2((total - mine) + (over - rest)) * step
        store_state(borders, h, of_head * chunks + chunk, first_p, first_n, width, states, TILED, P, N)
        h = h * across + dot(tl.trans(scaled(u, factor, PRODUCT)), keys, PRODUCT)
    return h


@triton.jit(do_not_specialize=["length", "heads", "per_group", "chunks"])
def of_heads(
    grad, x, B, C, coarse, fine, steps, D, before, after, d_x, d_log_a, d_dt, d_D,
    length, heads, per_group, width, states, chunks, grad_row, grad_step, x_row, x_step, B_row, B_step, C_row, C_step,
    TILED: tl.constexpr, WHOLE: tl.constexpr, PRODUCT: tl.constexpr,
    Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """d_x (b, length, heads, width); d_log_a, d_dt (b, length, heads); d_D (b, heads, chunks), to be summed.

    WHOLE: a tile has all states, so that B and C are read once
    """
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    of_head = tl.program_id(0) // chunks
    head = (of_head % heads).to(tl.int64)
    row = (of_head // heads).to(tl.int64)
    group = ((of_head % heads) // per_group).to(tl.int64)
    border = of_head.to(tl.int64) * chunks + chunk
    q = tl.arange(0, Q)
    first = chunk * Q
    t = first + q
    real = t < length
    at_step = (row * length + t) * heads + head
    mine, rest, step, total, over = decays_of(coarse, fine, steps, border * Q, Q)
    to_end = tl.exp2((total - mine) + (over - rest))
    from_start = tl.exp2(mine + rest)
    across = tl.exp2(total + over)
    key_end = group * states + states
    if WHOLE:
        keys = tile(B, row, first, group * states, key_end, B_row, B_step, length, TILED, Q, N)
        queries = tile(C, row, first, group * states, key_end, C_row, C_step, length, TILED, Q, N)
        scores = dot(queries, tl.trans(keys), PRODUCT)
    else:
        scores = tl.zeros((Q, Q), tl.float32)
        for i in range(0, states, N):
            key_column = group * states + i
            keys = tile(B, row, first, key_column, key_end, B_row, B_step, length, TILED, Q, N)
            queries = tile(C, row, first, key_column, key_end, C_row, C_step, length, TILED, Q, N)
            scores += dot(queries, tl.trans(keys), PRODUCT)
    scores *= within_chunk(mine, rest, fine, q)
    same = q[:, None] == q[None, :]
    skip = 0.0
    if D is not None:
        skip = tl.load(D + head)
    flow = tl.zeros((Q, Q), tl.float32)
    from_state = tl.zeros((Q,), tl.float32)
    to_state = tl.zeros((Q,), tl.float32)
    passing = tl.zeros((P,), tl.float32)
    one = tl.arange(0, P)[:, None] == tl.arange(0, P)[None, :]
    for j in range(0, width, P):
        first_p = border * 0 + j
        column, end = head * width + first_p, head * width + width
        if WHOLE:
            h = load_state(before, border, first_p, border * 0, width, states, TILED, P, N)
            g = load_state(after, border, first_p, border * 0, width, states, TILED, P, N)
            passing += tl.sum(tl.where(one, dot(h, tl.trans(g), PRODUCT), 0.0), 1)
            read = dot(queries, tl.trans(h), PRODUCT)
            d_u = dot(keys, tl.trans(g), PRODUCT)
        else:
            read = tl.zeros((Q, P), tl.float32)
            d_u = tl.zeros((Q, P), tl.float32)
            for i in range(0, states, N):
                first_n = border * 0 + i
                key_column = group * states + first_n
                h = load_state(before, border, first_p, first_n, width, states, TILED, P, N)
                g = load_state(after, border, first_p, first_n, width, states, TILED, P, N)
                passing += tl.sum(tl.where(one, dot(h, tl.trans(g), PRODUCT), 0.0), 1)
                queries = tile(C, row, first, key_column, key_end, C_row, C_step, length, TILED, Q, N)
                read += dot(queries, tl.trans(h), PRODUCT)
                keys = tile(B, row, first, key_column, key_end, B_row, B_step, length, TILED, Q, N)
                d_u += dot(keys, tl.trans(g), PRODUCT)
        slope = tile(grad, row, first, column, end, grad_row, grad_step, length, TILED, Q, P)
        from_state += tl.sum(read * slope.to(tl.float32), 1)
        u = tile(x, row, first, column, end, x_row, x_step, length, TILED, Q, P)
        d_u *= to_end[:, None]
        to_state += tl.sum(d_u * u.to(tl.float32), 1)
        flow += dot(slope, tl.trans(u), PRODUCT)
        weights = scores * step[None, :]
        if D is not None:
            weights += tl.where(same, skip, 0.0)
        d_u = d_u * step[:, None] + dot(tl.trans(weights), slope, PRODUCT)
        if TILED:
            at_column = column.to(tl.int32)
            d_x.store([row.to(tl.int32), first.to(tl.int32), at_column], d_u.to(d_x.dtype).reshape(1, Q, P))
        else:
            p = first_p + tl.arange(0, P)
            at = at_step[:, None] * width + p[None, :]
            tl.store(d_x + at, d_u.to(d_x.dtype.element_ty), mask=real[:, None] & (p < width)[None, :])
    if D is not None:
        tl.store(d_D + tl.program_id(0).to(tl.int64), tl.sum(tl.where(same, flow, 0.0)))
    flow *= scores  # what step s adds to y at step t, times the gradient there
    if d_dt is not None:
        tl.store(d_dt + at_step, tl.sum(flow, 0) + to_state, mask=real)
    later = q[:, None] > q[None, :]
    flow = tl.where(later, flow * step[None, :], 0.0)
    # from s to u, and so across every t with s < t <= u
    crossing = tl.sum(tl.where(later, tl.cumsum(flow, 0, reverse=True), 0.0), 1)
    crossing += tl.cumsum(from_state * from_start, 0, reverse=True)
    crossing += tl.sum(tl.where(later, (to_state * step)[None, :], 0.0), 1)
    crossing += tl.sum(passing, 0) * across
    tl.store(d_log_a + at_step, crossing, mask=real)


@triton.jit(do_not_specialize=["length", "heads", "per_group", "chunks"])
def of_groups(
    grad, x, B, C, coarse, fine, steps, before, after, d_B, d_C,
    length, heads, per_group, width, states, chunks, grad_row, grad_step, x_row, x_step, B_row, B_step, C_row, C_step,
    TILED: tl.constexpr, PRODUCT: tl.constexpr,
    Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """d_B, d_C (b, length, groups, states): a program has a chunk and some states of a group, and walks its heads.

    The programs of axis 2 that are 0 have d_C, those that are 1 d_B: both at once would spill.
    """
    groups = heads // per_group
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    of_group = tl.program_id(0) // chunks
    group = (of_group % groups).to(tl.int64)
    row = (of_group // groups).to(tl.int64)
    first_n = tl.program_id(1).to(tl.int64) * N
    first = chunk * Q
    t = first + tl.arange(0, Q)
    n = first_n + tl.arange(0, N)
    at = ((row * length + t) * groups + group)[:, None] * states + n[None, :]
    inside = (t < length)[:, None] & (n < states)[None, :]
    key_column, key_end = group * states + first_n, group * states + states
    if tl.program_id(2) == 1:
        d_scores, total = _gathered(
            grad, x, coarse, fine, steps, after, row, group, chunk, first_n, length, heads, per_group,
            width, states, chunks, grad_row, grad_step, x_row, x_step, True, TILED, PRODUCT, Q, P, N, STAGES,
        )  # fmt: skip
        queries = tile(C, row, first, key_column, key_end, C_row, C_step, length, TILED, Q, N)
        total += dot(tl.trans(d_scores), queries, PRODUCT)
        tl.store(d_B + at, total.to(d_B.dtype.element_ty), mask=inside)
    else:
        d_scores, total = _gathered(
            grad, x, coarse, fine, steps, before, row, group, chunk, first_n, length, heads, per_group,
            width, states, chunks, grad_row, grad_step, x_row, x_step, False, TILED, PRODUCT, Q, P, N, STAGES,
        )  # fmt: skip
        keys = tile(B, row, first, key_column, key_end, B_row, B_step, length, TILED, Q, N)
        total += dot(d_scores, keys, PRODUCT)
        tl.store(d_C + at, total.to(d_C.dtype.element_ty), mask=inside)


@triton.jit
def _gathered(
    grad, x, coarse, fine, steps, borders, row, group, chunk, first_n, length, heads, per_group,
    width, states, chunks, grad_row, grad_step, x_row, x_step,
    OF_KEYS: tl.constexpr, TILED: tl.constexpr, PRODUCT: tl.constexpr,
    Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores, and what the states (their gradients OF_KEYS) add, over all heads of a group."""
    q = tl.arange(0, Q)
    first = chunk * Q
    d_scores = tl.zeros((Q, Q), tl.float32)
    total = tl.zeros((Q, N), tl.float32)
    for j in range(0, width, P):
        first_p = chunk * 0 + j
        for i in tl.range(0, per_group, num_stages=STAGES):
            head = group * per_group + i
            border = (row * heads + head) * chunks + chunk
            column, end = head * width + first_p, head * width + width
            slope = tile(grad, row, first, column, end, grad_row, grad_step, length, TILED, Q, P)
            u = tile(x, row, first, column, end, x_row, x_step, length, TILED, Q, P)
            h = load_state(borders, border, first_p, first_n, width, states, TILED, P, N)
            mine, rest, step, whole, over = decays_of(coarse, fine, steps, border * Q, Q)
            d_scores += dot(slope, tl.trans(u), PRODUCT) * within_chunk(mine, rest, fine, q) * step[None, :]
            if OF_KEYS:
                total += dot(scaled(u, tl.exp2((whole - mine) + (over - rest)) * step, PRODUCT), h, PRODUCT)
            else:
                total += dot(scaled(slope, tl.exp2(mine + rest), PRODUCT), h, PRODUCT)
    return d_scores, total
