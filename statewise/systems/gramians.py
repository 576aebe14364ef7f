"""How strongly inputs reach each state and outputs show it: Gramians, Hankel singular values, balanced truncation."""

from __future__ import annotations

import warnings
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.base import Matrices, System
from statewise.systems.continuous import ContinuousSystem

_MOST_DOUBLINGS = 64
_SLOWEST = 16  # poles beside which responses are looked at
_DIGITS_LEFT = 1e-4
_S = TypeVar("_S", bound=System)


class Truncated(NamedTuple, Generic[_S]):
    """What :func:`balanced_truncation` returns.

    system:   the reduced system, of the kind and dtype of the given one, dense
    hankel:   all Hankel singular values of the given system, descending, (..., n) float64
    bound:    (...) float64: at no frequency does the largest singular value of the difference of the two frequency
              responses exceed it, but for rounding. So the difference of the outputs has at most ``bound`` times the
              energy norm of the input
    rounding: (...) float64: about how much the rounding of ``system`` to its dtype may add, to first order. It grows
              with the square of how slowly the slowest pole decays: a discrete pole at 1 - 1e-5 in float32 adds 1e3
    """

    system: _S
    hankel: Tensor
    bound: Tensor

    @property
    def rounding(self) -> Tensor:
        return _rounding(self.system)[0]


def controllability_gramian(system: System) -> Tensor:
    """P = integral of e^(At) B B* e^(A*t) over t from 0 on, or the sum of A^k B B* A*^k over k from 0 on.

    x* P^-1 x is the least energy of an input that brings the state from rest to x. P solves the Lyapunov equation
    A P + P A* + B B* = 0 of a continuous system, and Stein's equation P = A P A* + B B* of a discrete one.

    Shapes:  -> (..., n, n), Hermitian, in the dtype of the system. It carries no gradient.
    Numerics: float64, as the square of a factor; so it has no negative eigenvalue beyond rounding.
    Cost:    O(n^3) some twenty times: the logarithm of how many steps the system remembers.
    Errors:  InputError for a pole that does not decay: the integral has no limit.
    Source:  Antoulas 2005, Approximation of Large-Scale Dynamical Systems, ch. 4; doubling: Smith 1968.

    >>> decay = ContinuousSystem(torch.tensor([[-2.0]]), torch.tensor([1.0]))
    >>> controllability_gramian(decay)
    tensor([[0.2500]])
    """
    A, B = _dense(system)[:2]
    factor = _factor(A, B, system)
    return (factor @ factor.mH).to(system.A.dtype)


def observability_gramian(system: System) -> Tensor:
    """Q = integral of e^(A*t) C* C e^(At), or the sum of A*^k C* C A^k over k from 0 on.

    x* Q x is the energy of the output from the state x with no more input (for a discrete system with the output C x
    itself as the first). Everything else as :func:`controllability_gramian`.

    Errors:  InputError for a pole that does not decay, and for a system without C.
    """
    A, _, C, _ = _with_outputs(system)
    factor = _factor(A.mH, C.mH, system)
    return (factor @ factor.mH).to(system.A.dtype)


def hankel_singular_values(system: System) -> Tensor:
    """The square roots of the eigenvalues of P Q, descending: how much of past inputs each balanced state passes on.

    Shapes:  -> (..., n), float64. They carry no gradient.
    Numerics: from the factors of P and Q, never their product: errors are a few times float64's rounding of the largest
             one, and not its square root.
    Errors:  as :func:`observability_gramian`.
    Source:  Antoulas 2005, ch. 5.
    """
    A, B, C, _ = _with_outputs(system)
    return torch.linalg.svdvals(_factor(A.mH, C.mH, system).mH @ _factor(A, B, system))


def balanced_truncation(system: _S, n_states: int) -> Truncated[_S]:
    """The system with ``n_states`` states that keeps the largest Hankel singular values, and how wrong it can be.

    In balanced coordinates P and Q are the same diagonal matrix, of the Hankel singular values, and the last states
    are left out. The reduced system is stable, and the H-infinity norm of the error is at most twice the sum of the
    values left out. ``n_states=n`` only balances. D and, for a discrete system, ``dt`` and ``reads`` stay: with either
    order of reading the error is the same but for a factor of modulus 1.

    Shapes:  n_states: 1 to n   ->   :class:`Truncated`, with the leading axes of the system
    Cost:    O(n^3), as two Gramians and an SVD. In float64; the result is rounded to the system's dtype, and a warning
             says so where this may change its response by more than the bound and more than 1e-4 of its largest.
    Errors:  InputError for an ``n_states`` outside 1 ... n, or more than Hankel singular values above rounding; for a
             pole that does not decay, and a system without C.
    Source:  Antoulas 2005, ch. 7: Enns 1984 and Glover 1984 (continuous), Al-Saggaf & Franklin 1987 (discrete).

    >>> fast, slow = -100.0, -1.0
    >>> two = ContinuousSystem(torch.tensor([fast, slow]), torch.ones(2), torch.ones(2), diagonal=True)
    >>> one, hankel, bound = balanced_truncation(two, 1)
    >>> one.poles().real, bound
    (tensor([-1.0396]), tensor(0.0096, dtype=torch.float64))
    """
    A, B, C, _ = _with_outputs(system)
    n = A.shape[-1]
    if isinstance(n_states, bool) or not isinstance(n_states, int) or not 1 <= n_states <= n:
        raise InputError(f"n_states must be a whole number from 1 to the system's {n} states, got {n_states!r}")
    reached, seen = _factor(A, B, system), _factor(A.mH, C.mH, system)
    U, hankel, Vh = torch.linalg.svd(seen.mH @ reached)
    n_real = int(significant(hankel).amin()) if hankel.numel() else n  # a batch of none refuses nothing
    if n_states > n_real:
        raise InputError(
            f"n_states={n_states}, but only {n_real} Hankel singular values are above rounding; ask for no more"
        )
    scale = hankel[..., :n_states].rsqrt().unsqueeze(-2)
    right = reached @ Vh.mH[..., :n_states] * scale
    left = seen @ U[..., :n_states] * scale
    reduced = system._with(left.mH @ A @ right, left.mH @ B, C @ right)
    found = Truncated(reduced, hankel, 2 * hankel[..., n_states:].sum(-1))
    _warn_if_rounded(found)
    return found


def _rounding(system: System) -> tuple[Tensor, Tensor]:
    """What rounding may add to the frequency response, by its first derivatives, and how large the response is: each
    the most beside the slowest poles, of which a few are enough: each costs O(n^3)."""
    A, B, C, _ = _with_outputs(system)
    n, poles = A.shape[-1], torch.linalg.eigvals(A)
    poles = poles.gather(-1, system._growth(poles).topk(min(n, _SLOWEST), -1).indices)
    if isinstance(system, ContinuousSystem):
        z = torch.complex(torch.zeros_like(poles.imag), poles.imag)
    else:
        z = torch.polar(torch.ones_like(poles.real), poles.angle())
    A, B, C = (m.to(z.dtype).unsqueeze(-3) for m in (A, B, C))
    identity = torch.eye(n, dtype=z.dtype, device=z.device)
    resolvent = torch.linalg.inv_ex(z[..., None, None] * identity - A).inverse
    moved, shown, size_A, size_B, size_C = map(torch.linalg.matrix_norm, (resolvent @ B, C @ resolvent, A, B, C))
    eps = torch.finfo(system.A.dtype).eps + n * torch.finfo(torch.float64).eps
    error = eps * (shown * size_A * moved + shown * size_B + size_C * moved)
    response = torch.linalg.matrix_norm(C @ resolvent @ B)
    return tuple(m.nan_to_num(torch.inf, torch.inf).amax(-1) for m in (error, response))


def _warn_if_rounded(found: Truncated[_S]) -> None:
    error, response = _rounding(found.system)
    seen = (error > found.bound) & ~(error <= _DIGITS_LEFT * response)
    if bool(seen.any()):
        dtype = found.system.A.dtype
        more = "" if dtype in (torch.float64, torch.complex128) else "; convert the system to float64"
        warnings.warn(
            f"balanced_truncation: poles of the result decay so slowly that rounding it to {dtype} may change its "
            f"response by {float(error[seen].max()):.1e}, beside a bound of {float(found.bound[seen].max()):.1e}{more}",
            stacklevel=3,
        )


def significant(hankel: Tensor) -> Tensor:
    """How many Hankel singular values are above the rounding of the largest, (...)."""
    n = hankel.shape[-1]
    return (hankel > n * torch.finfo(hankel.dtype).eps * hankel[..., :1]).sum(-1)


def _dense(system: System) -> tuple[Tensor, Tensor]:
    """A (..., n, n) and B (..., n, m), complex128 or float64, with all leading axes and without gradients."""
    if not isinstance(system, System):
        raise InputError(f"system must be a ContinuousSystem or a DiscreteSystem, got {type(system).__name__}")
    A = system.A.detach().diag_embed() if system.diagonal else system.A.detach()
    B = system.B.detach().unsqueeze(-1) if system.single_input else system.B.detach()
    wide = torch.complex128 if A.is_complex() else torch.float64
    A, B = A.to(wide), B.to(wide)
    return A.expand(*system.leading, *A.shape[-2:]), B.expand(*system.leading, *B.shape[-2:])


def _with_outputs(system: System) -> Matrices:
    """As ``_dense``, with C (..., p, n) and D."""
    A, B = _dense(system)
    C, D = (m.detach().to(A.dtype) for m in system._matrices()[2:])
    return Matrices(A, B, C.expand(*system.leading, *C.shape[-2:]), D)


def _factor(A: Tensor, B: Tensor, system: System) -> Tensor:
    """L (..., n, n) with L L* = the Gramian of A (..., n, n) and B (..., n, m)."""
    if not A.numel():  # a batch of none
        return A.new_zeros(A.shape)
    poles = torch.linalg.eigvals(A)
    if not bool((system._growth(poles) < 0).all()):
        worst = poles.flatten()[system._growth(poles).flatten().argmax()].item()
        raise InputError(f"the system has a pole at {worst:.4g}, which does not decay; a Gramian needs all to decay")
    if isinstance(system, ContinuousSystem):
        A, B = _cayley(A, B, poles.abs())
    unit = B.abs().amax((-2, -1), keepdim=True) if B.numel() else B.real.new_ones(())
    unit = torch.where(unit > 0, torch.exp2(unit.log2().round()), 1.0)  # squares of large and small numbers do not fit
    B = B / unit
    L = torch.linalg.qr(torch.cat([B, torch.zeros_like(A)], -1).mH, mode="r").R.mH
    for _ in range(_MOST_DOUBLINGS):
        added = A @ L
        L = torch.linalg.qr(torch.cat([L, added], -1).mH, mode="r").R.mH
        size, whole = torch.linalg.matrix_norm(added), torch.linalg.matrix_norm(L)
        if bool((size <= torch.finfo(whole.dtype).eps * whole).all()) and bool(torch.linalg.matrix_norm(A).amax() < 1):
            return L * unit
        A = A @ A
        if not bool(A.isfinite().all()):
            break
    raise InputError("the Gramian did not settle: A is too far from normal for float64; scale or reduce the states")


def _cayley(A: Tensor, B: Tensor, moduli: Tensor) -> tuple[Tensor, Tensor]:
    """The discrete (A, B) with the same Gramian: (pI - A)^-1 (pI + A) and sqrt(2p) (pI - A)^-1 B, for any p > 0; the
    geometric mean of the slowest and the fastest pole treats both alike."""
    p = (moduli.amin(-1).sqrt() * moduli.amax(-1).sqrt())[..., None, None]
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    both = torch.linalg.solve(p * identity - A, torch.cat([p * identity + A, (2 * p).sqrt() * B], -1))
    return both[..., : A.shape[-1]], both[..., A.shape[-1] :]
