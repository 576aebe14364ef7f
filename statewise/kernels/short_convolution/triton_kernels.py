"""The convolution and its adjoint in Triton: a program walks through some steps of some channels.

It keeps the last steps in registers, so that each number is loaded once, in vectors.
"""

# mypy: disable-error-code=assignment
# Tuples grow where Triton unrolls a loop, and have a type of their own at each step.

from __future__ import annotations

import triton
import triton.language as tl

from statewise.kernels.gpu.triton_vectors import eighths


@triton.jit
def convolution_forward(
    x, taps, history, bias, segments, y, length, width, copies, batch_stride, step_stride, tiles, steps,
    TAPS: tl.constexpr, SILU: tl.constexpr, EIGHTHS: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """x (b, length, width), channels side by side; taps (width / copies, TAPS); history, y side by side throughout."""
    if EIGHTHS:
        width, batch_stride, step_stride = eighths(width), eighths(batch_stride), eighths(step_stride)
    row = (tl.program_id(0) // tiles).to(tl.int64)  # divided in 32 bits: in 64 that is a call
    first = (tl.program_id(0) % tiles).to(tl.int64) * steps
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    channel = c < width
    x += row * batch_stride + c
    y += row * length * width + c
    if segments is not None:
        segments += row * length
    weights = _weights(taps, bias, c, channel, copies, TAPS)
    past = _past(x, history + row * width * (TAPS - 1) + c, first, channel, width, step_stride, TAPS)
    past_ids = _past_ids(segments, first, TAPS)
    for start in range(0, steps, AT_ONCE):
        t = first + start
        loaded, ids = _loaded(x, t, channel, length, step_stride, AT_ONCE), _ids(segments, t, length, AT_ONCE)
        for k in tl.static_range(AT_ONCE):
            values, value_ids = (loaded[k].to(tl.float32),) + past, past_ids
            if segments is not None:
                value_ids = (ids[k],) + past_ids
            z = _convolved(weights, _of_segment(values, value_ids, segments, TAPS), TAPS)
            if SILU:
                z = z / (1.0 + tl.exp(-z))
            tl.store(y + (t + k) * width, z.to(y.dtype.element_ty), mask=channel & (t + k < length))
            past, past_ids = values[: TAPS - 1], value_ids[: TAPS - 1]


@triton.jit
def convolution_backward(
    grad, x, taps, history, bias, segments, dx, d_history, partial, length, width, copies, grad_batch_stride,
    grad_step_stride, batch_stride, step_stride, tiles, steps,
    TAPS: tl.constexpr, SILU: tl.constexpr, EIGHTHS: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """dx, d_history; partial (b * tiles, TAPS + 1, width): of each program the sums for the taps, and for the bias.

    ``open`` are the gradients of the TAPS - 1 steps before the present one: each step adds to all of them, and then the
    eldest is whole. So a program walks TAPS - 1 steps beyond its own, which only add, and count in no sum of its taps.
    """
    if EIGHTHS:
        width, batch_stride, step_stride = eighths(width), eighths(batch_stride), eighths(step_stride)
        grad_batch_stride, grad_step_stride = eighths(grad_batch_stride), eighths(grad_step_stride)
    program = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(0) % tiles).to(tl.int64) * steps
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    channel = c < width
    grad += row * grad_batch_stride + c
    x += row * batch_stride + c
    dx += row * length * width + c
    if segments is not None:
        segments += row * length
    weights = _weights(taps, bias, c, channel, copies, TAPS)
    past = _past(x, history + row * width * (TAPS - 1) + c, first, channel, width, step_stride, TAPS)
    past_ids = _past_ids(segments, first, TAPS)
    open = _zeros(TAPS - 1, WIDTH)
    if first == 0:
        _finish(
            d_history + row * width * (TAPS - 1) + c, first, first, TAPS - 1, grad, x, weights, segments, first, past,
            past_ids, open, channel, length, width, grad_step_stride, step_stride, SILU, TAPS,
        )  # fmt: skip
    sums = _zeros(TAPS + 1, WIDTH)
    for start in range(0, steps, AT_ONCE):
        t = first + start
        loaded, ids = _loaded(x, t, channel, length, step_stride, AT_ONCE), _ids(segments, t, length, AT_ONCE)
        grads = _loaded(grad, t, channel, length, grad_step_stride, AT_ONCE)
        for k in tl.static_range(AT_ONCE):
            values, value_ids = (loaded[k].to(tl.float32),) + past, past_ids
            if segments is not None:
                value_ids = (ids[k],) + past_ids
            of_segment = _of_segment(values, value_ids, segments, TAPS)
            slope = _slope(grads[k], weights, of_segment, SILU, TAPS)
            open = _opened(open, slope, weights, value_ids, segments, TAPS)
            sums = _summed(sums, slope, of_segment, TAPS)
            s = t + k - (TAPS - 1)
            inside = channel & (s >= first) & (s < length)
            tl.store(dx + s * width, open[TAPS - 1].to(dx.dtype.element_ty), mask=inside)
            past, past_ids, open = values[: TAPS - 1], value_ids[: TAPS - 1], open[: TAPS - 1]
    for i in tl.static_range(TAPS):
        tl.store(partial + ((program * (TAPS + 1) + i) * width + c), sums[i], mask=channel)
    tl.store(partial + ((program * (TAPS + 1) + TAPS) * width + c), sums[TAPS], mask=channel)
    t = first + steps
    _finish(
        dx, t - (TAPS - 1), first, length, grad, x, weights, segments, t, past, past_ids, open, channel, length, width,
        grad_step_stride, step_stride, SILU, TAPS,
    )  # fmt: skip


@triton.jit
def _finish(
    out, s, low, high, grad, x, weights, segments, t, past, past_ids, open, channel, length, width, grad_step_stride,
    step_stride, SILU: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """Walks the TAPS - 1 steps from t, which make the gradients of those before whole, and stores these as steps s, ...
    of ``out``, as far as they are from ``low`` on and before ``high``."""
    loaded, ids = _loaded(x, t, channel, length, step_stride, TAPS - 1), _ids(segments, t, length, TAPS - 1)
    grads = _loaded(grad, t, channel, length, grad_step_stride, TAPS - 1)
    for k in tl.static_range(TAPS - 1):
        values, value_ids = (loaded[k].to(tl.float32),) + past, past_ids
        if segments is not None:
            value_ids = (ids[k],) + past_ids
        slope = _slope(grads[k], weights, _of_segment(values, value_ids, segments, TAPS), SILU, TAPS)
        open = _opened(open, slope, weights, value_ids, segments, TAPS)
        whole = open[TAPS - 1].to(out.dtype.element_ty)
        tl.store(out + (s + k) * width, whole, mask=channel & (s + k >= low) & (s + k < high))
        past, past_ids, open = values[: TAPS - 1], value_ids[: TAPS - 1], open[: TAPS - 1]


@triton.jit
def _weights(taps, bias, c, channel, copies, TAPS: tl.constexpr):
    """The taps of channels c, and behind them the bias, 0 where there is none."""
    own = (c.to(tl.int32) // copies).to(tl.int64)
    found = ()
    for i in tl.static_range(TAPS):
        found = found + (tl.load(taps + (own * TAPS + i), mask=channel, other=0.0),)
    if bias is not None:
        return found + (tl.load(bias + own, mask=channel, other=0.0),)
    return found + (tl.zeros(c.shape, tl.float32),)


@triton.jit
def _past(x, history, first, channel, width, step_stride, TAPS: tl.constexpr):
    """What is before step ``first``, the nearest first: of x, or of the history. Both are those of the channels."""
    found = ()
    for i in tl.static_range(1, TAPS):
        s = first - i
        value = tl.load(x + s * step_stride, mask=channel & (s >= 0), other=0.0).to(tl.float32)
        past = channel & (s < 0) & (s + TAPS > 0)
        found = found + (value + tl.load(history + (s + (TAPS - 1)) * width, mask=past, other=0.0),)
    return found


@triton.jit
def _loaded(x, t, channel, length, step_stride, STEPS: tl.constexpr):
    """Steps t, t + 1, ... of x, all under way before the first is waited for."""
    found = ()
    for k in tl.static_range(STEPS):
        found = found + (tl.load(x + (t + k) * step_stride, mask=channel & (t + k < length), other=0.0),)
    return found


@triton.jit
def _ids(segments, t, length, STEPS: tl.constexpr):
    """The segments of steps t, t + 1, ...; 0 outside the sequence."""
    found = ()
    if segments is not None:
        for k in tl.static_range(STEPS):
            s = t + k
            found = found + (tl.load(segments + s, mask=(s >= 0) & (s < length), other=0),)
    return found


@triton.jit
def _past_ids(segments, first, TAPS: tl.constexpr):
    """The segments of the steps before ``first``, the nearest first; 0 before the sequence."""
    found = ()
    if segments is not None:
        for i in tl.static_range(1, TAPS):
            found = found + (tl.load(segments + (first - i), mask=first >= i, other=0),)
    return found


@triton.jit
def _of_segment(values, ids, segments, TAPS: tl.constexpr):
    """The values, the present one first, and 0 instead of those of another segment than that."""
    if segments is not None:
        found = (values[0],)
        for i in tl.static_range(1, TAPS):
            found = found + (tl.where(ids[i] == ids[0], values[i], 0.0),)
        return found
    return values


@triton.jit
def _convolved(weights, values, TAPS: tl.constexpr):
    """The convolution of one step, before the activation."""
    z = weights[TAPS]
    for i in tl.static_range(TAPS):
        z += weights[i] * values[i]
    return z


@triton.jit
def _slope(grad, weights, values, SILU: tl.constexpr, TAPS: tl.constexpr):
    """The gradient of what :func:`_convolved` gives."""
    slope = grad.to(tl.float32)
    if SILU:
        z = _convolved(weights, values, TAPS)
        sigmoid = tl.sigmoid(z)
        slope = slope * sigmoid * (1.0 + z * (1.0 - sigmoid))
    return slope


@triton.jit
def _opened(open, slope, weights, ids, segments, TAPS: tl.constexpr):
    """The gradients of this step and the TAPS - 1 before it, with what its own slope adds to them."""
    found = (weights[0] * slope,)
    for i in tl.static_range(1, TAPS):
        reaches = slope
        if segments is not None:
            reaches = tl.where(ids[i] == ids[0], slope, 0.0)
        found = found + (open[i - 1] + weights[i] * reaches,)
    return found


@triton.jit
def _summed(sums, slope, values, TAPS: tl.constexpr):
    found = ()
    for i in tl.static_range(TAPS):
        found = found + (sums[i] + slope * values[i],)
    return found + (sums[TAPS] + slope,)


@triton.jit
def _zeros(COUNT: tl.constexpr, WIDTH: tl.constexpr):
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros((WIDTH,), tl.float32),)
    return found
