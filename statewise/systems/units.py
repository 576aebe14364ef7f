"""Units for the states in which a system's numbers are of one size, so that a tolerance means the same for each."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_SWEEPS = 50


def even_units(A: Tensor) -> Tensor:
    """d (..., n), powers of two: diag(d)^-1 A diag(d) has rows and columns of nearly one length. It costs no digits.

    A state from which no path leads to others and back stays as it is, and so do groups of states among each other.

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
