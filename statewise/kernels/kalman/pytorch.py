"""The filter step by step, in operations that PyTorch differentiates: for any device, and what C is held against."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.kernels.kalman.signature import Arguments, Gradients, Grads, Outputs
from statewise.kernels.kalman.triangular import lower, positive, solve, times


class Advanced(NamedTuple):
    """After a step: x_t given y_t, and the innovation with its factor."""

    mean: Tensor
    factor: Tensor
    innovation: Tensor
    innovation_factor: Tensor


def masked(array: Tensor, observed: Tensor | None) -> Tensor:
    """An array (..., p + n, k) whose missing observations are replaced by noise of variance 1 that nothing else has."""
    if observed is None:
        return array
    p, k = observed.shape[-1], array.shape[-1]
    lead = torch.broadcast_shapes(array.shape[:-2], observed.shape[:-1])
    top = array[..., :p, :].masked_fill(~observed.unsqueeze(-1), 0)
    array = torch.cat([top, array[..., p:, :].expand(*lead, -1, k)], -2)
    own = torch.diag_embed((~observed).to(array.dtype))
    own = torch.cat([own, own.new_zeros(*own.shape[:-2], array.shape[-2] - p, p)], -2)
    return torch.cat([array, own.expand(*lead, -1, p)], -1)


def update(factor: Tensor, G: Tensor, N: Tensor, observed: Tensor | None, p: int) -> Tensor:
    """[[S^1/2, 0], [K S^1/2, L']] of a step from the square root ``factor``; leading axes broadcast.

    Cost:    one QR decomposition of (2 n + p) x (n + p), or p more rows where observations are missing.
    """
    GL = G @ factor
    lead = torch.broadcast_shapes(GL.shape[:-2], N.shape[:-2])
    array = torch.cat([GL.expand(*lead, *GL.shape[-2:]), N.expand(*lead, *N.shape[-2:])], -1)
    return lower(masked(array, observed), p)


def advance(
    mean: Tensor, factor: Tensor, G: Tensor, N: Tensor, offset: Tensor, y: Tensor, observed: Tensor | None
) -> Advanced:
    """One step, of a filter that begins it with this mean and factor; leading axes broadcast."""
    p = y.shape[-1]
    X = update(factor, G, N, observed, p)
    expected = times(G, mean) + offset
    innovation = y - expected[..., :p]
    if observed is not None:
        innovation = innovation.masked_fill(~observed, 0)
    innovation_factor = X[..., :p, :p]
    after = expected[..., p:] + times(X[..., p:, :p], solve(innovation_factor, innovation))
    return Advanced(after, X[..., p:, p:], innovation, innovation_factor)


def log_densities(innovation: Tensor, innovation_factor: Tensor, n_observed: Tensor) -> Tensor:
    """(batch, length): log N(innovation; 0, S), where missing numbers are (0, 1) in innovation and factor."""
    distance = solve(innovation_factor, innovation).square().sum(-1)
    log_determinant = innovation_factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return -(distance + math.log(2 * math.pi) * n_observed.to(distance.dtype)) / 2 - log_determinant


def unbound(value: Tensor | None, length: int) -> list[Any]:
    """A coefficient's steps; ``unbind``, because indexing [:, t] makes the backward pass quadratic."""
    if value is None:
        return [None] * length
    return [value[:, 0]] * length if value.shape[1] == 1 else list(value.unbind(1))


def choose(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """yes where the row's condition holds, else no."""
    return torch.where(condition.reshape(*condition.shape, *[1] * (yes.ndim - condition.ndim)), yes, no)


def forward(given: Arguments) -> Outputs:
    """:func:`advance` folded over time; covariances that all rows share are computed once.

    Cost:    a dozen operations a step, one of which is a QR decomposition of (2 n + p) x (n + p) for each row.
    """
    batch, length, p = given.y.shape
    n, k = given.mean.shape[-1], given.offset.shape[-1]
    mean, factor = given.mean.expand(batch, n), given.factor.expand(given.rows, n, n)
    valid = None
    if given.lengths is not None:
        valid = torch.arange(length, device=given.y.device) < given.lengths[:, None]
    observed, starts = (None if m is None else m.bool() for m in (given.observed, given.starts))
    per_step = [unbound(m, length) for m in (given.G, given.N, given.offset, given.y, observed, valid, starts)]
    rows = []
    for G, N, offset, y, seen, here, begins in zip(*per_step):
        if begins is not None:
            mean, factor = choose(begins, given.prior_mean, mean), choose(begins, given.prior_factor, factor)
        now = advance(mean, factor, G, N, offset, y, seen)
        if here is not None:
            now = now._replace(mean=choose(here, now.mean, mean), factor=choose(here, now.factor, factor))
        mean, factor = now.mean, now.factor
        rows.append(now)
    if not rows:
        zero = given.y.new_zeros
        mean, innovation, density = (zero(batch, 0, *own) for own in ((n,), (p,), ()))
        return Outputs(mean, zero(given.rows, 0, n, n), innovation, zero(given.rows, 0, p, p), density)
    mean, factor, innovation, innovation_factor = (torch.stack(part, 1) for part in zip(*rows))
    factor, innovation_factor = positive(factor), positive(innovation_factor)
    n_observed = torch.tensor(p, device=mean.device) if observed is None else observed.sum(-1)
    density = log_densities(innovation, innovation_factor, n_observed)
    factor, innovation_factor = (m.expand(given.rows, *m.shape[1:]) for m in (factor, innovation_factor))
    assert k == n + p
    return Outputs(mean, factor, innovation, innovation_factor, density.expand(batch, length))


def backward(grads: Grads, given: Arguments, found: Outputs) -> Gradients:
    """The adjoint by hand, as kalman_backward.inc.h has it, where its letters are explained."""
    batch, length, p = given.y.shape
    zero = given.y.new_zeros
    valid = None
    if given.lengths is not None:
        valid = torch.arange(length, device=given.y.device) < given.lengths[:, None]
    observed, starts = (None if m is None else m.bool() for m in (given.observed, given.starts))
    mean, L = _before(given.mean, found.mean, batch), _before(given.factor, found.factor, batch)
    if starts is not None:
        mean = choose(starts, given.prior_mean.unsqueeze(1), mean)
        L = choose(starts, given.prior_factor.unsqueeze(1), L)
    GP = given.G @ (L @ L.mT)
    cross = GP[..., p:, :] @ given.G[..., :p, :].mT + (given.N @ given.N.mT)[..., p:, :p]
    if observed is not None:
        cross = cross.masked_fill(~observed.unsqueeze(-2), 0)
    inverse = torch.linalg.solve_triangular(found.innovation_factor, torch.eye(p).to(given.y), upper=False)
    S = inverse.mT @ inverse
    K, w = (cross @ S).expand(batch, length, -1, p), times(S, found.innovation)
    G = given.G.expand(batch, length, *given.G.shape[2:])
    S = S.expand(batch, length, p, p)
    m_bar, P_bar = torch.zeros_like(given.mean.expand(batch, -1)), torch.zeros_like(given.factor.expand(batch, -1, -1))
    prior_m, prior_P = m_bar, P_bar
    us: list[Tensor] = []
    Zs: list[Tensor] = []
    per_step = [unbound(m, length) for m in (G, K, w, S, *grads, observed, valid, starts)]
    for G_t, K_t, w_t, S_t, mean_t, e_t, d, seen, here, begins in reversed(list(zip(*per_step))):
        m_bar = m_bar if mean_t is None else m_bar + mean_t
        d = zero(batch) if d is None else d
        g, PK, d_w = times(K_t.mT, m_bar), P_bar @ K_t, d.unsqueeze(-1) * w_t
        of_e = g - d_w if e_t is None else e_t + g - d_w
        Z_xy = outer(m_bar, w_t) / 2 - PK
        Z_yy = K_t.mT @ PK + (outer(d_w, w_t) - d[:, None, None] * S_t - outer(g, w_t) - outer(w_t, g)) / 2
        if seen is not None:
            of_e, Z_xy = of_e.masked_fill(~seen, 0), Z_xy.masked_fill(~seen.unsqueeze(-2), 0)
            Z_yy = Z_yy.masked_fill(~(seen.unsqueeze(-1) & seen.unsqueeze(-2)), 0)
        u = torch.cat([-of_e, m_bar], -1)
        Z = torch.cat([torch.cat([Z_yy, Z_xy.mT], -1), torch.cat([Z_xy, P_bar], -1)], -2)
        if here is not None:  # padding gives nothing
            u, Z = choose(here, u, torch.zeros_like(u)), choose(here, Z, torch.zeros_like(Z))
        us.append(u)
        Zs.append(Z)
        new_m, new_P = times(G_t.mT, u), G_t.mT @ Z @ G_t
        if here is not None:
            new_m, new_P = choose(here, new_m, m_bar), choose(here, new_P, P_bar)
        if begins is not None:
            none_m, none_P = torch.zeros_like(new_m), torch.zeros_like(new_P)
            prior_m, prior_P = prior_m + choose(begins, new_m, none_m), prior_P + choose(begins, new_P, none_P)
            new_m, new_P = choose(begins, none_m, new_m), choose(begins, none_P, new_P)
        m_bar, P_bar = new_m, new_P
    if not us:
        return Gradients(*(torch.zeros_like(m) for m in given.numbers))
    u, Z = (torch.stack(part[::-1], 1) for part in (us, Zs))
    to_G, to_N = outer(u, mean) + 2 * Z @ GP, 2 * Z @ given.N
    factors = [2 * m @ like for m, like in ((P_bar, given.factor), (prior_P, given.prior_factor))]
    found_all = (-u[..., :p], to_G, to_N, u, m_bar, factors[0], prior_m, factors[1])
    return Gradients(*(m.sum_to_size(like.shape) for m, like in zip(found_all, given.numbers)))


def _before(first: Tensor, found: Tensor, batch: int) -> Tensor:
    """The values before each step, (batch, length, ...)."""
    first, found = (m.expand(batch, *m.shape[1:]) for m in (first, found))
    return torch.cat([first.unsqueeze(1), found[:, :-1]], 1)[:, : found.shape[1]]


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)
