"""The selective scan and its adjoint in PyTorch: blocks of rows, channels and time that stay in the cache.

A block holds its states as (b, t, g, n, c): channels last, so that every product broadcasts along memory, and sums over
states are matrix products. Only the recurrence itself, one multiply-add a step, runs step by step, in place. The
adjoint computes the states again from one kept for each chunk. Complex numbers are PyTorch's own inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.selective_scan.reference import as_complex, hold, phi1_slope

_CACHED_NUMBERS = 2**17  # of the states in a block: half a float32 megabyte


class Arguments(NamedTuple):
    """What the operator takes. Complex A, B, C and h0 have a last axis of 2; h0 then has four axes, else three."""

    u: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    h0: Tensor
    D: Tensor | None
    gate: Tensor | None
    dt_bias: Tensor | None
    segments: Tensor | None
    softplus: bool
    exact: bool

    @property
    def is_complex(self) -> bool:
        return self.h0.ndim == 4


class _Block(NamedTuple):
    """One chunk of time of some rows and channels: u, delta (b, t, g, 1, c), A (g, n, c), B, C (b, t, g, n, 1)."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    passes: Tensor | None  # (t, b, 1, 1, 1), whether the state before a step reaches it; None: always
    exact: bool


class _Transition(NamedTuple):
    """exp(Delta A), and what multiplies B u: Delta (one for all states), or its exact form."""

    a: Tensor
    step: Tensor


def widened(arguments: Arguments) -> Arguments:
    """u, dt and gate in the precision of the state."""
    dtype, gate = arguments.h0.dtype, arguments.gate
    gate = None if gate is None else gate.to(dtype)
    return arguments._replace(u=arguments.u.to(dtype), dt=arguments.dt.to(dtype), gate=gate)


def _blocks(arguments: Arguments, chunk_length: int) -> Iterator[tuple[slice, slice, slice]]:
    """(rows, groups, channels of a group) of the blocks."""
    b, length, d = arguments.u.shape
    g, n = arguments.B.shape[2:4]
    room = max(1, _CACHED_NUMBERS // max(1, n * min(length, chunk_length)))  # channels, of all rows
    if arguments.u.device.type != "cpu":
        room = b * d
    channels = max(1, min(d // g, room))
    groups = max(1, min(g, room // channels))
    rows = max(1, room // (channels * groups))
    for row in range(0, b, rows):
        for group in range(0, g, groups):
            for channel in range(0, d // g, channels):
                yield slice(row, row + rows), slice(group, group + groups), slice(channel, channel + channels)


def _by_group(m: Tensor, g: int) -> Tensor:
    """(..., d) -> (..., g, d/g)"""
    return m.unflatten(-1, (g, m.shape[-1] // g))


def _states(m: Tensor, g: int, is_complex: bool) -> Tensor:
    """(..., d, n[, 2]) -> (..., g, n, d/g), complex if it is; a view."""
    m = as_complex(m) if is_complex else m
    return m.unflatten(-2, (g, m.shape[-2] // g)).transpose(-1, -2)


def _chunk_states(m: Tensor, g: int, is_complex: bool) -> Tensor:
    """Of checkpoints (b, c, [2,] n, d): (b, c, g, n, d/g), a copy where complex."""
    m = torch.complex(m[:, :, 0], m[:, :, 1]) if is_complex else m
    return _by_group(m, g).transpose(-2, -3)


class _Views(NamedTuple):
    """The arguments with their groups as an axis of its own."""

    u: Tensor  # (b, l, g, c)
    raw: Tensor  # (b, l, g, c)  dt
    A: Tensor  # (g, n, c)
    B: Tensor  # (b, l, g, n)
    C: Tensor
    h0: Tensor  # (b, g, n, c)
    D: Tensor | None  # (g, c)
    gate: Tensor | None
    dt_bias: Tensor | None
    passes: Tensor | None  # (l, b, 1, 1, 1)


def _views(arguments: Arguments) -> _Views:
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, _, _ = arguments
    g, is_complex = B.shape[2], arguments.is_complex
    passes = None
    if segments is not None:
        passes = segments == torch.cat([torch.zeros_like(segments[:, :1]), segments[:, :-1]], 1)
        passes = passes.t()[..., None, None, None]
    return _Views(
        _by_group(u, g),
        _by_group(dt, g),
        _states(A, g, is_complex),
        as_complex(B) if is_complex else B,
        as_complex(C) if is_complex else C,
        _states(h0, g, is_complex),
        None if D is None else _by_group(D, g),
        None if gate is None else _by_group(gate, g),
        None if dt_bias is None else _by_group(dt_bias, g),
        passes,
    )


def _at(views: _Views, rows: slice, groups: slice, channels: slice) -> _Views:
    """One block of all of them, over the whole time."""
    u, raw, A, B, C, h0, D, gate, dt_bias, passes = views
    sequence = (rows, slice(None), groups)
    return _Views(
        u[(*sequence, channels)],
        raw[(*sequence, channels)],
        A[groups, :, channels],
        B[sequence],
        C[sequence],
        h0[rows, groups, :, channels],
        None if D is None else D[groups, channels],
        None if gate is None else gate[(*sequence, channels)],
        None if dt_bias is None else dt_bias[groups, channels],
        None if passes is None else passes[:, rows],
    )


def _chunk(views: _Views, softplus: bool, exact: bool, start: int, stop: int) -> tuple[_Block, Tensor]:
    """The chunk's block, and dt + dt_bias before the softplus."""
    raw = views.raw[:, start:stop]
    raw = raw if views.dt_bias is None else raw + views.dt_bias
    delta = _softplus(raw) if softplus else raw
    times = slice(start, stop)
    passes = None if views.passes is None else views.passes[times]
    u, B, C = views.u[:, times].unsqueeze(3), views.B[:, times].unsqueeze(4), views.C[:, times].unsqueeze(4)
    return _Block(u, delta.unsqueeze(3), views.A, B, C, passes, exact), raw


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=40.0)  # above 40 the linear stand-in is exact to rounding; e^x would overflow


def _transition(block: _Block) -> _Transition:
    z = block.delta * block.A
    step = hold(block.delta, block.A) if block.exact else block.delta
    return _Transition(z.exp_(), step)


def _run(block: _Block, transition: _Transition, h: Tensor) -> Tensor:
    """The states after every step, (b, t, g, n, c), from the state before the first."""
    states = (transition.step * block.u) * block.B
    for t, (a, now) in enumerate(zip(transition.a.unbind(1), states.unbind(1))):
        if block.passes is not None:
            h = h.masked_fill(~block.passes[t], 0)
        now.addcmul_(a, h)
        h = now
    return states


def _read(C: Tensor, states: Tensor) -> Tensor:
    """C h over the states: (b, t, g, n, 1), (b, t, g, n, c) -> (b, t, g, c), 2 Re of it where complex."""
    y = (C.mT @ states).squeeze(3)
    return 2 * y.real if y.is_complex() else y


def forward_blocks(arguments: Arguments, y: Tensor, state: Tensor, checkpoints: Tensor, chunk_length: int) -> None:
    """Writes y, the last state, and the states at the starts of chunks (if there is room for any)."""
    arguments = widened(arguments)
    g, is_complex, length = arguments.B.shape[2], arguments.is_complex, arguments.u.shape[1]
    views, y = _views(arguments), _by_group(y, g)
    final = _states(state, g, is_complex)
    kept = [_by_group(m, g) for m in ((checkpoints[:, :, 0], checkpoints[:, :, 1]) if is_complex else (checkpoints,))]
    for at in _blocks(arguments, chunk_length):
        rows, groups, channels = at
        part = _at(views, *at)
        h = part.h0.contiguous()
        for i, start in enumerate(range(0, length, chunk_length)):
            stop = min(start + chunk_length, length)
            if checkpoints.shape[1]:
                for to, value in zip(kept, (h.real, h.imag) if is_complex else (h,)):
                    to[rows, i, :, groups, channels] = value.transpose(1, 2)
            block, _ = _chunk(part, arguments.softplus, arguments.exact, start, stop)
            states = _run(block, _transition(block), h)
            out = _read(block.C, states)
            if part.D is not None:
                out = torch.addcmul(out, block.u.squeeze(3), part.D)
            if part.gate is not None:
                out = out * F.silu(part.gate[:, start:stop])
            y[rows, start:stop, groups, channels] = out
            h = states[:, -1]
        final[rows, groups, :, channels] = h


class Gradients(NamedTuple):
    """Where the gradients go, in the shapes of the arguments; None for those that were not given."""

    u: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    h0: Tensor
    D: Tensor | None
    gate: Tensor | None
    dt_bias: Tensor | None


def backward_blocks(
    grad_y: Tensor, grad_state: Tensor, checkpoints: Tensor, arguments: Arguments, chunk_length: int
) -> Gradients:
    """All gradients; those along time in the dtype of what they are gradients of."""
    given = arguments
    arguments = widened(given)
    zeros: list[Any] = [None if m is None else m.new_zeros(m.shape) for m in arguments[:9]]
    into = Gradients(*zeros)
    g, is_complex, length = arguments.B.shape[2], arguments.is_complex, arguments.u.shape[1]
    views, to = _views(arguments), _views(Arguments(*into, segments=None, softplus=False, exact=False))
    grad_y, kept = _by_group(grad_y.to(arguments.h0.dtype), g), _chunk_states(checkpoints, g, is_complex)
    grad_final = _states(grad_state.contiguous(), g, is_complex)
    for at in _blocks(arguments, chunk_length):
        part, out = _at(views, *at), _at(to, *at)
        rows, groups, channels = at
        grad_h = grad_final[rows, groups, :, channels]
        for start in reversed(range(0, length, chunk_length)):
            stop = min(start + chunk_length, length)
            block, raw = _chunk(part, arguments.softplus, arguments.exact, start, stop)
            transition = _transition(block)
            h = kept[rows, start // chunk_length, groups, :, channels]
            states = _run(block, transition, h)
            dy, u = grad_y[rows, start:stop, groups, channels], block.u.squeeze(3)
            if part.gate is not None and out.gate is not None:
                gate = part.gate[:, start:stop]
                sigmoid = gate.sigmoid()
                before = _read(block.C, states)
                before = before if part.D is None else torch.addcmul(before, u, part.D)
                out.gate[:, start:stop] = dy * before * sigmoid * (1 + gate * (1 - sigmoid))
                dy = dy * gate * sigmoid
            if part.D is not None and out.D is not None:
                out.u[:, start:stop] = dy * part.D
                out.D.add_((dy * u).sum((0, 1)))
            d_delta, grad_h = _adjoint(block, transition, h, states, dy, grad_h, out, slice(start, stop))
            d_raw = d_delta * raw.sigmoid() if arguments.softplus else d_delta
            out.raw[:, start:stop] = d_raw
            if out.dt_bias is not None:
                out.dt_bias.add_(d_raw.sum((0, 1)))
        out.h0.copy_(grad_h)
    d_gate = None if into.gate is None or given.gate is None else into.gate.to(given.gate.dtype)
    return into._replace(u=into.u.to(given.u.dtype), dt=into.dt.to(given.dt.dtype), gate=d_gate)


def _adjoint(
    block: _Block,
    transition: _Transition,
    h: Tensor,
    states: Tensor,
    dy: Tensor,
    grad_h: Tensor,
    out: _Views,
    times: slice,
) -> tuple[Tensor, Tensor]:
    """Gradients of Delta and of the state before the chunk; those of A, B, C and u are added to ``out``."""
    u, delta, A, B, C, passes, exact = block
    dy = (2 * dy if A.is_complex() else dy).unsqueeze(3)  # (b, t, g, 1, c)
    out.C[:, times] += (states.conj() @ dy.mT.to(states.dtype)).squeeze(4)
    # the gradient of every state: g_t = dy_t conj(C_t) + conj(a_{t+1}) g_{t+1}
    g = dy * C.conj()
    following = grad_h
    for t in reversed(range(g.shape[1])):
        now = g[:, t]
        now += following
        following = now * transition.a[:, t].conj()
        if passes is not None:
            following = following.masked_fill_(~passes[t], 0)
    scaled = transition.step * u  # what B is multiplied by
    if exact:
        out.B[:, times] += (g * scaled.conj()).sum(4)
    else:
        out.B[:, times] += (g @ scaled.mT.to(g.dtype)).squeeze(4)
    # Delta A reaches the states through exp(Delta A), from the state before
    flow = g * transition.a.conj()
    flow[:, 0] *= h.conj()
    flow[:, 1:] *= states[:, :-1].conj()
    if passes is not None:
        flow.masked_fill_(~passes.transpose(0, 1), 0)
    d_delta, direct = flow * A.conj(), None
    d_A = flow.mul_(delta)
    if exact:
        from_step = g * B.conj()
        out.u[:, times] += (from_step * transition.step.conj()).sum(3).real
        from_step *= u
        d_delta += from_step * transition.a.conj()
        d_A += from_step * (delta * delta * phi1_slope(delta * A)).conj()
    else:
        product = (B.mH @ g).squeeze(3).real  # (b, t, g, c)
        out.u[:, times] += product * delta.squeeze(3)
        direct = product * u.squeeze(3)
    out.A.add_(d_A.sum((0, 1)))
    d_delta = d_delta.sum(3).real
    return d_delta if direct is None else direct.add_(d_delta), following
