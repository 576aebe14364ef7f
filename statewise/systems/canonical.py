"""The same system in other coordinates of its state: modal, companion, and normal plus low rank.

With x = T z a system (A, B, C, D) becomes (T^-1 A T, T^-1 B, C T, D): the same poles and the same responses.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.base import System
from statewise.systems.discrete import DiscreteSystem
from statewise.systems.gramians import _dense, _with_outputs
from statewise.systems.reachability import controllability_rank, observability_rank
from statewise.systems.responses import Parts, Reference
from statewise.systems.units import even_units, in_units

_S = TypeVar("_S", bound=System)
_DIGITS_LEFT = 1e-4  # of the responses: below it a form is told to be useless


class Canonical(NamedTuple, Generic[_S]):
    """A system in other coordinates.

    system:     the kind and precision of the given one
    T:          (..., n, n), complex128 or float64: x = T z, with z the new state
    condition:  (...) float64, the condition number of T, in your units of the states: rounding errors of the new state
                grow by up to this factor on their way back to x. 1 is best
    """

    system: _S
    T: Tensor
    condition: Tensor


class NormalPlusLowRank(NamedTuple):
    """A = V (diag(Lambda) - P^T conj(Q)) V* with a unitary V: a normal matrix, diagonal in V, and a correction.

    Shapes:  Lambda: (n,)   P, Q: (rank, n)   V: (n, n), all complex128
             B: V* B, (n,) or (n, m)   C: C V, (n,) or (p, n); None for a system without C
    """

    Lambda: Tensor
    P: Tensor
    Q: Tensor
    V: Tensor
    B: Tensor
    C: Tensor | None


def modal_form(system: _S) -> Canonical[_S]:
    """The system with a diagonal A: each state is a mode of its own, T holds the eigenvectors, of length 1.

    This is the form that S4D computes with. It is useless for an A whose eigenvectors are nearly parallel, such as
    HiPPO's LegS: ``condition`` says so, and a warning where fewer than about four digits of the dtype are left.

    Shapes:  -> a system with ``diagonal=True``, complex, with the leading axes of the given one
    Cost:    O(n^3), in complex128; the result is rounded to the system's precision. It carries no gradient.
    Errors:  InputError for an A that has no n independent eigenvectors. UserWarning as above.
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, lemmas 3.1 and 3.2.

    >>> from statewise.systems import mass_spring_damper
    >>> modal, T, condition = modal_form(mass_spring_damper(mass=1.0, stiffness=4.0, damping=0.0))
    >>> modal.A.imag.round(decimals=6), condition
    (tensor([ 2., -2.], dtype=torch.float64), tensor(2.0000, dtype=torch.float64))
    """
    A, B = (z.to(torch.complex128) for z in _dense(system))
    if system.diagonal:
        poles, T = A.diagonal(dim1=-2, dim2=-1), torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)
        lost = condition = torch.linalg.cond(T)
    else:
        units = even_units(A)
        poles, T = torch.linalg.eig(in_units(A, units))
        lost = torch.linalg.cond(T)  # of digits: the rest of the condition is the units', and costs none
        T = T * units.unsqueeze(-1)
        T = T / torch.linalg.vector_norm(T, dim=-2, keepdim=True)
        condition = torch.linalg.cond(T)
        lost = torch.minimum(lost, condition)
    if not bool((lost < 0.01 / torch.finfo(torch.float64).eps).all()):
        raise InputError(
            "A has no n independent eigenvectors in double precision, where some are parallel but for rounding, so it "
            "has no modal form; use it as it is, or normal_plus_low_rank where that exists"
        )
    _warn_if_useless("modal_form", lost, system)
    C = None if system.C is None else _with_outputs(system).C.to(A.dtype) @ T
    return Canonical(system._with(poles, torch.linalg.solve(T, B), C, diagonal=True), T, condition)


def companion_form(system: _S, kind: Literal["controllable", "observable"] = "controllable") -> Canonical[_S]:
    """The system written with the coefficients of its characteristic polynomial, s^n + a_1 s^(n-1) + ... + a_n.

    ``controllable``: A moves each state to the one before it, and its last row is -a_n, ..., -a_1; B = [0, ..., 0, 1];
    C holds the numerator of the transfer function, its lowest power first. ``observable`` is the transpose: the
    coefficients are the last column of A, and C = [0, ..., 0, 1].

    Textbooks and transfer functions use it. To compute with, it is poor beyond about ten states, and where poles are
    far apart: a warning says so where the responses of the result, around the size of each pole, are off by more than
    1e-4 of theirs.

    Shapes:  one input (``controllable``) or one output (``observable``)   ->   a dense system, with the leading axes
    Cost:    O(n^3), in float64; the result is rounded to the system's dtype. It carries no gradient.
    Errors:  InputError for several inputs (outputs), an unknown kind, and a system that is not controllable (not
             observable): its :func:`~statewise.systems.minimal_realization` is.
    Source:  Kailath 1980, Linear Systems, sec. 2.1 and 2.3.

    >>> from statewise.systems import mass_spring_damper
    >>> companion, T, condition = companion_form(mass_spring_damper(mass=2.0, stiffness=4.0, damping=1.0))
    >>> companion.A
    tensor([[ 0.0000,  1.0000],
            [-2.0000, -0.5000]], dtype=torch.float64)
    >>> companion.C
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    if kind not in ("controllable", "observable"):
        raise InputError(f"kind={kind!r} is unknown; use 'controllable' or 'observable'")
    A, B = _dense(system)
    n = A.shape[-1]
    C: Tensor | None
    if kind == "observable":
        n_ends, rank = _with_outputs(system).C.shape[-2], observability_rank(system)
        A, B, C = A.mT, _with_outputs(system).C.mT, B.mT
    else:
        C = None if system.C is None else _with_outputs(system).C
        n_ends, rank = B.shape[-1], controllability_rank(system)
    if n_ends != 1:
        end = "output" if kind == "observable" else "input"
        raise InputError(f"the {kind} companion form is that of one {end}, and this system has {n_ends}; index it")
    if bool((rank < n).any()):
        raise InputError(
            f"only {int(rank.min())} of {n} states are {kind}, so there is no {kind} companion form; use "
            "minimal_realization first, or bring groups of states to units of one size if it leaves none out"
        )
    a = _characteristic_polynomial(A)
    columns = [B[..., 0]]
    for k in range(1, n):  # Horner's rule: A^k B + a_1 A^(k-1) B + ... + a_k B
        columns.append((A @ columns[-1].unsqueeze(-1)).squeeze(-1) + a[..., k, None] * B[..., 0])
    T = torch.stack(columns[::-1], -1)
    companion = torch.diag_embed(A.new_ones(*A.shape[:-2], n - 1), 1)
    companion[..., -1, :] = -a[..., 1:].flip(-1)
    if not bool(companion.isfinite().all() & T.isfinite().all()):
        raise InputError(
            "the coefficients of the characteristic polynomial do not fit float64; measure time in another unit, or "
            "use the system as it is"
        )
    last = torch.zeros_like(B)
    last[..., -1, 0] = 1
    C = None if C is None else C @ T
    if kind == "observable":
        assert C is not None
        # The transposed system is A' T = T A'_c, so A T^-T = T^-T A_c
        found = Canonical(system._with(companion.mT, C.mT, last.mT), torch.linalg.inv(T.mT), torch.linalg.cond(T))
    else:
        found = Canonical(system._with(companion, last, C), T, torch.linalg.cond(T))
    _warn_if_wrong(found, system)
    return found


def normal_plus_low_rank(
    system: System, rank: int | None = None, *, tolerance: float | None = None
) -> NormalPlusLowRank:
    """A as a normal matrix and a correction of low rank, where it is of one of three kinds.

    - A is normal itself, as every symmetric matrix is: there is nothing to correct.
    - A = c I + skew + correction: the eigenvalues of A's Hermitian part are all c but a few. HiPPO's matrices are of
      this kind, and S4 rests on it.
    - A = sigma U + correction with U unitary: the singular values of A are all sigma but a few. Shifts and companion
      matrices are of this kind.

    The kind with the smallest rank is taken. A normal matrix has an eigenbasis with condition 1, however bad A's own
    is. Other matrices have such a form too, and the last two kinds may have a form of half the rank that is found: what
    differs is counted, up to two of it for each rank.

    Shapes:  one system   rank: the largest that you accept, 0 to n; None is n // 2
             ->   :class:`NormalPlusLowRank`, whose P and Q have the rank that was found
    Cost:    O(n^3), in complex128. It carries no gradient.
    Errors:  InputError for a batch, a rank outside 0 ... n, a tolerance (relative to the norm of A; None is n times
             the dtype's rounding, 16 times) outside (0, 1), and an A that needs a larger rank.
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, theorem 1 and appendix C.1.

    >>> from statewise import ContinuousSystem, hippo
    >>> form = normal_plus_low_rank(ContinuousSystem(*hippo.transition("legs", 8)))
    >>> form.P.shape, form.Lambda.real.mean()
    (torch.Size([1, 8]), tensor(-0.5000, dtype=torch.float64))
    """
    A, B = (z.to(torch.complex128) for z in _dense(system))
    n = A.shape[-1]
    if system.leading:
        raise InputError(f"normal_plus_low_rank takes one system; got a batch {system.leading}: index it")
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank <= n):
        raise InputError(f"rank must be a whole number from 0 to the system's {n} states, got {rank!r}")
    if tolerance is None:
        tolerance = 16 * n * torch.finfo(system.A.dtype).eps
    elif not isinstance(tolerance, float) or not 0 < tolerance < 1:
        raise InputError(f"tolerance must be between 0 and 1, relative to A; got {tolerance!r}")
    forms = [_line(A, tolerance), _circle(A, tolerance)]
    if _is_normal(A, tolerance):
        forms.append((A, A.new_zeros(0, n), A.new_zeros(0, n)))
    normal, P, Q = min(forms, key=lambda form: form[1].shape[0])
    most = n // 2 if rank is None else rank
    if P.shape[0] > most:
        raise InputError(
            f"no normal matrix plus a correction of rank {most} or less was found: A is not normal, and the kinds "
            f"that are looked for need rank {P.shape[0]}; allow it with rank=, or use A as it is"
        )
    Lambda, V = _eigenbasis(normal)
    C = None if system.C is None else _with_outputs(system).C.to(A.dtype) @ V
    B = V.mH @ B
    return NormalPlusLowRank(
        Lambda,
        P @ V.conj(),
        Q @ V.conj(),
        V,
        B.squeeze(-1) if system.single_input else B,
        C.squeeze(-2) if C is not None and system.single_output else C,
    )


_Form = tuple[Tensor, Tensor, Tensor]


def _is_normal(A: Tensor, tolerance: float) -> bool:
    size = A.abs().amax()
    unit = A / size if bool(size) else A
    off = torch.linalg.matrix_norm(unit @ unit.mH - unit.mH @ unit)
    return bool(off <= tolerance * torch.linalg.matrix_norm(unit, 2) ** 2)


def _line(A: Tensor, tolerance: float) -> _Form:
    """(N, P, Q) with N = c I + skew and A = N - P^T conj(Q): all eigenvalues of N have the real part c."""
    hermitian = (A + A.mH) / 2
    w, U = torch.linalg.eigh(hermitian)
    c, left = _most_common(w, tolerance * torch.linalg.matrix_norm(A, 2))
    excess = w[left] - c
    P = (excess.abs().sqrt() * U[:, left]).mT
    Q = -excess.sign().unsqueeze(-1) * P
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return (A - A.mH) / 2 + c * identity, P, Q


def _circle(A: Tensor, tolerance: float) -> _Form:
    """(N, P, Q) with N = sigma U, U unitary, and A = N - P^T conj(Q)."""
    W, s, Vh = torch.linalg.svd(A)
    sigma, left = _most_common(s, tolerance * s[0])
    excess = s[left] - sigma
    P = (excess.abs().sqrt() * W[:, left]).mT
    Q = -(excess.sign() * excess.abs().sqrt() * Vh.mH[:, left]).mT
    return sigma * (W @ Vh), P, Q


def _most_common(values: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """The value that most of these share within ``width``, and the indices of the others."""
    near = (values.unsqueeze(-1) - values).abs() <= width
    best = int(near.sum(-1).argmax())
    return values[near[best]].mean(), (~near[best]).nonzero().squeeze(-1)


def _eigenbasis(normal: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues of a normal matrix and a unitary matrix of eigenvectors, also where eigenvalues are equal.

    The Hermitian part of a turned normal matrix has its eigenvectors; two eigenvalues fall together in it only at
    single angles, so of a few angles the best is taken.
    """
    norm = torch.linalg.matrix_norm(normal)
    best: tuple[float, Tensor, Tensor] | None = None
    for angle in (math.pi / 2, 0.4, 1.1, 2.3):
        turned = normal * complex(math.cos(angle), -math.sin(angle))
        V = torch.linalg.eigh((turned + turned.mH) / 2).eigenvectors
        inside = V.mH @ normal @ V
        Lambda = inside.diagonal()
        error = float(torch.linalg.matrix_norm(inside - torch.diag(Lambda)) / norm) if float(norm) else 0.0
        if best is None or error < best[0]:
            best = (error, Lambda.clone(), V)
        if error < 1e-14 * len(normal):
            break
    assert best is not None
    return best[1], best[2]


def _characteristic_polynomial(A: Tensor) -> Tensor:
    """Its coefficients from the highest power, (..., n + 1): the product of (s - pole), small poles first."""
    poles = torch.linalg.eigvals(A)
    poles = poles.gather(-1, poles.abs().argsort(-1))
    a = torch.ones(*poles.shape[:-1], 1, dtype=poles.dtype, device=A.device)
    for pole in poles.unbind(-1):
        a = torch.nn.functional.pad(a, (0, 1)) - torch.nn.functional.pad(a, (1, 0)) * pole.unsqueeze(-1)
    return a if A.is_complex() else a.real


def _warn_if_useless(form: str, condition: Tensor, system: System) -> None:
    worst = float(condition.max()) if condition.numel() else 0.0  # a batch of none
    if worst * torch.finfo(system.A.dtype).eps > _DIGITS_LEFT:
        warnings.warn(
            f"{form}: the new coordinates have condition {worst:.1e}, too much for {system.A.dtype}: responses of the "
            "result may be wrong in every digit; use the system as it is",
            stacklevel=3,
        )


def _warn_if_wrong(found: Canonical[_S], given: System) -> None:
    """By the responses themselves, which the condition of T says little of where units or poles are far apart."""
    discrete, worst = isinstance(given, DiscreteSystem), 0.0
    for before, after in zip(_systems(given, None), _systems(found.system, found.T)):
        error = Reference.of(before.in_even_units(), discrete).error(after)
        worst = max(worst, error if math.isfinite(error) else math.inf)
    if worst > _DIGITS_LEFT:
        warnings.warn(
            f"companion_form: responses of the result are off by {worst:.1e} of theirs in {given.A.dtype}, since its "
            "coefficients are too far apart; use the system as it is",
            stacklevel=3,
        )


def _systems(system: System, T: Tensor | None) -> Iterator[Parts]:
    """One by one. A system without C shows its state, x = T z."""
    A, B = _dense(system)
    n = A.shape[-1]
    if system.C is not None:
        C = _with_outputs(system).C
    else:
        C = torch.eye(n, dtype=A.dtype, device=A.device).expand_as(A) if T is None else T
    for a, b, c in zip(A.reshape(-1, n, n), B.reshape(-1, n, B.shape[-1]), C.reshape(-1, *C.shape[-2:])):
        yield Parts(a, b, c)
