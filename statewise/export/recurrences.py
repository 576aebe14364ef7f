"""What each kernel with a recurrence computes over any number of steps: one loop for each, all else around it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.diagonal_rank_one.reference import Arguments as RankOneArguments
from statewise.kernels.pairs import as_complex
from statewise.kernels.selective_scan import Arguments as SelectiveArguments
from statewise.kernels.selective_scan.reference import hold
from statewise.kernels.ssd.reference import Arguments as SSDArguments
from statewise.operators.folding import fold

Lists = tuple[list[Tensor], list[Tensor]]


def linear_scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t."""

    def step(h: list[Tensor], at: list[Tensor], _: list[Tensor]) -> Lists:
        after = at[0] * h[0] + at[1]
        return [after], [after]

    return fold(step, [h0], [a, b])[1][0]


def selective_scan(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`statewise.kernels.selective_scan.reference.selective_scan_reference`, of arguments as registered."""
    given = SelectiveArguments(*arguments[:-1]).widened()
    is_complex, groups, n = given.is_complex, given.B.shape[2], given.A.shape[1]
    delta = given.dt if given.dt_bias is None else given.dt + given.dt_bias
    delta = F.softplus(delta, threshold=40.0) if given.softplus else delta

    def step(carry: list[Tensor], at: list[Tensor], constants: list[Tensor]) -> Lists:
        delta, u, B, C, A, h = *at, *constants, *carry
        if is_complex:
            B, C, A, h = (as_complex(m) for m in (B, C, A, h))
        d = A.shape[0]
        B, C = (m.unsqueeze(2).expand(-1, -1, d // groups, -1).reshape(m.shape[0], d, n) for m in (B, C))
        delta = delta.unsqueeze(-1)
        input_step = hold(delta, A) if given.exact else delta
        h = (delta * A).exp() * h + input_step * B * u.unsqueeze(-1)
        y = (C * h).sum(-1)
        return ([torch.view_as_real(h)], [2 * y.real]) if is_complex else ([h], [y])

    (h,), (y,) = fold(step, [given.h0], [delta, given.u, given.B, given.C], [given.A])
    if given.D is not None:
        y = y + given.D * given.u
    if given.gate is not None:
        y = y * F.silu(given.gate)
    return y.to(arguments[0].dtype), h, h.new_empty(0)


def ssd(*arguments: Any) -> tuple[Tensor, Tensor]:
    """As :func:`statewise.kernels.ssd.reference.ssd_reference`, of arguments as registered; heads in their groups."""
    given = SSDArguments(*arguments)
    groups = given.B.shape[2]
    x = given.x if given.dt is None else given.x * given.dt.unsqueeze(-1)

    def step(carry: list[Tensor], at: list[Tensor], _: list[Tensor]) -> Lists:
        x, a, B, C = at
        h = a[..., None, None] * carry[0] + x.unsqueeze(-1) * B[:, :, None, None]
        return [h], [(h @ C[:, :, None, :, None]).squeeze(-1)]

    inputs = [m.unflatten(2, (groups, -1)) for m in (x, given.log_a.exp())]
    (h,), (y,) = fold(step, [given.h0.unflatten(1, (groups, -1))], [*inputs, given.B, given.C])
    y = y.flatten(2, 3)
    return y if given.D is None else y + given.D[:, None] * given.x, h.flatten(1, 2)


def diagonal_rank_one(*arguments: Any) -> tuple[Tensor, Tensor]:
    """As :func:`statewise.kernels.diagonal_rank_one.reference.diagonal_rank_one_reference`, of arguments as
    registered.
    """
    given = RankOneArguments(*arguments).general()
    assert given.read is not None

    def step(carry: list[Tensor], at: list[Tensor], _: list[Tensor]) -> Lists:
        v, q, k, a, read, erase = at
        found = carry[0] @ read.unsqueeze(-1)
        S = carry[0] * a.unsqueeze(2) - found * erase.unsqueeze(2) + v.unsqueeze(-1) * k.unsqueeze(2)
        return [S], [(S @ q.unsqueeze(-1)).squeeze(-1)]

    erase = given.k if given.erase is None else given.erase
    (S,), (y,) = fold(step, [given.S0], [given.v, given.q, given.k, given.log_a.exp(), given.read, erase])
    return y, S


def short_convolution(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: None, silu: bool
) -> Tensor:
    past = torch.cat([history, x.to(history.dtype)], 1)
    z = _convolved(past.unsqueeze(-1), taps.unsqueeze(1)).squeeze(-1).squeeze(-1)
    z = z if bias is None else z + bias
    return (F.silu(z) if silu else z).to(x.dtype)


def fft_convolution(u: Tensor, impulse_response: Tensor, history: Tensor | None) -> Tensor:
    """For a filter whose length does not depend on that of u, such as an H3 layer's."""
    if history is None:
        history = u.new_zeros(u.shape[0], impulse_response.shape[-1] - 1, *u.shape[2:])
    past = torch.cat([history, u], 1)
    dtype = torch.promote_types(past.dtype, impulse_response.dtype)
    return _convolved(past.to(dtype), impulse_response.to(dtype)).to(u.dtype)


def _convolved(past: Tensor, taps: Tensor) -> Tensor:
    """past (batch, n_taps - 1 + length, w, copies), taps (w, outputs, n_taps), the newest first
    -> (batch, length, w, outputs, copies)"""
    batch, _, w, copies = past.shape
    rows = past.permute(0, 3, 2, 1).reshape(batch * copies, w, -1)
    y = F.conv1d(rows, taps.flip(-1).reshape(-1, 1, taps.shape[-1]), groups=w)
    return y.reshape(batch, copies, w, taps.shape[1], -1).permute(0, 4, 2, 3, 1)


def cumulative_maximum(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest so far, along ``dim``. Where it was is not asked for by anything here."""

    def step(carry: list[Tensor], at: list[Tensor], _: list[Tensor]) -> Lists:
        after = torch.maximum(carry[0], at[0])
        return [after], [after]

    (largest,) = fold(step, [x.select(dim, 0)], [x], dim=dim)[1]
    return largest, torch.zeros_like(largest, dtype=torch.int64)
