"""LegS online: c'(t) = (A c(t) + B u(t)) / t, for inputs that are held over each step of time.

The state is the projection of all of the past on Legendre polynomials stretched over [0, t]. For a past that is
constant within each step that projection is known in closed form, so nothing needs to be integrated step by step: a
state is carried to a later time as the polynomial that it stands for, projected again, and each input adds the
integrals of the basis over its own step. That is zero-order hold in log t, without a matrix exponential and without
rounding that accumulates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statewise.hippo.bases import gauss_legendre, legendre, normalised_legendre
from statewise.semiseparable.recurrence import recurrence

# Numbers in the largest table of basis values, (n, times, nodes and edges): 16 MB of float64.
TABLE = 2**21
# The share that the end of a step has in each rule of :func:`rule`.
LATE = {"bilinear": 0.5, "euler": 0.0, "backward_euler": 1.0}


def hold(coefficients: Tensor, u: Tensor, steps: int, counts: Tensor) -> Tensor:
    """The coefficients after the given numbers of further inputs, exactly.

    Shapes:  coefficients: (signals, n) after ``steps`` inputs   u: (signals, k)   counts: (m,) int64 in 1 ... k
             ->   (signals, m, n)
    Cost:    O(m n (n + k)) for the basis, and as much for each signal
    Numerics: sums in float64 whatever the dtype
    """
    n, k = coefficients.shape[1], u.shape[1]
    parts = [_hold(coefficients.double(), u.double(), steps, m) for m in counts.split(max(1, TABLE // (n * (n + k))))]
    return torch.cat(parts, dim=1).to(u.dtype) if parts else coefficients.new_empty(coefficients.shape[0], 0, n)


def _hold(coefficients: Tensor, u: Tensor, steps: int, counts: Tensor) -> Tensor:
    n, k = coefficients.shape[1], u.shape[1]
    root = (2 * torch.arange(n, dtype=u.dtype, device=u.device) + 1).sqrt()
    t = steps + counts.to(u.device)[:, None].double()
    # An input is the integral of phi_i from one edge of its step to the other, (P_{i+1} - P_{i-1}) / (2 sqrt(2i+1)) at
    # the edges. Each edge lies between two inputs and is counted once, with their difference. Inputs after t have both
    # of their edges at 1, where the integrals of all P_i end.
    edges = ((steps + torch.arange(k + 1, dtype=u.dtype, device=u.device)) / t).clamp(max=1)
    jumps = -torch.diff(u, dim=1, prepend=torch.zeros_like(u[:, :1]), append=torch.zeros_like(u[:, :1]))
    ends = torch.einsum("nmk,sk->smn", legendre(n + 1, 2 * edges - 1), jumps)
    first = torch.einsum("mk,sk->sm", edges, jumps)[..., None]
    new = torch.cat([first, (ends[..., 2:] - ends[..., : n - 1]) / (2 * root[1:])], dim=-1)
    if steps == 0:
        return new
    nodes, weights = (table.to(u.device) for table in gauss_legendre(n))
    past = coefficients @ (normalised_legendre(n, nodes) * weights)
    ratio = steps / t
    again = torch.einsum("nmq,sq->smn", legendre(n, 2 * ratio * nodes - 1), past)
    return new + again * ratio * root


def rule(coefficients: Tensor, u: Tensor, steps: int, share: float) -> Tensor:
    """The coefficients after each input, A/k counted at the beginning of a step and A/(k+1), by ``share``, at its end.

    (I - s A/(k+1)) c_{k+1} = (I + (1-s) A/k) c_k + ((1-s)/k + s/(k+1)) B u_k, and c_1 = (u_0, 0, ...), which is exact.
    A share s of 1/2 is the trapezoid rule: the product of the steps stays below n in norm, but for k < n the highest
    coefficients only alternate in sign where they should be forgotten; :func:`hold` has no such phase. A share of 0 is
    Euler's rule, in which they grow in that phase, and 1 the backward one, in which they shrink.

    A is a diagonal and a sum over the orders below, so the coefficient of one order is a scalar recurrence over all
    times once the orders below it are known.

    Shapes:  coefficients: (signals, n) after ``steps`` inputs   u: (signals, k)   ->   (signals, k, n)
    Cost:    O(k n) for each signal
    """
    n = coefficients.shape[1]
    if u.shape[1] == 0:
        return coefficients.new_empty(coefficients.shape[0], 0, n)
    if steps == 0:
        first = torch.nn.functional.pad(u[:, :1], (0, n - 1))
        return torch.cat([first[:, None], rule(first, u[:, 1:], 1, share)], dim=1)
    time = steps + torch.arange(u.shape[1] + 1, dtype=u.dtype, device=u.device)[:, None]
    early, late = (1 - share) / time[:-1], share / time[1:]
    drive = (early + late) * u.T  # (k, signals)
    below = torch.zeros_like(drive), torch.zeros_like(drive)  # sums over the lower orders, before and after each step
    orders = []
    for i in range(n):
        root = math.sqrt(2 * i + 1)
        scale = 1 / (1 + (i + 1) * late)
        gains = (1 - (i + 1) * early) * scale
        inputs = root * (drive - early * below[0] - late * below[1]) * scale
        values = recurrence(gains, torch.cat([coefficients[None, :, i], inputs]))
        orders.append(values[1:])
        below = below[0] + root * values[:-1], below[1] + root * values[1:]
    return torch.stack(orders, dim=-1).movedim(0, 1)
