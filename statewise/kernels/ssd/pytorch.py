"""The PyTorch path: rows of the batch in blocks that stay in the cache, with dt and D around the products of chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.kernels.ssd.pytorch_chunks import Inputs, backward_chunks, forward_chunks
from statewise.kernels.ssd.reference import Arguments

CACHED_NUMBERS = 2**18  # of x in a block: a float32 megabyte, and the temporaries are a few times that


def _pieces(length: int, q: int) -> list[tuple[int, int, int]]:
    """(start, stop, chunk length): all full chunks as one piece, then the ragged rest as a chunk of its own."""
    full = length - length % q
    pieces = [(0, full, q)] if full else []
    return pieces + ([(full, length, length - full)] if full < length else [])


def _blocks_of_rows(x: Tensor) -> list[slice]:
    """Rows of the batch that are computed together: on a CPU as many as keep the temporaries in its cache."""
    b, length, h, p = x.shape
    rows = max(1, CACHED_NUMBERS // max(1, length * h * p)) if x.device.type == "cpu" else max(1, b)
    return [slice(start, start + rows) for start in range(0, b, rows)]


def _entering(segments: Tensor | None, start: int) -> Tensor | None:
    """The segment of the step before ``start``; what comes in from outside is segment 0."""
    if segments is None:
        return None
    return segments[:, start - 1] if start else torch.zeros_like(segments[:, 0])


def _scaled(x: Tensor, dt: Tensor | None, rows: slice) -> Tensor:
    return x[rows] if dt is None else x[rows] * dt[rows].unsqueeze(-1)


def forward(given: Arguments) -> tuple[Tensor, Tensor]:
    """y and the state after the last step."""
    stored = given.x.dtype
    x, log_a, B, C, h0, dt, D, segments, chunk_length = given.widened()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    state = torch.empty(h0.shape, dtype=x.dtype, device=x.device)
    if not x.numel():  # no steps, rows, heads or width of a head
        return y.to(stored), state.copy_(h0)
    for rows in _blocks_of_rows(x):
        ids = None if segments is None else segments[rows]
        inputs, h = Inputs(_scaled(x, dt, rows), log_a[rows], B[rows], C[rows], ids), h0[rows]
        for start, stop, q in _pieces(x.shape[1], chunk_length):
            piece = inputs.at(slice(start, stop))
            y[rows, start:stop], h = forward_chunks(piece, h, _entering(ids, start), q)
        state[rows] = h
        if D is not None:
            y[rows].addcmul_(x[rows], D[:, None])
    return y.to(stored), state


def backward(grad_y: Tensor, grad_state: Tensor, given: Arguments) -> tuple[Tensor | None, ...]:
    """Gradients of x, log_a, B, C, h0, dt and D; None where there was none."""
    stored = given.x.dtype
    x, log_a, B, C, h0, dt, D, segments, chunk_length = given.widened()
    grad_y = grad_y.to(x.dtype)
    dx, da, dB, dC, dh = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (x, log_a, B, C, h0))
    d_dt = None if dt is None else torch.empty(dt.shape, dtype=x.dtype, device=x.device)
    by_row = torch.zeros(x.shape[0], x.shape[2], dtype=x.dtype, device=x.device)  # the gradient of D
    if not x.numel():
        gradients = (
            dx.to(stored),
            da,
            dB.to(stored),
            dC.to(stored),
            dh.copy_(grad_state),
            d_dt,
            None if D is None else by_row.sum(0),
        )
        return tuple(m if m is None or m is dh else m.zero_() for m in gradients)
    pieces = _pieces(x.shape[1], chunk_length)
    for rows in _blocks_of_rows(x):
        ids, states, grad_h = None if segments is None else segments[rows], [h0[rows]], grad_state[rows]
        inputs = Inputs(_scaled(x, dt, rows), log_a[rows], B[rows], C[rows], ids)
        for start, stop, q in pieces[:-1]:  # at most one: the state before the ragged rest
            piece = inputs.at(slice(start, stop))
            states.append(forward_chunks(piece, states[-1], _entering(ids, start), q)[1])
        for (start, stop, q), h in zip(reversed(pieces), reversed(states)):
            at = (rows, slice(start, stop))
            piece, entering = inputs.at(at[1]), _entering(ids, start)
            dx[at], da[at], dB[at], dC[at], grad_h = backward_chunks(grad_y[at], grad_h, piece, h, entering, q)
        dh[rows] = grad_h
        if dt is not None and d_dt is not None:
            d_dt[rows] = (dx[rows] * x[rows]).sum(-1)
            dx[rows].mul_(dt[rows].unsqueeze(-1))
        if D is not None:
            by_row[rows] = (grad_y[rows] * x[rows]).sum((1, 3))
            dx[rows].addcmul_(grad_y[rows], D[:, None])
    dx, dB, dC = (m.to(stored) for m in (dx, dB, dC))
    return dx, da, dB, dC, dh, d_dt, None if D is None else by_row.sum(0)
