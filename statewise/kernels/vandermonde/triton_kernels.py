"""The Vandermonde product and its adjoint in Triton: tables of powers in registers, and matrix products of them.

With l = i STEPS + j, A^l = A^(i STEPS) A^j: a program has some lines i and all j, so that it needs few powers for many
sums. Each power comes from log A alone, in fixed point: the angle in turns of 2^-64, whose products with l lose whole
turns by themselves, and log2 |A| in units of 2^-52. So no power is less exact than another, however long.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statewise.kernels.gpu.triton_products import dot


@triton.jit
def sums_of_powers(
    c, rate, turns, K, outputs, n, length, lines, blocks,
    PRODUCT: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """K (w, outputs, length), the real part of sum_n c_n A_n^l.

    c (w, outputs, n) in pairs; rate, turns (w, n) say what A is
    A channel has ``lines`` of STEPS for each output, all of them in ``blocks`` programs of ROWS.
    """
    channel = (tl.program_id(0) // blocks).to(tl.int64)
    row = (tl.program_id(0) % blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    output = (row.to(tl.int32) // lines).to(tl.int64)
    line = (row.to(tl.int32) % lines).to(tl.int64)
    is_row = output < outputs
    j = tl.arange(0, STEPS).to(tl.int64)
    sums = tl.zeros((ROWS, STEPS), tl.float32)
    for first in range(0, n, STATES):
        k = first + tl.arange(0, STATES).to(tl.int64)
        state = k < n
        fall = tl.load(rate + (channel * n + k), mask=state, other=0)
        turn = tl.load(turns + (channel * n + k), mask=state, other=0)
        at = (channel * outputs + output)[:, None] * n + k[None, :]
        inside = is_row[:, None] & state[None, :]
        re = tl.load(c + at * 2, mask=inside, other=0.0)
        im = tl.load(c + (at * 2 + 1), mask=inside, other=0.0)
        far, far_im = power(fall[None, :], turn[None, :], (line * STEPS)[:, None])
        near, near_im = power(fall[:, None], turn[:, None], j[None, :])
        sums += dot(re * far - im * far_im, near, PRODUCT) - dot(re * far_im + im * far, near_im, PRODUCT)
    step = line[:, None] * STEPS + j[None, :]
    at = (channel * outputs + output)[:, None] * length + step
    tl.store(K + at, sums, mask=is_row[:, None] & (step < length))


@triton.jit
def sums_over_steps(
    grad, rate, turns, sums, channels, outputs, n, length, lines, blocks,
    PRODUCT: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """sums (pieces, channels * outputs, 4, n), to be summed over pieces of ``blocks`` of ROWS lines: of grad_l A_n^l
    and of grad_l l A_n^(l-1), each its real and its imaginary part.

    The latter is the former of (l + 1) grad_(l+1): both take the same powers, and nothing is divided by A.
    """
    of = tl.program_id(0).to(tl.int64)
    channel = (tl.program_id(0) // outputs).to(tl.int64)
    k = tl.program_id(1).to(tl.int64) * STATES + tl.arange(0, STATES).to(tl.int64)
    piece = tl.program_id(2).to(tl.int64)
    state = k < n
    fall = tl.load(rate + (channel * n + k), mask=state, other=0)[None, :]
    turn = tl.load(turns + (channel * n + k), mask=state, other=0)[None, :]
    j = tl.arange(0, STEPS).to(tl.int64)
    near, near_im = power(fall, turn, j[:, None])
    is_near = (j < length)[:, None]  # beyond it a power may be infinite
    near, near_im = tl.where(is_near, near, 0.0), tl.where(is_near, near_im, 0.0)
    value = tl.zeros((ROWS, STATES), tl.float32)
    value_im = tl.zeros((ROWS, STATES), tl.float32)
    change = tl.zeros((ROWS, STATES), tl.float32)
    change_im = tl.zeros((ROWS, STATES), tl.float32)
    for block in range(0, blocks):
        line = ((piece * blocks + block) * ROWS + tl.arange(0, ROWS).to(tl.int64))[:, None]
        step = line * STEPS + j[None, :]
        far, far_im = power(fall, turn, tl.where(line < lines, line, 0) * STEPS)
        g = tl.load(grad + (of * length + step), mask=step < length, other=0.0)
        inner, inner_im = dot(g, near, PRODUCT), dot(g, near_im, PRODUCT)
        value += far * inner - far_im * inner_im
        value_im += far * inner_im + far_im * inner
        step += 1
        g = tl.load(grad + (of * length + step), mask=step < length, other=0.0) * step.to(tl.float32)
        inner, inner_im = dot(g, near, PRODUCT), dot(g, near_im, PRODUCT)
        change += far * inner - far_im * inner_im
        change_im += far * inner_im + far_im * inner
    at = ((piece * channels * outputs + of) * 4) * n + k
    tl.store(sums + at, tl.sum(value, 0), mask=state)
    tl.store(sums + (at + n), tl.sum(value_im, 0), mask=state)
    tl.store(sums + (at + n + n), tl.sum(change, 0), mask=state)
    tl.store(sums + (at + n + n + n), tl.sum(change_im, 0), mask=state)


@triton.jit
def power(rate, turns, step):
    """A^l, from log2 |A| in units of 2^-52 and its angle in turns of 2^-64, both of 64 bits: its parts in float32."""
    rough = rate.to(tl.float32) * 2.220446049250313e-16 * step.to(tl.float32)
    exponent = rate * step  # of 64 bits, which is enough where ``rough`` is no power of two out of range
    whole = exponent >> 52
    part = (exponent - (whole << 52)).to(tl.float32) * 2.220446049250313e-16
    size = tl.exp2(part) * tl.exp2(whole.to(tl.float32))
    size = tl.where(rough < -126.0, 0.0, tl.where(rough > 128.0, float("inf"), size))
    phase = turns * step  # without its whole turns, which do not fit
    quarter = (phase + 2305843009213693952) >> 62  # the nearest quarter of a turn
    angle = (phase - (quarter << 62)).to(tl.float32) * 3.406121584701714e-19  # 2 pi 2^-64: at most an eighth
    y = angle * angle
    sine = angle + angle * y * (-1.0 / 6 + y * (1.0 / 120 + y * (-1.0 / 5040 + y * (1.0 / 362880))))
    cosine = 1.0 + y * (-0.5 + y * (1.0 / 24 + y * (-1.0 / 720 + y * (1.0 / 40320))))
    quarter = quarter & 3
    is_odd = (quarter & 1) == 1
    re = tl.where(is_odd, sine, cosine)
    im = tl.where(is_odd, cosine, sine)
    re = tl.where((quarter == 1) | (quarter == 2), -re, re)
    im = tl.where(quarter >= 2, -im, im)
    return tl.where(size == 0.0, 0.0, size * re), tl.where(size == 0.0, 0.0, size * im)
