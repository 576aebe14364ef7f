"""Units for the states in which a system's numbers are of one size, so that a tolerance means the same for each."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_SWEEPS = 50
_ANGLES = (0.0, 0.9, 2.2)  # at which the size of states is looked at; one alone may meet a zero


def even_units(A: Tensor) -> Tensor:
    """d (..., n), powers of two: diag(d)^-1 A diag(d) has rows and columns of nearly one length. It costs no digits.

    A state that no other reaches, or that reaches no other, stays as it is.

    Source:  Osborne 1960, On pre-conditioning of matrices; Parlett & Reinsch 1969.

    >>> even_units(torch.tensor([[0.0, 1.0], [-(2.0**30), -1.0]]))
    tensor([3.0518e-05, 1.0000e+00])
    """
    size = A.abs()
    size = size - size.diagonal(dim1=-2, dim2=-1).diag_embed()
    units = torch.ones_like(size[..., 0])
    for _ in range(_MOST_SWEEPS):
        changed = False
        for i in range(A.shape[-1]):
            to, of = torch.linalg.vector_norm(size[..., i, :], dim=-1), torch.linalg.vector_norm(size[..., i], dim=-1)
            connected = (to > 0) & (of > 0)
            power = torch.where(connected, (to.log2() - of.log2()) / 2, 0.0).round()
            if not bool(power.any()):
                continue
            changed = True
            factor = torch.exp2(power).unsqueeze(-1)
            size[..., i] = size[..., i] * factor
            size[..., i, :] = size[..., i, :] / factor
            units[..., i] = units[..., i] * factor[..., 0]
        if not changed:
            break
    return units


def in_units(A: Tensor, units: Tensor) -> Tensor:
    """diag(units)^-1 A diag(units)."""
    return A * units.unsqueeze(-2) / units.unsqueeze(-1)


def reach_and_show(A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """How far each state of one system moves for its inputs, and its outputs for it, both (n,) and at least 0.

    They are |(z - A)^-1 B| and |C (z - A)^-1|, largest over the inputs, the outputs and three z of twice the largest
    pole's size. In other units of a state one is multiplied and the other divided, so their product hangs on none: it
    is what the responses would miss without the state, but for a factor of n.
    """
    poles = torch.linalg.eigvals(A).abs().amax()
    size = float(2 * poles) or float(torch.linalg.matrix_norm(A)) or 1.0
    reached, shown = A.new_zeros(A.shape[-1]).abs(), A.new_zeros(A.shape[-1]).abs()
    A, B, C = (z.to(torch.complex128) for z in (A, B, C))
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    for angle in _ANGLES:
        z = torch.polar(torch.tensor(size, dtype=torch.float64), torch.tensor(angle, dtype=torch.float64))
        resolvent = z.to(A.device) * identity - A
        reached = torch.maximum(reached, torch.linalg.solve(resolvent, B).abs().amax(-1))
        shown = torch.maximum(shown, torch.linalg.solve(resolvent, C, left=False).abs().amax(-2))
    return reached, shown
