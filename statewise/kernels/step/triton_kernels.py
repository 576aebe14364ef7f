"""The kernels of a step in Triton. Launches and tiles: triton.py; definitions: pytorch.py."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_matvec(
    x, norm_weight, weight, scales, bias, residual, y, inputs, projected, n_out, k, group_width, inverse, eps, offset,
    shift_programs, width, first, projected_stride,
    BITS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """x (ROWS, k), weight (n_out, k), residual and y (ROWS, n_out), all in rows side by side; bias (n_out,).

    norm_weight: None: there is no norm
    BITS: of a number of the weight. 8: of int8, with scales (n_out,). 4: of nibbles and scales, as IntegerMatrix has
    them, K being the bytes of a row.
    Each program has M rows of the weight, whole. The first ``shift_programs`` move C channels of a convolution's state
    on instead: inputs (ROWS, TAPS - 1, width), from columns ``first`` on of projected. TAPS 1: there is none.
    """
    program = tl.program_id(0)
    if TAPS == 1:
        _product(x, norm_weight, weight, scales, bias, residual, y, program, n_out, k, group_width, inverse, eps,
                 offset, BITS, ROWS, GROUPS, M, K)  # fmt: skip
    else:
        if program < shift_programs:
            _shift(inputs, projected, program, width, first, projected_stride, ROWS, TAPS, C)
        else:
            _product(x, norm_weight, weight, scales, bias, residual, y, program - shift_programs, n_out, k,
                     group_width, inverse, eps, offset, BITS, ROWS, GROUPS, M, K)  # fmt: skip


@triton.jit
def _product(
    x, norm_weight, weight, scales, bias, residual, y, program, n_out, k, group_width, inverse, eps, offset,
    BITS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    out = program.to(tl.int64) * M + tl.arange(0, M).to(tl.int64)
    if BITS == 4:
        _nibbles(x, norm_weight, weight, scales, bias, residual, y, out, n_out, k, group_width, inverse, eps, offset,
                 ROWS, GROUPS, K)  # fmt: skip
    else:
        _numbers(x, norm_weight, weight, scales, bias, residual, y, out, n_out, k, group_width, inverse, eps, offset,
                 ROWS, GROUPS, K)  # fmt: skip


@triton.jit
def _numbers(
    x, norm_weight, weight, scales, bias, residual, y, out, n_out, k, group_width, inverse, eps, offset,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    AHEAD: tl.constexpr = ROWS > 1 and K <= 4096  # where there are registers for it
    is_out = out < n_out
    column = tl.arange(0, K)
    inside = column < k
    # first of all, so that it is on its way while the norm is computed
    w = tl.load(weight + out[:, None] * k + column.to(tl.int64)[None, :], mask=is_out[:, None] & inside[None, :],
                other=0)  # fmt: skip
    at = column.to(tl.int64)
    row = x
    raw = tl.load(row + at, mask=inside, other=0.0)
    if norm_weight is not None:
        g = tl.load(norm_weight + at, mask=inside, other=0.0).to(tl.float32) + offset
    y_row, residual_row = y, residual
    for r in range(ROWS):
        n = raw.to(tl.float32)
        if AHEAD:  # the next row, while this one is multiplied
            row += tl.full((), k, tl.int64)
            raw = tl.load(row + at, mask=inside & (r + 1 < ROWS), other=0.0)
        if norm_weight is not None:
            if GROUPS == 1:
                n = n * tl.rsqrt(tl.sum(n * n, 0) * inverse + eps) * g
            else:
                group = column // group_width
                scale = tl.zeros((K,), tl.float32)
                for i in range(GROUPS):
                    own = group == i
                    scale = tl.where(own, tl.rsqrt(tl.sum(tl.where(own, n * n, 0.0), 0) * inverse + eps), scale)
                n = n * scale * g
            if scales is None:
                n = n.to(weight.dtype.element_ty).to(tl.float32)
            else:
                n = n.to(norm_weight.dtype.element_ty).to(tl.float32)
        if scales is None:
            total = tl.sum(w.to(tl.float32) * n[None, :], 1)
        else:
            total = tl.sum(_whole((w.to(tl.int32) & 255) ^ 128, 128) * n[None, :], 1)
            total *= tl.load(scales + out, mask=is_out, other=0.0).to(tl.float32)
        _store(total, bias, residual_row, y_row, out, is_out)
        y_row += tl.full((), n_out, tl.int64)
        if residual is not None:
            residual_row += tl.full((), n_out, tl.int64)
        if not AHEAD and ROWS > 1:
            row += tl.full((), k, tl.int64)
            raw = tl.load(row + at, mask=inside & (r + 1 < ROWS), other=0.0)


@triton.jit
def _nibbles(
    x, norm_weight, weight, scales, bias, residual, y, out, n_out, k, group_width, inverse, eps, offset,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Byte j of a row has column j in its lower half, and in its upper half column j + half, as many as there are."""
    is_out = out < n_out
    groups = (k + 63) // 64  # of 32 columns, in each half
    half = groups << 5
    column = tl.arange(0, K)
    stored = column < half
    low = column.to(tl.int64)
    high = low + half
    w = tl.load(weight + out[:, None] * half + low[None, :], mask=is_out[:, None] & stored[None, :], other=0)
    # a scale for each 16 bytes, which a thread adds up by itself: two neighbours have the same
    group = tl.arange(0, K // 16) // 2
    place = scales + out[:, None] * 2 * groups + group.to(tl.int64)[None, :]
    there = is_out[:, None] & (group < groups)[None, :]
    low_scale = tl.load(place, mask=there, other=0.0).to(tl.float32)
    high_scale = tl.load(place + groups.to(tl.int64), mask=there, other=0.0).to(tl.float32)
    in_low, in_high = stored & (low < k), stored & (high < k)
    row, y_row, residual_row = x, y, residual
    if norm_weight is not None:
        low_g = tl.load(norm_weight + low, mask=in_low, other=0.0).to(tl.float32) + offset
        high_g = tl.load(norm_weight + high, mask=in_high, other=0.0).to(tl.float32) + offset
    for _ in range(ROWS):
        a = tl.load(row + low, mask=in_low, other=0.0).to(tl.float32)
        b = tl.load(row + high, mask=in_high, other=0.0).to(tl.float32)
        if norm_weight is not None:
            if GROUPS == 1:
                scale = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) * inverse + eps)
                a, b = a * scale * low_g, b * scale * high_g
            else:
                of_a, of_b = column // group_width, (column + half) // group_width  # in 64 bits a call each
                a_scale, b_scale = tl.zeros((K,), tl.float32), tl.zeros((K,), tl.float32)
                for i in range(GROUPS):
                    squares = tl.sum(tl.where(of_a == i, a * a, 0.0), 0) + tl.sum(tl.where(of_b == i, b * b, 0.0), 0)
                    scale = tl.rsqrt(squares * inverse + eps)
                    a_scale, b_scale = tl.where(of_a == i, scale, a_scale), tl.where(of_b == i, scale, b_scale)
                a, b = a * a_scale * low_g, b * b_scale * high_g
            a = a.to(norm_weight.dtype.element_ty).to(tl.float32)
            b = b.to(norm_weight.dtype.element_ty).to(tl.float32)
        bits = w.to(tl.int32)
        total = tl.sum(_by_sixteens(_whole(bits & 15, 8) * a[None, :]) * low_scale, 1)
        total += tl.sum(_by_sixteens(_whole(bits >> 4, 8) * b[None, :]) * high_scale, 1)
        _store(total, bias, residual_row, y_row, out, is_out)
        row += tl.full((), k, tl.int64)
        y_row += tl.full((), n_out, tl.int64)
        if residual is not None:
            residual_row += tl.full((), n_out, tl.int64)


@triton.jit
def _whole(bits, zero: tl.constexpr):
    """bits - zero of integers from 0 to 255, in float32. As the last bits of 2^23 they take fewer cycles than a
    conversion, of which a card makes a quarter as many as it adds."""
    return (bits | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + zero)


@triton.jit
def _by_sixteens(m):
    """The sums of neighbours along the last axis."""
    return tl.sum(tl.reshape(m, (m.shape[0], m.shape[1] // 16, 16)), 2)


@triton.jit
def _store(total, bias, residual, y, out, is_out):
    if bias is not None:
        total += tl.load(bias + out, mask=is_out, other=0.0).to(tl.float32)
    if residual is not None:
        total = total.to(y.dtype.element_ty).to(tl.float32)
        total += tl.load(residual + out, mask=is_out, other=0.0).to(tl.float32)
    tl.store(y + out, total.to(y.dtype.element_ty), mask=is_out)


@triton.jit
def _shift(
    inputs, projected, program, width, first, projected_stride, ROWS: tl.constexpr, TAPS: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """Each channel's inputs move up by one place; the last place gets the raw input of this step."""
    channel = program.to(tl.int64) * C + tl.arange(0, C).to(tl.int64)
    real = channel < width
    place = inputs + channel
    source = projected + (channel + first)
    for _ in range(ROWS):
        for _ in tl.static_range(TAPS - 2):
            follows = place + tl.full((), width, tl.int64)
            tl.store(place, tl.load(follows, mask=real, other=0.0), mask=real)
            place = follows
        tl.store(place, tl.load(source, mask=real, other=0.0).to(tl.float32), mask=real)
        place += tl.full((), width, tl.int64)
        source += tl.full((), projected_stride, tl.int64)


@triton.jit
def mamba2_step(
    projected, inputs, h, taps, conv_bias, a_log, dt_bias, skip, u, heads, heads_each, d_head, d_state, groups, low,
    high, TAPS: tl.constexpr, LIMIT: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """projected (rows, d_inner + width + heads) side by side: z; x, B, C; dt. inputs (rows, TAPS - 1, width), which
    stay. h (rows, heads, d_head, d_state), written over; u (rows, d_inner), both float32. A program has P of the width
    of a head of a row; ``heads_each`` heads share B and C."""
    row_head = tl.program_id(0)
    row = (row_head // heads).to(tl.int64)
    head = row_head % heads
    group = (head // heads_each).to(tl.int64)
    wide_head = head.to(tl.int64)
    p = tl.program_id(1).to(tl.int64) * P + tl.arange(0, P).to(tl.int64)
    n = tl.arange(0, N).to(tl.int64)
    is_p = p < d_head
    is_n = n < d_state
    real = is_p[:, None] & is_n[None, :]
    place = h + (row_head.to(tl.int64) * d_head + p[:, None]) * d_state + n[None, :]
    before = tl.load(place, mask=real, other=0.0)
    d_inner = tl.full((), heads, tl.int64) * d_head
    d_keys = tl.full((), groups, tl.int64) * d_state
    width = d_inner + 2 * d_keys
    mine = projected + row * (d_inner + width + heads)
    kept = inputs + row * width * (TAPS - 1)
    channel = wide_head * d_head + p
    x = _convolved(mine + d_inner, kept, taps, conv_bias, channel, is_p, width, TAPS)
    key = d_inner + group * d_state + n
    b = _convolved(mine + d_inner, kept, taps, conv_bias, key, is_n, width, TAPS)
    c = _convolved(mine + d_inner, kept, taps, conv_bias, key + d_keys, is_n, width, TAPS)
    z = tl.load(mine + channel, mask=is_p, other=0.0).to(tl.float32)
    dt = tl.load(mine + d_inner + width + wide_head).to(tl.float32) + tl.load(dt_bias + wide_head)
    dt = _softplus(dt)
    if LIMIT:
        dt = tl.minimum(tl.maximum(dt, low), high)
    a = tl.exp(-dt * tl.exp(tl.load(a_log + wide_head)))
    after = a * before + (dt * x)[:, None] * b[None, :]
    tl.store(place, after, mask=real)
    out = tl.sum(after * c[None, :], 1) + tl.load(skip + wide_head) * x
    tl.store(u + row * d_inner + channel, out * z * tl.sigmoid(z), mask=is_p)


@triton.jit
def _convolved(raw, kept, taps, bias, channel, real, width, TAPS: tl.constexpr):
    """SiLU of the short convolution of these channels, rounded as the raw inputs are stored."""
    newest = tl.load(raw + channel, mask=real, other=0.0)
    total = newest.to(tl.float32) * tl.load(taps + channel * TAPS, mask=real, other=0.0).to(tl.float32)
    for i in tl.static_range(1, TAPS):
        past = tl.load(kept + ((TAPS - 1 - i) * width + channel), mask=real, other=0.0)
        total += past * tl.load(taps + (channel * TAPS + i), mask=real, other=0.0).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=real, other=0.0).to(tl.float32)
    return (total * tl.sigmoid(total)).to(newest.dtype).to(tl.float32)


@triton.jit
def _softplus(v):
    """log(1 + e^v) = max(v, 0) + log(1 + e^-|v|), the latter as 2 artanh(e / (2 + e)), a series in s <= 1/3.

    The card's logarithm is as exact as its largest result: for a small dt no four digits would be right.
    """
    e = tl.exp(-tl.abs(v))
    s = e / (2.0 + e)
    q = s * s
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13))))))
    return tl.maximum(v, 0.0) + 2.0 * s * series
