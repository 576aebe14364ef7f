"""SSD forwards in Triton: a program has some of a head's width and sweeps over the chunks of its sequence, once.

Its part of the state, (P, N) in float32, stays in registers. The width is split over programs, each of which makes the
scores C B^T again, and many states are split as well, so that nothing spills. A decay inside a chunk is the exponential
of a difference of sums, kept in two parts: multiples of 1/256, whose sums and differences are exact, and the rests,
which stay small.

Letters: t, s the steps of a chunk (Q), p of the head's width (P), n of the state (N).
"""

from __future__ import annotations

import triton
import triton.language as tl

from statewise.kernels.gpu.triton_products import dot


@triton.jit
def sweep(
    x, log_a, B, C, start, dt, D, segments, y, last, decay,
    rows, length, heads, per_group, width, states, n_pieces, chunks, x_row, x_step, B_row, B_step, C_row, C_step,
    ENDS: tl.constexpr, PRODUCT: tl.constexpr, Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """y (blocks, b, length, heads, width), to be summed over blocks of N states; last (b, heads, width, states), the
    state after the last step.

    x           as y, B and C (b, length, groups, states), with strides of their own along rows and steps
    log_a, dt   (b, length, heads); D (heads,); segments (b, length)
    start       (b, heads, n_pieces, width, states), the states before pieces of ``chunks`` chunks, None for 0
    ENDS        no y, and of each piece, from rest, the state after it in last (as start), and its decay
    """
    piece = tl.program_id(0) % n_pieces
    of_head = tl.program_id(0) // n_pieces
    head = (of_head % heads).to(tl.int64)
    row = (of_head // heads).to(tl.int64)
    group = ((of_head % heads) // per_group).to(tl.int64)
    q = tl.arange(0, Q).to(tl.int64)
    p = tl.program_id(1).to(tl.int64) * P + tl.arange(0, P).to(tl.int64)
    block = tl.program_id(2)
    n = block.to(tl.int64) * N + tl.arange(0, N).to(tl.int64)
    is_state = (p < width)[:, None] & (n < states)[None, :]
    at_state = (tl.program_id(0).to(tl.int64) * width + p)[:, None] * states + n[None, :]
    h = tl.zeros((P, N), tl.float32)
    if start is not None:
        h = tl.load(start + at_state, mask=is_state, other=0.0)
    kept = 1.0
    skip = 0.0
    if D is not None:
        skip = tl.load(D + head)
    first = piece.to(tl.int64) * chunks * Q
    for _ in range(0, chunks):
        t = first + q
        real = t < length
        coarse, fine, whole, rest, step = decays_of(log_a, dt, row, t, length, heads, head)
        total = whole + rest
        to_end = tl.exp((whole - coarse) + (rest - fine)) * step
        from_start = tl.exp(coarse + fine)
        across = tl.exp(total)
        if segments is not None:
            ids, before, now = ids_of(segments, row, t, first, length, Q)
            to_end = tl.where(ids == now, to_end, 0.0)
            from_start = tl.where(ids == before, from_start, 0.0)
            across = tl.where(now == before, across, 0.0)
        u = load_steps(x, row * x_row + head * width, t, p, x_step, length, width)
        keys = load_steps(B, row * B_row + group * states, t, n, B_step, length, states)
        if not ENDS:
            queries = load_steps(C, row * C_row + group * states, t, n, C_step, length, states)
            within = within_chunk(coarse, fine, q)
            if segments is not None:
                within = tl.where(ids[:, None] == ids[None, :], within, 0.0)
            scores = dot(queries, tl.trans(keys), PRODUCT)
            out = dot(queries, tl.trans(h), PRODUCT) * from_start[:, None]
            out += dot(scores * within * step[None, :], u, PRODUCT)
            if D is not None:
                out += tl.where(block == 0, skip, 0.0) * u.to(tl.float32)
            at = ((block.to(tl.int64) * rows + row) * length + t) * heads + head
            at = at[:, None] * width + p[None, :]
            tl.store(y + at, out.to(y.dtype.element_ty), mask=real[:, None] & (p < width)[None, :])
        h = h * across + dot(tl.trans(u), keys.to(tl.float32) * to_end[:, None], PRODUCT)
        kept = kept * across
        first += Q
    if ENDS:
        tl.store(last + at_state, h, mask=is_state)
        if (tl.program_id(1) == 0) & (block == 0):
            tl.store(decay + tl.program_id(0).to(tl.int64), kept)
    elif piece == n_pieces - 1:
        at_last = (of_head.to(tl.int64) * width + p)[:, None] * states + n[None, :]
        tl.store(last + at_last, h, mask=is_state)


@triton.jit
def chain_pieces(h0, ends, decay, start, size, n_pieces, BLOCK: tl.constexpr):
    """start of all pieces (as sweep has it), from h0 (b * heads, size) and from what each piece adds and keeps."""
    of_head = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    inside = i < size
    h = tl.load(h0 + (of_head * size + i), mask=inside, other=0.0)
    for piece in range(0, n_pieces):
        at = (of_head * n_pieces + piece) * size + i
        tl.store(start + at, h, mask=inside)
        h = h * tl.load(decay + (of_head * n_pieces + piece)) + tl.load(ends + at, mask=inside, other=0.0)


@triton.jit
def decays_of(log_a, dt, row, t, length, heads, head):
    """Sums of log_a over a chunk up to each step in two parts, those of the whole chunk, and dt (1 without)."""
    real = t < length
    at = (row * length + t) * heads + head
    each = tl.load(log_a + at, mask=real, other=0.0)
    each = tl.where(each < -1000.0, -1000.0, each)  # its exponential is 0 likewise; what is no number stays so
    multiple = tl.floor(each * 256.0 + 0.5) / 256.0
    step = tl.where(real, 1.0, 0.0)
    if dt is not None:
        step = tl.load(dt + at, mask=real, other=0.0)
    rest = each - multiple
    return tl.cumsum(multiple, 0), tl.cumsum(rest, 0), tl.sum(multiple, 0), tl.sum(rest, 0), step


@triton.jit
def within_chunk(coarse, fine, q):
    """(t, s) the decay from step s to step t of a chunk, 0 where s is later."""
    gap = (coarse[:, None] - coarse[None, :]) + (fine[:, None] - fine[None, :])
    lower = q[:, None] >= q[None, :]
    return tl.where(lower, tl.exp(tl.where(lower, gap, 0.0)), 0.0)


@triton.jit
def ids_of(segments, row, t, first, length, Q: tl.constexpr):
    """The segments of a chunk: of each step, of the step before it (0 before the first) and of its last real step."""
    last = length - 1
    ids = tl.load(segments + (row * length + tl.minimum(t, last)))
    before = tl.load(segments + (row * length + first - 1), mask=first > 0, other=0)
    return ids, before, tl.load(segments + (row * length + tl.minimum(first + Q - 1, last)))


@triton.jit
def load_steps(m, offset, t, column, step, length, columns):
    """(steps, columns) of m from an offset, 0 where there is nothing."""
    inside = (t < length)[:, None] & (column < columns)[None, :]
    return tl.load(m + (offset + t[:, None] * step + column[None, :]), mask=inside, other=0.0)
