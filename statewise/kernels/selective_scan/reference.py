"""The definition of the selective scan of Mamba, in plain differentiable PyTorch, one step after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.pairs import as_complex

_SERIES_BELOW = 0.5  # of |z|: above, (e^z - 1) / z loses no more than a few roundings
_SERIES_TERMS = 18


def hold(delta: Tensor, A: Tensor) -> Tensor:
    """(e^{Delta A} - 1) / A: Delta near A = 0, and -1 / A for Delta = inf, where Delta phi_1(Delta A) would be NaN.

    By the series of phi_1 near 0, where the quotient loses digits and has no derivative.
    """
    near, short, far, e = _near_and_far(delta, A)
    z = short * A
    series = torch.ones_like(z)
    for k in range(_SERIES_TERMS, 1, -1):
        series = 1 + z / k * series
    return torch.where(near, short * series, (e - 1) / far)


def hold_slope(delta: Tensor, A: Tensor) -> Tensor:
    """The derivative of :func:`hold` by A: Delta^2 phi_1'(Delta A), which away from 0 would overflow in Delta^2."""
    near, short, far, e = _near_and_far(delta, A)
    z = short * A
    # sum of (k + 1) z^k / (k + 2)!, whose terms have the ratio z (k + 1) / (k (k + 2))
    series = torch.ones_like(z)
    for k in range(_SERIES_TERMS, 0, -1):
        series = 1 + z * ((k + 1) / (k * (k + 2))) * series
    return torch.where(near, short * short * (series / 2), (delta * e - (e - 1) / far) / far)


def _near_and_far(delta: Tensor, A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whether Delta A is near 0; Delta where it is, else 0; A and e^{Delta A} where it is not, else 1 and e."""
    z = delta * A
    near = z.abs() < _SERIES_BELOW
    short = torch.where(near, delta, torch.zeros_like(delta))
    far = torch.where(near, torch.ones_like(A), A)
    return near, short, far, torch.where(near, torch.ones_like(z), z).exp()


def selective_scan_reference(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    *,
    D: Tensor | None = None,
    gate: Tensor | None = None,
    dt_bias: Tensor | None = None,
    softplus: bool = False,
    method: str = "mamba",
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """h_t = exp(Delta A) h_{t-1} + Delta B u, y_t = C h_t + D u, then SiLU(gate). Shapes as the fast form's."""
    d, is_complex = u.shape[2], any(m.is_complex() for m in (A, B, C))
    B, C = (m.repeat_interleave(d // m.shape[2], 2) for m in (B, C))  # (b, l, d, n)
    h = as_complex(h0) if is_complex else h0
    delta = dt if dt_bias is None else dt + dt_bias
    if softplus:
        delta = F.softplus(
            delta, threshold=40.0
        )  # above 40 the linear stand-in is exact to rounding; e^x would overflow
    before = torch.zeros(u.shape[0], dtype=torch.int64, device=u.device)
    outputs = []
    for t, (u_t, delta_t, B_t, C_t) in enumerate(zip(u.unbind(1), delta.unbind(1), B.unbind(1), C.unbind(1))):
        if segments is not None:
            now = segments[:, t]
            h = torch.where((now == before)[:, None, None], h, torch.zeros_like(h))
            before = now
        z = delta_t.unsqueeze(-1) * A
        step = hold(delta_t.unsqueeze(-1), A) if method == "zoh" else delta_t.unsqueeze(-1)
        h = z.exp() * h + step * B_t * u_t.unsqueeze(-1)
        product = (C_t * h).sum(-1)
        outputs.append(2 * product.real if is_complex else product)
    y = torch.stack(outputs, 1) if outputs else torch.zeros_like(u)
    if D is not None:
        y = y + D * u
    if gate is not None:
        y = y * F.silu(gate)
    return y, torch.view_as_real(h) if is_complex else h
