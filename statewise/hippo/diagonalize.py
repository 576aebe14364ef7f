"""The normal-plus-low-rank form of the HiPPO matrices: A = N - P^T P with N normal, and N diagonalised.

N is a real part times the identity plus a skew-symmetric matrix, so its eigenvectors are orthonormal and come from a
Hermitian eigenproblem. A itself has eigenvectors whose condition grows exponentially with n (LegS) and is never
diagonalised.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.hippo.measures import check, transition, window

LEAST_RANK = {"legs": 1, "legt": 2, "lagt": 1, "tlagt": 1, "fourier": 1, "fourier_diag": 0}
_REAL_PART = {"legs": -0.5, "legt": 0.0, "lagt": 0.0, "tlagt": -0.5, "fourier": 0.0, "fourier_diag": -0.5}


class NPLR(NamedTuple):
    """One of each conjugate pair of A = V (Lambda - P P*) V*: the form that S4 computes with, complex128.

    With Vf = [V, conj(V)] (unitary), Lf = [Lambda, conj(Lambda)], Pf = [P, conj(P)]: A = Vf (diag(Lf) - Pf^T conj(Pf))
    Vf*. A real state x is z = V* x, x = 2 Re(V z); z' = Lambda z - P^T 2 Re(conj(P) z) + B u.

    Shapes:  Lambda, B: (n/2,)   P: (rank, n/2)   V: (n, n/2)
    """

    Lambda: Tensor
    P: Tensor
    B: Tensor
    V: Tensor


def low_rank(
    measure: str, n: int, rank: int | None = None, *, theta: float | None = None, halved: bool = False
) -> Tensor:
    """P such that A + P^T P is normal, with the A of :func:`statewise.hippo.transition` and the same options.

    LegS P_i = sqrt(i + 1/2); LegT sqrt(2i+1) on even i and the same on odd i, rank 2; LagT, and its translated form,
    sqrt(1/2); FouT its B; FouD is normal already. ``rank=None`` is the least rank; further rows are zeros.

    Shapes:  -> P (rank, n), float64
    Errors:  InputError for a rank below the least one of the measure, for lmu and glagt, and as :func:`transition`.
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, appendix C.1.
    """
    check(measure, n)
    if measure == "lmu":
        raise InputError(
            "lmu is not normal plus low-rank in its own basis; use legt, the same memory in a basis where it is"
        )
    if measure == "glagt":
        raise InputError("glagt is not normal plus low-rank for every alpha; use tlagt, which it is at alpha=0")
    least = LEAST_RANK[measure]
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < least):
        raise InputError(f"{measure} needs a low-rank correction of rank {least} or more, got rank {rank!r}")
    index = torch.arange(n, dtype=torch.float64)
    P = torch.zeros(least if rank is None else rank, n, dtype=torch.float64)
    if measure == "legs":
        P[0] = (index + 0.5).sqrt()
    elif measure == "legt":
        root = (2 * index + 1).sqrt()
        P[0, 0::2], P[1, 1::2] = root[0::2], root[1::2]
    elif measure in ("lagt", "tlagt"):
        P[0] = math.sqrt(0.5)
    elif measure == "fourier":
        P[0] = transition("fourier", n)[1]
    return P * math.sqrt(window(measure) / window(measure, theta=theta, halved=halved))


def nplr(
    measure: str,
    n: int,
    rank: int | None = None,
    *,
    theta: float | None = None,
    beta: float = 1.0,
    halved: bool = False,
) -> NPLR:
    """The normal-plus-low-rank form of a measure, diagonalised; options as :func:`statewise.hippo.transition`.

    The imaginary parts are ascending and not negative. Eigenvectors are free up to a phase; it is chosen so that B is
    real and positive, which makes the result the same everywhere.

    Shapes:  see :class:`NPLR`
    Cost:    O(n^3)
    Errors:  InputError for odd n, and as :func:`low_rank`.
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, theorem 1 and appendix C.

    >>> nplr("legs", 4).Lambda
    tensor([-0.5000+0.5565j, -0.5000+4.6033j], dtype=torch.complex128)
    """
    check(measure, n, beta=beta, pairs=True)
    P = low_rank(measure, n, rank, theta=theta, halved=halved)
    A, B = transition(measure, n, theta=theta, beta=beta, halved=halved)
    if measure in ("fourier", "fourier_diag"):
        # Blocks of 2 x 2 with the eigenvectors (1, -i)/sqrt(2). The first block is zero, so that an eigensolver would
        # return any basis of its plane, and not conjugates.
        omega = (A + P.T @ P)[1::2, 0::2].diagonal()
        V = torch.zeros(n, n // 2, dtype=torch.complex128)
        pair = torch.arange(n // 2)
        V[2 * pair, pair] = math.sqrt(0.5)
        V.imag[2 * pair + 1, pair] = -math.sqrt(0.5)
    else:
        omega, V = _skew_eigenvectors(A + P.T @ P)
    scale = window(measure) / window(measure, theta=theta, halved=halved)
    real = _REAL_PART[measure] * scale * (beta if measure == "tlagt" else 1.0)
    Lambda = torch.complex(torch.full_like(omega, real), omega)
    V = V * torch.sgn(V.mH @ B.to(V.dtype))
    return NPLR(Lambda, (V.mH @ P.T.to(V.dtype)).T, V.mH @ B.to(V.dtype), V)


def _skew_eigenvectors(normal: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies (n/2,) and eigenvectors (n, n/2) of the pairs +i omega of the skew-symmetric part of a matrix."""
    n = normal.shape[0]
    skew = (normal - normal.T) / 2
    omega, V = torch.linalg.eigh(torch.complex(torch.zeros_like(skew), -skew))
    omega, V = omega[n // 2 :], V[:, n // 2 :]
    # [V, conj(V)] is unitary only as far as +omega and -omega are told apart, which for LagT at n = 256 loses three
    # digits. Real and imaginary parts are n real vectors; one step towards the nearest orthonormal set restores them.
    real = math.sqrt(2) * torch.cat([V.real, V.imag], dim=1)
    real = real @ (1.5 * torch.eye(n, dtype=torch.float64) - 0.5 * real.T @ real)
    return omega, torch.complex(real[:, : n // 2], real[:, n // 2 :]) / math.sqrt(2)
