"""The selective scan and its adjoint in PyTorch, block by block, for any device that PyTorch knows.

Only the recurrence itself, one multiply-add a step, runs step by step, in place; where a block has several chunks, in
all of them at once, twice: from rest, which says what each chunk passes on, and from the states that reach them. The
adjoint computes the states again from one kept for each chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.selective_scan.pytorch_blocks import (
    Block,
    Span,
    Views,
    blocks,
    by_group,
    folded,
    spans,
    states_by_group,
    unfolded,
    views_of,
)
from statewise.kernels.selective_scan.reference import hold, hold_slope
from statewise.kernels.selective_scan.signature import Arguments, Gradients


class _Transition(NamedTuple):
    """exp(Delta A), and what multiplies B u: Delta (one for all states), or its exact form."""

    a: Tensor
    step: Tensor


def _transition(block: Block) -> _Transition:
    z = block.delta * block.A
    step = hold(block.delta, block.A) if block.exact else block.delta
    return _Transition(z.exp_(), step)


def _run(block: Block, transition: _Transition, h: Tensor) -> Tensor:
    """The states after every step, (b, t, g, n, c), from the state before the first."""
    states = (transition.step * block.u) * block.B
    for t, (a, now) in enumerate(zip(transition.a.unbind(1), states.unbind(1))):
        if block.passes is not None:
            h = h.masked_fill(~block.passes[t], 0)
        now.addcmul_(a, h)
        h = now
    return states


def _run_back(block: Block, transition: _Transition, g: Tensor, grad: Tensor) -> Tensor:
    """g_t + conj(a_{t+1}) g_{t+1} in place of every g_t, from the gradient of the state after the last step.

    ->   the gradient of the state before the first
    """
    for t in reversed(range(g.shape[1])):
        now = g[:, t]
        now += grad
        grad = now * transition.a[:, t].conj()
        if block.passes is not None:
            grad = grad.masked_fill_(~block.passes[t], 0)
    return grad


def _passed_on(block: Block, transition: _Transition) -> tuple[Tensor, Tensor | None]:
    """For each chunk (rows, chunks, ...): what it multiplies a state by, and where it lets none through.

    The product is 0 there: it may hold a NaN of the document that ends, and 0 times that is not 0.
    """
    decay = transition.a.prod(1).unflatten(0, (-1, block.chunks))
    if block.passes is None:
        return decay, None
    stops = (~block.passes.all(0)).unflatten(0, (-1, block.chunks))
    return decay.masked_fill(stops, 0), stops


def _starts(block: Block, transition: _Transition, h: Tensor) -> Tensor:
    """The state before each chunk, (rows * chunks, g, n, c), from the one before the first."""
    if block.chunks == 1:
        return h
    rest = h.new_zeros(len(block.u), *h.shape[1:])
    reached = _run(block, transition, rest)[:, -1].unflatten(0, (-1, block.chunks))
    decay, stops = _passed_on(block, transition)
    starts = torch.empty_like(reached)
    for k in range(block.chunks):
        starts[:, k] = h
        if stops is not None:
            h = h.masked_fill(stops[:, k], 0)
        h = torch.addcmul(reached[:, k], decay[:, k], h)
    return starts.flatten(0, 1)


def _ends(block: Block, transition: _Transition, g: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the state after each chunk, as what follows has it, from that of the state after the last."""
    if block.chunks == 1:
        return grad
    rest = grad.new_zeros(len(g), *grad.shape[1:])
    reached = _run_back(block, transition, g.clone(), rest).unflatten(0, (-1, block.chunks))
    decay, stops = _passed_on(block, transition)
    ends = torch.empty_like(reached)
    for k in reversed(range(block.chunks)):
        ends[:, k] = grad
        grad = grad * decay[:, k].conj()
        if stops is not None:
            grad = grad.masked_fill_(stops[:, k], 0)
        grad = reached[:, k] + grad
    return ends.flatten(0, 1)


def _read(C: Tensor, states: Tensor) -> Tensor:
    """C h over the states: (b, t, g, n, 1), (b, t, g, n, c) -> (b, t, g, c), 2 Re of it where complex."""
    y = (C.mT @ states).squeeze(3)
    return 2 * y.real if y.is_complex() else y


def forward(arguments: Arguments, y: Tensor, state: Tensor, checkpoints: Tensor, chunk_length: int) -> None:
    """Writes y, the last state, and the states at the starts of chunks (if there is room for any)."""
    arguments = arguments.widened()
    g, is_complex = arguments.B.shape[2], arguments.is_complex
    views, y = views_of(arguments), by_group(y, g)
    final = states_by_group(state, g, is_complex)
    kept = [by_group(m, g) for m in ((checkpoints[:, :, 0], checkpoints[:, :, 1]) if is_complex else (checkpoints,))]
    for at in blocks(arguments, chunk_length):
        rows, groups, channels = at
        part = views.at(*at)
        h = part.h0.contiguous()
        for span in spans(arguments, chunk_length):
            times, n = slice(span.start, span.stop), span.chunks
            block, _ = part.during(span, arguments.softplus, arguments.exact)
            transition = _transition(block)
            starts = _starts(block, transition, h)
            if checkpoints.shape[1]:
                for to, value in zip(kept, (starts.real, starts.imag) if is_complex else (starts,)):
                    chunks = value.unflatten(0, (-1, n)).transpose(2, 3)
                    to[rows, span.first : span.first + n, :, groups, channels] = chunks
            states = _run(block, transition, starts)
            out = _read(block.C, states)
            if part.D is not None:
                out = torch.addcmul(out, block.u.squeeze(3), part.D)
            if part.gate is not None:
                out = out * F.silu(folded(part.gate[:, times], n))
            y[rows, times, groups, channels] = unfolded(out, n)
            h = states.unflatten(0, (-1, n))[:, -1, -1]
        final[rows, groups, :, channels] = h


def backward(
    grad_y: Tensor, grad_state: Tensor, checkpoints: Tensor, arguments: Arguments, chunk_length: int
) -> Gradients:
    """All gradients; those along time in the dtype of what they are gradients of."""
    given = arguments
    arguments = given.widened()
    zeros: list[Any] = [None if m is None else m.new_zeros(m.shape) for m in arguments.numbers]
    into = Gradients(*zeros)
    g, is_complex = arguments.B.shape[2], arguments.is_complex
    views, to = views_of(arguments), views_of(Arguments(*into, segments=None, softplus=False, exact=False))
    grad_y, kept = by_group(grad_y.to(arguments.h0.dtype), g), _kept_states(checkpoints, g, is_complex)
    grad_final = states_by_group(grad_state.contiguous(), g, is_complex)
    for at in blocks(arguments, chunk_length):
        part, out = views.at(*at), to.at(*at)
        rows, groups, channels = at
        grad_h = grad_final[rows, groups, :, channels]
        for span in reversed(spans(arguments, chunk_length)):
            times, n = slice(span.start, span.stop), span.chunks
            block, raw = part.during(span, arguments.softplus, arguments.exact)
            transition = _transition(block)
            h = kept[rows, span.first : span.first + n, groups, :, channels].flatten(0, 1)
            states = _run(block, transition, h)
            dy, u = folded(grad_y[rows, times, groups, channels], n), block.u.squeeze(3)
            if part.gate is not None and out.gate is not None:
                gate = folded(part.gate[:, times], n)
                sigmoid = gate.sigmoid()
                before = _read(block.C, states)
                before = before if part.D is None else torch.addcmul(before, u, part.D)
                out.gate[:, times] = unfolded(dy * before * sigmoid * (1 + gate * (1 - sigmoid)), n)
                dy = dy * gate * sigmoid
            if part.D is not None and out.D is not None:
                out.u[:, times] = unfolded(dy * part.D, n)
                out.D.add_((dy * u).sum((0, 1)))
            d_delta, grad_h = _adjoint(block, transition, h, states, dy, grad_h, out, span)
            d_raw = d_delta * raw.sigmoid() if arguments.softplus else d_delta
            out.raw[:, times] = unfolded(d_raw, n)
            if out.dt_bias is not None:
                out.dt_bias.add_(d_raw.sum((0, 1)))
        out.h0.copy_(grad_h)
    d_gate = None if into.gate is None or given.gate is None else into.gate.to(given.gate.dtype)
    return into._replace(u=into.u.to(given.u.dtype), dt=into.dt.to(given.dt.dtype), gate=d_gate)


def _kept_states(m: Tensor, g: int, is_complex: bool) -> Tensor:
    """Checkpoints (b, chunks, [2,] n, d) as (b, chunks, g, n, d/g), a copy if complex."""
    m = torch.complex(m[:, :, 0], m[:, :, 1]) if is_complex else m
    return by_group(m, g).transpose(-2, -3)


def _adjoint(
    block: Block,
    transition: _Transition,
    h: Tensor,
    states: Tensor,
    dy: Tensor,
    grad_h: Tensor,
    out: Views,
    span: Span,
) -> tuple[Tensor, Tensor]:
    """Gradients of Delta and of the state before the span; those of A, B, C and u are added to ``out``."""
    u, delta, A, B, C, passes, exact, chunks = block
    times = slice(span.start, span.stop)
    dy = (2 * dy if A.is_complex() else dy).unsqueeze(3)  # (b, t, g, 1, c)
    out.C[:, times] += unfolded((states.conj() @ dy.mT.to(states.dtype)).squeeze(4), chunks)
    # the gradient of every state: g_t = dy_t conj(C_t) + conj(a_{t+1}) g_{t+1}
    g = dy * C.conj()
    before = _run_back(block, transition, g, _ends(block, transition, g, grad_h))
    scaled = transition.step * u  # what B is multiplied by
    from_scaled = (g * scaled.conj()).sum(4) if exact else (g @ scaled.mT.to(g.dtype)).squeeze(4)
    out.B[:, times] += unfolded(from_scaled, chunks)
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
        d_u = (from_step * transition.step.conj()).sum(3).real
        from_step *= u
        d_delta += from_step * transition.a.conj()
        d_A += from_step * hold_slope(delta, A).conj()
    else:
        product = (B.mH @ g).squeeze(3).real  # (b, t, g, c)
        d_u = product * delta.squeeze(3)
        direct = product * u.squeeze(3)
    out.u[:, times] += unfolded(d_u, chunks)
    out.A.add_(d_A.sum((0, 1)))
    d_delta = d_delta.sum(3).real
    before = before.unflatten(0, (-1, chunks))[:, 0]
    return d_delta if direct is None else direct.add_(d_delta), before
