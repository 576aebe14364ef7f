"""Which states inputs reach and outputs show."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.base import System
from statewise.systems.gramians import _dense, _with_outputs
from statewise.systems.rules import is_number
from statewise.systems.units import even_units, in_units


def controllability_matrix(system: System) -> Tensor:
    """[B, A B, ..., A^(n-1) B]. Its columns span the states that inputs reach from rest.

    For more than about ten states its columns become nearly parallel, and its numerical rank says little:
    :func:`controllability_rank` does not use it.

    Shapes:  -> (..., n, n m), in the dtype of the system, computed in float64. It carries no gradient.
    Source:  Kalman 1963, Mathematical Description of Linear Dynamical Systems.

    >>> from statewise.systems import mass_spring_damper
    >>> controllability_matrix(mass_spring_damper(mass=1.0, stiffness=4.0, damping=0.5))
    tensor([[ 0.0000,  1.0000],
            [ 1.0000, -0.5000]], dtype=torch.float64)
    """
    A, B = _dense(system)
    return torch.cat(_krylov(A, B), -1).to(system.A.dtype)


def observability_matrix(system: System) -> Tensor:
    """[C; C A; ...; C A^(n-1)]. Its null space holds the states that no output ever shows.

    Shapes:  -> (..., n p, n); the rest as :func:`controllability_matrix`
    Errors:  InputError for a system without C.
    """
    A, _, C, _ = _with_outputs(system)
    return torch.cat(_krylov(A.mH, C.mH), -1).mH.to(system.A.dtype)


def controllability_rank(system: System, *, tolerance: float = 1e-10) -> Tensor:
    """How many dimensions of the state inputs reach: n for a controllable system.

    An orthonormal basis grows block by block from B, A B, ...; a direction counts if it is longer than ``tolerance``
    times the norm of A (of B, in the first block), in units of the states in which A's rows and columns are of one
    length (Osborne 1960). So a change of that relative size in A and B is what it takes to cut the others off. States
    keep your unit where no path leads from them to others and back, and groups of states their units among each other:
    bring those to units of one size first.

    Shapes:  tolerance: above 0   ->   (...), int64
    Cost:    O(n^3) for each system, one after the other.
    Errors:  InputError for a tolerance that is not positive.
    Source:  the staircase form: Van Dooren 1981, IEEE Trans. Automatic Control 26(1).
    """
    A, B = _dense(system)
    return _ranks(A, B, system, tolerance)


def observability_rank(system: System, *, tolerance: float = 1e-10) -> Tensor:
    """How many dimensions of the state the outputs show: n for an observable system. As :func:`controllability_rank`.

    Errors:  InputError for a system without C, and a tolerance that is not positive.
    """
    A, _, C, _ = _with_outputs(system)
    return _ranks(A.mH, C.mH, system, tolerance)


def _krylov(A: Tensor, B: Tensor) -> list[Tensor]:
    blocks = [B]
    for _ in range(A.shape[-1] - 1):
        blocks.append(A @ blocks[-1])
    return blocks


def _ranks(A: Tensor, B: Tensor, system: System, tolerance: float) -> Tensor:
    check_tolerance(tolerance)
    n, m = B.shape[-2:]
    units = even_units(A)
    A, B = in_units(A, units), B / units.unsqueeze(-1)
    ranks = [reached(*pair, tolerance).shape[-1] for pair in zip(A.reshape(-1, n, n), B.reshape(-1, n, m))]
    return torch.tensor(ranks, device=A.device).reshape(system.leading)


def check_tolerance(tolerance: float) -> None:
    if not is_number(tolerance) or not 0 < tolerance < 1:
        raise InputError(f"tolerance must be between 0 and 1, relative to A and B; got {tolerance!r}")


def reached(A: Tensor, B: Tensor, tolerance: float) -> Tensor:
    """An orthonormal basis (n, r) of the span of B, A B, A^2 B, ..."""
    basis, block = A.new_zeros(A.shape[-1], 0), B
    if not len(A):
        return basis
    scale, later = torch.linalg.matrix_norm(B, 2), torch.linalg.matrix_norm(A, 2)
    while basis.shape[-1] < A.shape[-1]:
        for _ in range(2):  # the second time takes away what rounding left
            block = block - basis @ (basis.mH @ block)
        U, s, _ = torch.linalg.svd(block, full_matrices=False)
        new = U[:, s > tolerance * scale]
        if not new.shape[-1]:
            break
        basis = torch.cat([basis, new], -1)
        block, scale = A @ new, later
    return basis
