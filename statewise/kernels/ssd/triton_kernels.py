"""SSD forwards in Triton: a program has some of a head's width and sweeps over the chunks of its sequence, once.

Its part of the state, (P, N) in float32, stays in registers. Where a tile of every operand fits (TILED) the tiles come
through descriptors, which cost no registers, and a program has a head's whole width; elsewhere the width is split over
programs, each of which makes the scores C B^T again. Many states are split as well, so that nothing spills.

A decay is 2 to the power of a difference of sums over a chunk. A program makes these first, for its head and all of its
chunks, and leaves them where it reads them again: made chunk by chunk they would cost registers that it does not have.

Letters: t, s the steps of a chunk (Q), p of the head's width (P), n of the state (N).
"""

from __future__ import annotations

import triton
import triton.language as tl

from statewise.kernels.gpu.triton_products import dot

_AT_ONCE: tl.constexpr = tl.constexpr(16)  # chunks whose decays are summed


@triton.jit(do_not_specialize=["rows", "length", "heads", "per_group", "n_pieces", "chunks"])
def sweep(
    x, log_a, B, C, dt, segments, coarse, fine, steps, start, D, y, last, decay,
    rows, length, heads, per_group, width, states, n_pieces, chunks, x_row, x_step, B_row, B_step, C_row, C_step,
    ENDS: tl.constexpr, TILED: tl.constexpr, WHOLE: tl.constexpr, PRODUCT: tl.constexpr,
    Q: tl.constexpr, P: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y (blocks, b, length, heads, width), to be summed over blocks of N states; last (b, heads, width, states), the
    state after the last step.

    x           as y, B and C (b, length, groups, states), with strides of their own along rows and steps; TILED:
                descriptors of (b, length, all columns)
    log_a, dt   (b, length, heads); segments (b, length), 0 before the first step; D (heads,)
    coarse, fine, steps   room for :func:`leave_sums`, (b, heads, n_pieces * chunks * Q)
    start       (b, heads, n_pieces, width, states), the states before pieces of ``chunks`` chunks, None for 0
    ENDS        no y, and of each piece, from rest, the state after it in last (as start), and its decay
    WHOLE       one block has all states, and y is a descriptor where TILED
    """
    piece = (tl.program_id(0) % n_pieces).to(tl.int64)
    of_head = tl.program_id(0) // n_pieces
    head = (of_head % heads).to(tl.int64)
    row = (of_head // heads).to(tl.int64)
    group = ((of_head % heads) // per_group).to(tl.int64)
    q = tl.arange(0, Q)
    block = tl.program_id(2).to(tl.int64)
    first_p = tl.program_id(1).to(tl.int64) * P
    first_n = block * N
    own = tl.program_id(0).to(tl.int64)
    h = tl.zeros((P, N), tl.float32)
    if start is not None:
        h = load_state(start, own, first_p, first_n, width, states, TILED, P, N)
    kept = 1.0
    skip = 0.0
    if D is not None:
        skip = tl.load(D + head)
    at_sums = of_head.to(tl.int64) * n_pieces * chunks * Q
    begin = piece * chunks * Q
    leave_sums(
        log_a, dt, segments, coarse, fine, steps, row, head, begin, at_sums + begin, chunks, length, heads, Q
    )  # fmt: skip
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        first = (piece * chunks + chunk) * Q
        keys = tile(
            B, row, first, group * states + first_n, group * states + states, B_row, B_step, length, TILED, Q, N
        )
        mine, rest, step, total, over = decays_of(coarse, fine, steps, at_sums + first, Q)
        if not ENDS:
            queries = tile(
                C, row, first, group * states + first_n, group * states + states, C_row, C_step, length, TILED, Q, N
            )
            out = dot(queries, tl.trans(h), PRODUCT) * tl.exp2(mine + rest)[:, None]
            scores = dot(queries, tl.trans(keys), PRODUCT) * within_chunk(mine, rest, fine, q) * step[None, :]
            if D is not None:
                scores += tl.where((q[:, None] == q[None, :]) & (block == 0), skip, 0.0)
        # late, for its numbers to be in registers no longer than they have to
        u = tile(x, row, first, head * width + first_p, head * width + width, x_row, x_step, length, TILED, Q, P)
        if not ENDS:
            out += dot(scores, u, PRODUCT)
            if TILED and WHOLE:
                at_column = (head * width + first_p).to(tl.int32)
                y.store([row.to(tl.int32), first.to(tl.int32), at_column], out.to(y.dtype).reshape(1, Q, P))
            else:
                t = first + q
                p = first_p + tl.arange(0, P)
                at = (((block * rows + row) * length + t) * heads + head)[:, None] * width + p[None, :]
                tl.store(y + at, out.to(y.dtype.element_ty), mask=(t < length)[:, None] & (p < width)[None, :])
        to_end = tl.exp2((total - mine) + (over - rest)) * step
        across = tl.exp2(total + over)
        h = h * across + dot(tl.trans(scaled(u, to_end, PRODUCT)), keys, PRODUCT)
        kept = kept * across
    if ENDS:
        store_state(last, h, own, first_p, first_n, width, states, TILED, P, N)
        if (tl.program_id(1) == 0) & (block == 0):
            tl.store(decay + own, kept)
    elif piece == n_pieces - 1:
        store_state(last, h, of_head.to(tl.int64), first_p, first_n, width, states, TILED, P, N)


@triton.jit
def leave_sums(
    log_a, dt, segments, coarse, fine, steps, row, head, begin, at_sums, chunks, length, heads, Q: tl.constexpr
):  # fmt: skip
    """From at_sums on, for ``chunks`` chunks from step ``begin``: coarse and fine, of each step the base-2 logarithm of
    the decay since its chunk began, in two parts if there is a place for the second, and steps, dt. After the last step
    the sums stay as they are, and dt is 0. All programs of a head leave the same.

    The sums of multiples of 1/256 are exact, and so are their differences; the rests stay small. Where a document
    begins, the decay is nothing, so that nothing else has to know of documents.
    """
    c = tl.arange(0, _AT_ONCE)
    q = tl.arange(0, Q)
    for part in range(0, tl.cdiv(chunks, _AT_ONCE)):
        chunk = (begin * 0 + part) * _AT_ONCE + c
        i = chunk[:, None] * Q + q[None, :]
        t = begin + i
        inside = t < length
        at = (row * length + t) * heads + head
        each = tl.load(log_a + at, mask=inside, other=0.0) * 1.4426950408889634
        each = tl.where(each < -600.0, -600.0, each)  # its power is 0 likewise; what is no number stays so
        if segments is not None:
            now = tl.load(segments + (row * length + t), mask=inside, other=0)
            before = tl.load(segments + (row * length + t - 1), mask=inside & (t > 0), other=0)
            each = tl.where((now != before) & inside, -300.0, each)
        multiple = tl.floor(each * 256.0 + 0.5) / 256.0
        whole = tl.cumsum(multiple, 1)
        rest = tl.cumsum(each - multiple, 1)
        own = (chunk < chunks)[:, None] & (q >= 0)[None, :]
        if fine is not None:
            tl.store(coarse + (at_sums + i), whole, mask=own)
            tl.store(fine + (at_sums + i), rest, mask=own)
        else:
            tl.store(coarse + (at_sums + i), whole + rest, mask=own)
        if steps is not None:
            tl.store(steps + (at_sums + i), tl.load(dt + at, mask=inside, other=0.0), mask=own)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["n_pieces"])
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
def tile(m, row, first, column, end, m_row, m_step, length, TILED: tl.constexpr, Q: tl.constexpr, W: tl.constexpr):
    """(Q, W) of m (b, length, columns) from a step and a column; 0 where there is no step, and no column before end."""
    if TILED:
        return m.load([row.to(tl.int32), first.to(tl.int32), column.to(tl.int32)]).reshape(Q, W)
    else:
        t = first + tl.arange(0, Q)
        w = column + tl.arange(0, W)
        at = row * m_row + t[:, None] * m_step + w[None, :]
        return tl.load(m + at, mask=(t < length)[:, None] & (w < end)[None, :], other=0.0)


@triton.jit
def load_state(
    m, own, first_p, first_n, width, states, TILED: tl.constexpr, P: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """A tile (P, N) of the state with a number, of m (..., width, states), or TILED a descriptor of (rows, states)."""
    if TILED:
        return m.load([(own * width + first_p).to(tl.int32), first_n.to(tl.int32)])
    else:
        at, is_state = _state_tile(own, first_p, first_n, width, states, P, N)
        return tl.load(m + at, mask=is_state, other=0.0)


@triton.jit
def store_state(
    m, h, own, first_p, first_n, width, states, TILED: tl.constexpr, P: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    if TILED:
        m.store([(own * width + first_p).to(tl.int32), first_n.to(tl.int32)], h.to(m.dtype))
    else:
        at, is_state = _state_tile(own, first_p, first_n, width, states, P, N)
        tl.store(m + at, h.to(m.dtype.element_ty), mask=is_state)


@triton.jit
def _state_tile(own, first_p, first_n, width, states, P: tl.constexpr, N: tl.constexpr):
    p = first_p + tl.arange(0, P)
    n = first_n + tl.arange(0, N)
    return (own * width + p)[:, None] * states + n[None, :], (p < width)[:, None] & (n < states)[None, :]


@triton.jit
def decays_of(coarse, fine, steps, at, Q: tl.constexpr):
    """Both parts of the sums of a chunk at each step, dt there (1 without), and both parts at the chunk's end."""
    t = at + tl.arange(0, Q)
    mine = tl.load(coarse + t)
    total = tl.load(coarse + (at + (Q - 1)))
    rest = tl.zeros((Q,), tl.float32)
    over = 0.0
    if fine is not None:
        rest = tl.load(fine + t)
        over = tl.load(fine + (at + (Q - 1)))
    step = tl.full((Q,), 1.0, tl.float32)
    if steps is not None:
        step = tl.load(steps + t)
    return mine, rest, step, total, over


@triton.jit
def within_chunk(mine, rest, fine, q):
    """(t, s) the decay from step s to step t of a chunk, 0 where s is later."""
    gap = mine[:, None] - mine[None, :]
    if fine is not None:
        gap += rest[:, None] - rest[None, :]
    return tl.exp2(tl.where(q[:, None] >= q[None, :], gap, -float("inf")))


@triton.jit
def scaled(m, factor, PRODUCT: tl.constexpr):
    """Rows of m times their factors, as exact as a product takes them."""
    found = m.to(tl.float32) * factor[:, None]
    if PRODUCT == "bfloat16":
        found = found.to(tl.bfloat16)
    return found
