"""The scalar-identity state-space model h_t = a_t h_{t-1} + x_t B_t^T, y_t = h_t C_t as one operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.registration import register
from statewise.kernels.ssd.batching import vmap_rule
from statewise.kernels.ssd.chunked import Inputs, backward_chunks, forward_chunks
from statewise.kernels.ssd.reference import ssd_differentiable, ssd_reference

__all__ = ["ssd", "ssd_reference"]


_CACHED_NUMBERS = 2**18  # of x in a block: a float32 megabyte, and the temporaries are a few times that


def _pieces(length: int, q: int) -> list[tuple[int, int, int]]:
    """(start, stop, chunk length): all full chunks as one piece, then the ragged rest as a chunk of its own."""
    full = length - length % q
    pieces = [(0, full, q)] if full else []
    return pieces + ([(full, length, length - full)] if full < length else [])


def _blocks_of_rows(x: Tensor) -> list[slice]:
    """Rows of the batch that are computed together: on a CPU as many as keep the temporaries in its cache."""
    b, length, h, p = x.shape
    rows = max(1, _CACHED_NUMBERS // max(1, length * h * p)) if x.device.type == "cpu" else max(1, b)
    return [slice(start, start + rows) for start in range(0, b, rows)]


def _entering(segments: Tensor | None, start: int) -> Tensor | None:
    """The segment of the step before ``start``; what comes in from outside is segment 0."""
    if segments is None:
        return None
    return segments[:, start - 1] if start else torch.zeros_like(segments[:, 0])


def _fake_forward(
    x: Tensor, log_a: Tensor, B: Tensor, C: Tensor, h0: Tensor, segments: Tensor | None, chunk_length: int
) -> tuple[Tensor, Tensor]:
    """Room for the outputs."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(h0.shape, dtype=x.dtype, device=x.device)


def _forward(
    x: Tensor, log_a: Tensor, B: Tensor, C: Tensor, h0: Tensor, segments: Tensor | None, chunk_length: int
) -> tuple[Tensor, Tensor]:
    y, state = _fake_forward(x, log_a, B, C, h0, segments, chunk_length)
    inputs = Inputs(x, log_a, B, C, segments)
    for rows in _blocks_of_rows(x):
        h, ids = h0[rows], None if segments is None else segments[rows]
        for start, stop, q in _pieces(x.shape[1], chunk_length):
            piece = inputs.at(rows, slice(start, stop))
            y[rows, start:stop], h = forward_chunks(piece, h, _entering(ids, start), q)
        state[rows] = h
    return y, state


def _adjoint(
    grad_y: Tensor,
    grad_state: Tensor,
    x: Tensor,
    log_a: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    segments: Tensor | None,
    chunk_length: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dx, da, dB, dC, dh = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (x, log_a, B, C, h0))
    inputs, pieces = Inputs(x, log_a, B, C, segments), _pieces(x.shape[1], chunk_length)
    for rows in _blocks_of_rows(x):
        ids, states, grad_h = None if segments is None else segments[rows], [h0[rows]], grad_state[rows]
        for start, stop, q in pieces[:-1]:  # at most one: the state before the ragged rest
            piece = inputs.at(rows, slice(start, stop))
            states.append(forward_chunks(piece, states[-1], _entering(ids, start), q)[1])
        for (start, stop, q), h in zip(reversed(pieces), reversed(states)):
            at = (rows, slice(start, stop))
            piece, entering = inputs.at(*at), _entering(ids, start)
            dx[at], da[at], dB[at], dC[at], grad_h = backward_chunks(grad_y[at], grad_h, piece, h, entering, q)
        dh[rows] = grad_h
    return dx, da, dB, dC, dh


def _fake_adjoint(
    grad_y: Tensor,
    grad_state: Tensor,
    x: Tensor,
    log_a: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    segments: Tensor | None,
    chunk_length: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dx, da, dB, dC, dh = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (x, log_a, B, C, h0))
    return dx, da, dB, dC, dh


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.chunk_length = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad_y: Tensor, grad_state: Tensor) -> tuple[Any, ...]:
    gradients = _ssd_backward(grad_y, grad_state, *ctx.saved_tensors, ctx.chunk_length)
    return *gradients, None, None


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.chunk_length = inputs
    ctx.save_for_backward(*tensors)


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The derivative of the adjoint, taken through the plain definition: rare, so it need not be fast."""
    *tensors, segments = ctx.saved_tensors
    with torch.enable_grad():
        leaves = [m.detach().requires_grad_() for m in tensors]
        grad_y, grad_state, x, log_a, B, C, h0 = leaves
        outputs = ssd_differentiable(x, log_a, B, C, h0, segments, ctx.chunk_length)
        inputs = (x, log_a, B, C, h0)
        first = torch.autograd.grad(outputs, inputs, (grad_y, grad_state), create_graph=True, materialize_grads=True)
        second = torch.autograd.grad(first, leaves, grads, materialize_grads=True)
    return *second, None, None


_ssd = register(
    "ssd",
    "(Tensor x, Tensor log_a, Tensor B, Tensor C, Tensor h0, Tensor? segments, int chunk_length) -> (Tensor, Tensor)",
    _forward,
    fake=_fake_forward,
    setup_context=_setup_context,
    backward=_backward,
    vmap=vmap_rule,
)
_ssd_backward = register(
    "ssd_backward",
    "(Tensor grad_y, Tensor grad_state, Tensor x, Tensor log_a, Tensor B, Tensor C, Tensor h0, Tensor? segments, "
    "int chunk_length) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _adjoint,
    fake=_fake_adjoint,
    setup_context=_setup_second,
    backward=_second_backward,
)


def ssd(
    x: Tensor,
    log_a: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    segments: Tensor | None = None,
    *,
    chunk_length: int = 64,
) -> tuple[Tensor, Tensor]:
    """Scalar-identity state-space model: h_t = exp(log_a_t) h_{t-1} + x_t B_t^T, y_t = h_t C_t.

    Shapes:   x: (batch, length, n_heads, d_head)   log_a: (batch, length, n_heads), finite, <= 0
              B, C: (batch, length, n_groups, d_state), each group shared by n_heads / n_groups heads
              h0: (batch, n_heads, d_head, d_state)   ->   y like x, h like h0 (the state after the last step)
              segments: (batch, length) integers that never fall, h0 being segment 0; nothing passes from one
              segment to the next.
    Cost:     O(length (chunk_length + d_state) d_head) per head, in matrix products; the adjoint three times
              that. Memory above the outputs: length * chunk_length per head, and a state per chunk.
    Numerics: computed in float32, or float64 if an input is; y comes in the dtype of x. Decays are
              differences of float64 sums inside a chunk. A NaN or infinity in x stays in its row and head, but
              spoils its whole chunk and what comes after it, other segments too: masks multiply by zero. Second
              derivatives go through the plain definition.
    Errors:   InputError if the shapes disagree; the message gives them.
    Source:   Dao & Gu 2024, arXiv:2405.21060, sec. 6 and listing 1.
    """
    b, length, h, p = x.shape if x.ndim == 4 else (0, 0, 0, 0)
    g, n = B.shape[2:] if B.ndim == 4 else (0, 0)
    if not (g and h % g == 0 and B.shape == C.shape == (b, length, g, n) and log_a.shape == (b, length, h)):
        raise InputError(
            "ssd needs x (batch, length, heads, d_head), log_a (batch, length, heads), B and C "
            "(batch, length, groups, d_state) with groups dividing heads; "
            f"got {tuple(x.shape)}, {tuple(log_a.shape)}, {tuple(B.shape)}, {tuple(C.shape)}"
        )
    if h0.shape != (b, h, p, n):
        raise InputError(f"ssd needs h0 of shape {(b, h, p, n)} (batch, heads, d_head, d_state); got {tuple(h0.shape)}")
    if chunk_length < 1:
        raise InputError(f"ssd needs chunk_length >= 1; got {chunk_length}")
    dtype = torch.float64 if torch.float64 in (x.dtype, log_a.dtype, B.dtype, C.dtype, h0.dtype) else torch.float32
    y, state = _ssd(x.to(dtype), log_a.to(dtype), B.to(dtype), C.to(dtype), h0.to(dtype), segments, chunk_length)
    return y.to(x.dtype), state
