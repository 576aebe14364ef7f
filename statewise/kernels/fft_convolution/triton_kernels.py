"""The convolution of a row and a channel in one program: its window is transformed, filtered and transformed back by
matrix products, and the spectrum never reaches the memory. The transform is that of triton_transform.py.

Factors are float16, and sums float32. A window is scaled to at most 2 by a power of two, as the spectrum of a filter is
by its caller, so that no number leaves float16's range: |F1 x| <= 2 N1, |x^| <= 2 n, with the filter at most 2^14, and
the inverse is divided by N2 on its way.

``still`` is 0. The compiler does not know it, so it unrolls no loop, and keeps nothing in registers that a cache has.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["channels", "outputs", "windows", "each", "still"])
def convolve_windows(
    x, spectra, scales, first, twiddle, second, y,
    channels, outputs, windows, each, x_row, x_channel, x_output, x_length, y_length, x_start, y_start, still,
    CORRELATES: tl.constexpr, HALVES: tl.constexpr, PLACE: tl.constexpr,
    HALF: tl.constexpr, N2: tl.constexpr, BLOCK: tl.constexpr, STRIPE: tl.constexpr,
):  # fmt: skip
    """y (rows, channels, outputs, y_length): each window of half n numbers, of x convolved or correlated with a filter.

    each: programs of a filter, for all windows of all rows
    x: a row, a channel and, if each has its own, an output of it are x_row, x_channel and x_output numbers apart
    spectra (channels, outputs, 2, HALF, N2), whose filters are ``scales`` (channels, outputs) times as large
    x_start, y_start: where the first window begins in x and in y; the next are HALF N2 further
    HALVES: of n that are read: 1, behind which x is 0, or 2
    PLACE: the half of n that is y, 0 or 1
    """
    filtered = (tl.program_id(0) // each).to(tl.int64)
    channel, output = filtered // outputs, filtered % outputs
    row, window = (tl.program_id(0) % each).to(tl.int64) // windows, (tl.program_id(0) % each).to(tl.int64) % windows
    x += row * x_row + channel * x_channel + output * x_output
    start = x_start + window * (HALF * N2)
    scale, inverse, is_finite = size(x, start, x_length, HALVES * HALF + still, N2, STRIPE)
    n1 = tl.arange(0, HALF).to(tl.int64)
    n2 = tl.arange(0, N2).to(tl.int64)
    sums = tl.zeros((HALF, N2), tl.float32)
    for k in range(0, HALF + still, BLOCK):
        k1 = k + tl.arange(0, BLOCK).to(tl.int64)
        at = k1[:, None] * N2 + n2[None, :]
        turns = second + still.to(tl.int64) * k
        re, im = transformed(
            x, start, x_length, inverse, first, twiddle, turns, k1, 0, HALVES * HALF + still, HALF, N2, STRIPE
        )
        filter_re = tl.load(spectra + (filtered * (2 * HALF * N2) + at))
        filter_im = tl.load(spectra + (filtered * (2 * HALF * N2) + HALF * N2 + at))
        if CORRELATES:
            filter_im = -filter_im
        low = (re * filter_re - im * filter_im).to(tl.float16)
        low_im = (re * filter_im + im * filter_re).to(tl.float16)
        turn_re, turn_im = second_table(turns, N2)
        re = tl.dot(low_im, turn_im, tl.dot(low, turn_re))
        im = tl.dot(-low, turn_im, tl.dot(low_im, turn_re))
        twist_re, twist_im = tl.load(twiddle + at), tl.load(twiddle + (HALF * N2 + at))
        low = ((re * twist_re + im * twist_im) * (1.0 / N2)).to(tl.float16)
        low_im = ((im * twist_re - re * twist_im) * (1.0 / N2)).to(tl.float16)
        half_re, half_im = first_table(first, n1[:, None] + PLACE * HALF, k1[None, :], HALF)
        sums = tl.dot(half_re, low, sums)
        sums = tl.dot(half_im, low_im, sums)
    sums *= tl.load(scales + filtered) * (1.0 / HALF)
    sums = tl.where(is_finite, sums * scale, float("nan"))
    time = y_start + window * (HALF * N2) + n1[:, None] * N2 + n2[None, :]
    at = ((row * channels + channel) * outputs + output) * y_length + time
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=(time >= 0) & (time < y_length))


@triton.jit(do_not_specialize=["rows", "channels", "outputs", "windows", "still"])
def products_of_spectra(
    x, grad, first, twiddle, second, sums,
    rows, channels, outputs, windows, x_length, y_length, x_start, y_start, still,
    HALVES: tl.constexpr, PLACE: tl.constexpr,
    HALF: tl.constexpr, N2: tl.constexpr, BLOCK: tl.constexpr, STRIPE: tl.constexpr,
):  # fmt: skip
    """sums (pieces, channels, outputs, 2, HALF, N2), to be summed over pieces of the rows: of conj(x^) grad^, whose
    inverse is the gradient of the filters.

    x (rows, channels, x_length), grad (rows, channels, outputs, y_length). The rest as for :func:`convolve_windows`,
    of which this is the adjoint.
    """
    channel = (tl.program_id(0) // outputs).to(tl.int64)
    output = (tl.program_id(0) % outputs).to(tl.int64)
    k1 = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    n2 = tl.arange(0, N2).to(tl.int64)
    total = tl.zeros((BLOCK, N2), tl.float32)
    total_im = tl.zeros((BLOCK, N2), tl.float32)
    for i in range(tl.program_id(2).to(tl.int64), rows.to(tl.int64) * windows, tl.num_programs(2)):
        row = (i // windows).to(tl.int64)
        window = (i % windows).to(tl.int64)
        turns, twists = second + still.to(tl.int64) * i, twiddle + still.to(tl.int64) * i
        of_row = x + (row * channels + channel) * x_length
        start = x_start + window * (HALF * N2)
        scale, inverse, is_finite = size(of_row, start, x_length, HALVES * HALF + still, N2, STRIPE)
        re, im = transformed(
            of_row, start, x_length, inverse, first, twists, turns, k1, 0, HALVES * HALF + still, HALF, N2, STRIPE
        )
        re *= scale
        im *= scale
        of_row = grad + ((row * channels + channel) * outputs + output) * y_length
        start = y_start + window * (HALF * N2)
        scale, inverse, has_slopes = size(of_row, start, y_length, HALF + still, N2, STRIPE)
        slope_re, slope_im = transformed(
            of_row, start, y_length, inverse, first, twists, turns, k1, PLACE * HALF, HALF + still, HALF, N2, STRIPE
        )
        scale = tl.where(is_finite & has_slopes, scale, float("nan"))
        total += (re * slope_re + im * slope_im) * scale
        total_im += (re * slope_im - im * slope_re) * scale
    piece = tl.program_id(2).to(tl.int64)
    to = ((piece * channels + channel) * outputs + output) * (2 * HALF * N2) + k1[:, None] * N2 + n2[None, :]
    tl.store(sums + to, total)
    tl.store(sums + (to + HALF * N2), total_im)


@triton.jit
def size(x, start, length, many, N2: tl.constexpr, STRIPE: tl.constexpr):
    """A power of two that brings the ``many`` rows of a window below 2, its inverse, and whether all are numbers.

    The last two powers of float32 are left out, so that neither is less than the least normal number.
    """
    largest = tl.zeros((STRIPE, N2), tl.float32)
    for n in range(0, many, STRIPE):
        z = tl.abs(stripe(x, start, n, length, N2, STRIPE))
        largest = tl.maximum(largest, tl.where(z < float("inf"), z, float("inf")))
    largest = tl.max(largest)
    exponent = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 1), 253)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    return scale, ((254 - exponent) << 23).to(tl.float32, bitcast=True), largest < float("inf")


@triton.jit
def stripe(x, start, n, length, N2: tl.constexpr, STRIPE: tl.constexpr):
    """Rows of N2 numbers from the n-th of a window that begins at ``start``: 0 outside of x."""
    n1 = n + tl.arange(0, STRIPE).to(tl.int64)
    time = start + n1[:, None] * N2 + tl.arange(0, N2).to(tl.int64)[None, :]
    return tl.load(x + time, mask=(time >= 0) & (time < length), other=0.0).to(tl.float32)


@triton.jit
def transformed(
    x, start, length, inverse, first, twiddle, second, k1, begin, many,
    HALF: tl.constexpr, N2: tl.constexpr, STRIPE: tl.constexpr,
):  # fmt: skip
    """Rows k1 of ((F1 x) * T) F2. x begins at ``start`` in memory and at row ``begin`` of its window, and has ``many``
    rows."""
    n2 = tl.arange(0, N2).to(tl.int64)
    re = tl.zeros((k1.shape[0], N2), tl.float32)
    im = tl.zeros((k1.shape[0], N2), tl.float32)
    for n in range(0, many, STRIPE):
        n1 = n + tl.arange(0, STRIPE).to(tl.int64)
        z = stripe(x, start, n, length, N2, STRIPE)
        low = tl.where(tl.abs(z) < float("inf"), z * inverse, 0.0).to(tl.float16)
        half_re, half_im = first_table(first, (begin + n1)[None, :], k1[:, None], HALF)
        re, im = tl.dot(half_re, low, re), tl.dot(half_im, low, im)
    at = k1[:, None] * N2 + n2[None, :]
    twist_re, twist_im = tl.load(twiddle + at), tl.load(twiddle + (HALF * N2 + at))
    low = (re * twist_re - im * twist_im).to(tl.float16)
    low_im = (re * twist_im + im * twist_re).to(tl.float16)
    turn_re, turn_im = second_table(second, N2)
    return tl.dot(-low_im, turn_im, tl.dot(low, turn_re)), tl.dot(low, turn_im, tl.dot(low_im, turn_re))


@triton.jit
def first_table(first, n1, k1, HALF: tl.constexpr):
    """F1 (2, HALF, 2 HALF) at k1 and n1, its real and its imaginary part."""
    at = k1 * (2 * HALF) + n1
    return tl.load(first + at), tl.load(first + (2 * HALF * HALF + at))


@triton.jit
def second_table(second, N2: tl.constexpr):
    """F2 (2, N2, N2), its real and its imaginary part."""
    n2 = tl.arange(0, N2).to(tl.int64)
    at = n2[:, None] * N2 + n2[None, :]
    return tl.load(second + at), tl.load(second + (N2 * N2 + at))
