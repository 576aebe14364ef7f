"""The rules that turn x' = A x + B u into x_k = A_bar x_{k-1} + B_bar u_k, for dense and for diagonal A.

======================  =============================================  ======================================
rule                    A_bar                                          B_bar
======================  =============================================  ======================================
``zoh``                 exp(dt A)                                      dt phi_1(dt A) B
``foh``                 exp(dt A)                                      dt phi_1(dt A)^2 B, see below
``dirac``               exp(dt A)                                      B
``mamba``               exp(dt A)                                      dt B
``gbt`` with ``alpha``  (I - alpha dt A)^-1 (I + (1 - alpha) dt A)     (I - alpha dt A)^-1 dt B
``euler``               gbt with alpha = 0
``bilinear``            gbt with alpha = 1/2
``backward_euler``      gbt with alpha = 1
======================  =============================================  ======================================

phi_1(z) = (e^z - 1)/z with phi_1(0) = 1, so A = 0 (an integrator) needs no special case. ``foh`` is exact for
inputs that are straight lines between the samples. Its output needs its own D and the state before the input of the
step: :func:`statewise.systems.discretize` returns them, while a pair (A_bar, B_bar) cannot.

Source: Gu et al. 2022 (S4D), arXiv:2206.11893, sec. 3.1 (zoh, bilinear); Gu et al. 2021 (LSSL), arXiv:2110.13985,
eq. 3 (gbt); Franklin, Powell & Workman, Digital Control of Dynamic Systems, 3rd ed., p. 204 (foh); Schöne et al. 2024,
arXiv:2404.18508 (dirac); Gu & Dao 2023, arXiv:2312.00752 (mamba, as in its code).
"""

from __future__ import annotations

import numbers
from fractions import Fraction
from functools import partial
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.precision import exactly
from statewise.systems.double_word import DoubleWord, exact_product, real_dtype
from statewise.systems.elimination import SINGULAR, refine
from statewise.systems.exponential import (
    exponential_and_integral,
    exponential_and_lines,
    phi_1,
    phi_2,
    with_gradient_of,
)

METHODS = ("zoh", "bilinear", "euler", "backward_euler", "gbt", "foh", "dirac", "mamba")
_ALPHA = {"euler": 0.0, "bilinear": 0.5, "backward_euler": 1.0}


class Transition(NamedTuple):
    """A_bar, B_bar and, for ``foh``, what the newest input adds to the state at once (else None)."""

    A: Tensor
    B: Tensor
    direct: Tensor | None


def discretize_diagonal(
    A: Tensor,
    B: Tensor,
    dt: Tensor | float,
    method: str = "zoh",
    *,
    alpha: float | None = None,
    check_dt: bool = True,
) -> tuple[Tensor, Tensor]:
    """(A_bar, B_bar) of systems with diagonal A.

    Shapes:  A: (..., n)   B: (..., n), or (..., n, m) with one axis more than A for m inputs   dt: (...), without
             the axis n; leading axes broadcast   ->   A_bar like A, B_bar like B
    Units:   dt is in the unit of time of A, and above 0; with ``zoh`` it may be infinite if A decays
             (A_bar = 0, B_bar = -B/A).
    Numerics: entry by entry to a few units in the last place, also for dt A in the millions and in float32: the
             rounding of dt A is carried along. Every derivative is finite at A = 0.
    Errors:  InputError for shapes, dtypes, a dt that is not positive, an unknown method, or an alpha that is
             missing, out of place or outside [0, 1]; NaN or infinity in A or B; 1 - alpha dt A = 0.
             ``check_dt=False`` trusts all values, for modules whose dt is exp(.) of a parameter: the checks wait
             for the device.
    Source:  the module's table.

    >>> discretize_diagonal(torch.tensor([-1.0, 0.0]), torch.ones(2), 0.5)
    (tensor([0.6065, 1.0000]), tensor([0.3935, 0.5000]))
    """
    A_bar, B_bar, _ = transition_diagonal(A, B, dt, method, alpha=alpha, check_dt=check_dt)
    return A_bar, B_bar


def discretize_dense(
    A: Tensor,
    B: Tensor,
    dt: Tensor | float,
    method: str = "zoh",
    *,
    alpha: float | None = None,
    check_dt: bool = True,
) -> tuple[Tensor, Tensor]:
    """(A_bar, B_bar) of systems with dense A.

    Shapes:  A: (..., n, n)   B: (..., n) with one axis less than A, or (..., n, m) for m inputs   dt: (...); the
             leading axes broadcast   ->   A_bar (..., n, n), B_bar like B
    Units:   dt is in the unit of time of A, and above 0; with ``zoh`` it may be infinite if A decays
             (A_bar = 0, B_bar = -A^-1 B).
    Numerics: in float64 the norm of the error is a few units in the last place of the result, also for stiff and
             far from normal A (eigenvalues -1e6 to -1e-6): see :mod:`statewise.systems.double_word` and
             :mod:`statewise.systems.elimination`. float32 is computed in float64 for the rules with an exponential.
    Cost:    O(n^3) for each dt: one factorisation for gbt (elimination in double words, some hundred times as
             long, for ill-conditioned A in float64), some tens of products for the exponential.
    Errors:  as :func:`discretize_diagonal`; also where I - alpha dt A is singular (only for A that grows).
    Source:  the module's table.

    >>> discretize_dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([0.0, 1.0]), 2.0)
    (tensor([[1., 2.],
            [0., 1.]]), tensor([2., 2.]))
    """
    transition = partial(transition_dense, method=method, alpha=alpha, check_dt=check_dt)
    A_bar, B_bar, _ = exactly(transition, A, B, dt)
    return A_bar, B_bar


def transition_diagonal(
    A: Tensor, B: Tensor, dt: Tensor | float, method: str, *, alpha: float | None = None, check_dt: bool = True
) -> Transition:
    """:func:`discretize_diagonal`, with what ``foh`` has besides."""
    alpha = check_method(method, alpha)
    dt = _check(A, B, dt, method, axes=1, check_dt=check_dt)
    many = B.ndim == A.ndim + 1
    dt = dt.unsqueeze(-1)
    if check_dt and method == "zoh":
        dt = _finite_dt(A, dt)
    z = exact_product(dt, A)
    direct: Tensor | None = None
    if alpha is not None:
        one = torch.ones_like(z.high)
        denominator = z.scale(-Fraction(alpha)).plus(one).rounded()
        if check_dt and bool((denominator == 0).any()):
            raise InputError(SINGULAR)
        A_bar = z.scale(1 - Fraction(alpha)).plus(one).rounded() / denominator
        gain = dt / denominator
    else:
        A_bar = torch.exp(z.high) * torch.exp(z.low)  # in float32 the low word of a long phase is no small number
        if method in ("zoh", "foh"):
            mean = phi_1(z.high, z.low)
            gain = dt * (mean if method == "zoh" else mean * mean)
            direct = dt * phi_2(z.high, z.low) if method == "foh" else None
        else:
            gain = torch.ones_like(dt) if method == "dirac" else dt
    return Transition(A_bar, _times(gain, B, A_bar, many), None if direct is None else _times(direct, B, A_bar, many))


def transition_dense(
    A: Tensor, B: Tensor, dt: Tensor | float, method: str, *, alpha: float | None = None, check_dt: bool = True
) -> Transition:
    """:func:`discretize_dense`, with what ``foh`` has besides."""
    alpha = check_method(method, alpha)
    dt = _check(A, B, dt, method, axes=2, check_dt=check_dt)
    one = B.ndim == A.ndim - 1
    B = B.unsqueeze(-1) if one else B
    leading = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2], dt.shape)
    B = B.expand(*leading, *B.shape[-2:])
    if alpha is not None:
        result = Transition(*generalized_bilinear(A, B, dt, alpha), None)
    else:
        precise = torch.complex128 if A.is_complex() else torch.float64
        result = _exponential(A.to(precise), B.to(precise), dt.double(), method, check_dt)
    A_bar, B_bar, direct = (None if z is None else z.to(A.dtype) for z in result)
    assert A_bar is not None
    assert B_bar is not None
    if one:
        B_bar, direct = B_bar.squeeze(-1), None if direct is None else direct.squeeze(-1)
    return Transition(A_bar, B_bar, direct)


def _exponential(A: Tensor, B: Tensor, dt: Tensor, method: str, check_dt: bool) -> Transition:
    """The rules with e^(dt A), in float64. A: (..., n, n)   B: (*leading, n, m)   dt: (...)"""
    endless = dt.isinf()[..., None, None] if method == "zoh" and check_dt and bool(dt.isinf().any()) else None
    step = dt[..., None, None] if endless is None else dt[..., None, None].masked_fill(endless, 1)
    X = exact_product(step, A)
    if method != "foh":
        A_bar, B_bar = exponential_and_integral(X, step * B)
        if method != "zoh":
            B_bar = B if method == "dirac" else step * B
        elif endless is not None:
            _refuse_endless(torch.linalg.eigvals(A), endless[..., 0])
            settled = _solve(DoubleWord(A, torch.zeros_like(A)).expand(B), DoubleWord(-B, torch.zeros_like(B)))
            A_bar = torch.where(endless, torch.zeros_like(A_bar), A_bar)
            B_bar = torch.where(endless, settled, B_bar)
        return Transition(A_bar.expand(*B.shape[:-2], *A.shape[-2:]), B_bar, None)
    A_bar, whole, direct = exponential_and_lines(X.expand(B), B)
    return Transition(A_bar, step * whole, step * direct)


def generalized_bilinear(
    A: Tensor, B: Tensor, dt: Tensor, alpha: float, before: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A: (..., n, n)   B: (..., n, m), with all leading axes   dt: (...)   before: A at the start of the step, if it is
    another there
    """
    n, step = A.shape[-1], dt[..., None, None]
    identity = torch.eye(n, dtype=A.dtype, device=A.device)
    X = exact_product(step, A).expand(B)
    drive = exact_product(step, B)
    start = X if before is None else exact_product(step, before).expand(B)
    forward = start.scale(1 - Fraction(alpha)) + identity
    if alpha == 0:
        return forward.rounded(), drive.rounded()
    right = DoubleWord(torch.cat([forward.high, drive.high], -1), torch.cat([forward.low, drive.low], -1))
    both = _solve(X.scale(-Fraction(alpha)) + identity, right)
    return both[..., :n], both[..., n:]


def _solve(matrix: DoubleWord, right: DoubleWord) -> Tensor:
    """matrix^-1 right; in float64 to its last places, however ill-conditioned (gradients: those of the plain solve)."""
    try:
        plain = torch.linalg.solve(matrix.high, right.high)
    except torch.linalg.LinAlgError:
        raise InputError(SINGULAR) from None
    if plain.dtype in (torch.float32, torch.complex64):
        return plain
    with torch.no_grad():
        exact = refine(matrix, right, plain)
    return with_gradient_of(plain, exact) if plain.requires_grad else exact


def _finite_dt(A: Tensor, dt: Tensor) -> Tensor:
    """dt with a number in place of infinity: long enough for e^(dt A) to underflow, which is what infinity means."""
    endless = dt.isinf()
    if not bool(endless.any()):
        return dt
    _refuse_endless(A, endless)
    return torch.where(endless, 1000 / A.real.detach().abs() if A.is_complex() else 1000 / A.detach().abs(), dt)


def _refuse_endless(poles: Tensor, endless: Tensor) -> None:
    if bool(((poles.real >= 0) & endless).any()):
        raise InputError("an infinite dt needs poles with a negative real part; give a finite dt or a stable A")


def _times(gain: Tensor, B: Tensor, A_bar: Tensor, many: bool) -> Tensor:
    """gain B, with all the leading axes that A_bar has; B has a last axis of inputs if there are ``many``."""
    gained = gain.unsqueeze(-1) * B if many else gain * B
    own = A_bar.unsqueeze(-1) if many else A_bar
    return gained.expand(torch.broadcast_shapes(gained.shape, own.shape))


def check_method(method: str, alpha: float | None) -> float | None:
    """The alpha of a rule of the gbt family, None for the others."""
    if method not in METHODS:
        raise InputError(f"method={method!r} is unknown; the methods are {', '.join(METHODS)}")
    if method != "gbt":
        if alpha is not None:
            raise InputError(f"alpha belongs to method 'gbt', not to {method!r}; leave it out")
        return _ALPHA.get(method)
    if not is_number(alpha) or not 0 <= alpha <= 1:
        raise InputError(f"method 'gbt' needs alpha between 0 (forward Euler) and 1 (backward Euler), got {alpha!r}")
    return float(alpha)


def _check(A: Tensor, B: Tensor, dt: Tensor | float, method: str, *, axes: int, check_dt: bool) -> Tensor:
    """dt as a tensor of A's real dtype, once everything fits. ``axes``: 1 for diagonal A, 2 for dense."""
    wanted = "A (..., n) and B (..., n) or (..., n, m)" if axes == 1 else "A (..., n, n) and B (..., n) or (..., n, m)"
    check_dtypes(A=A, B=B)
    inputs = B.ndim - (A.ndim - axes)
    square = A.ndim >= axes and (axes == 1 or A.shape[-1] == A.shape[-2]) and A.shape[-1] > 0
    if not square or inputs not in (1, 2) or B.shape[-inputs] != A.shape[-1]:
        raise InputError(
            f"expected {wanted} with as many leading axes each; got A {tuple(A.shape)} and B {tuple(B.shape)}"
        )
    real = real_dtype(A)
    if not isinstance(dt, Tensor):
        if not is_number(dt):
            raise InputError(f"dt must be a number or a tensor of the real dtype of A, {real}; got {dt!r}")
        dt = torch.tensor(float(dt), dtype=real, device=A.device)
    if dt.dtype != real:
        raise InputError(f"dt must have the real dtype of A, {real}, or be a Python number; got {dt.dtype}")
    try:
        torch.broadcast_shapes(A.shape[: A.ndim - axes], B.shape[: B.ndim - inputs], dt.shape)
    except RuntimeError:
        raise InputError(
            f"the leading axes of A {tuple(A.shape)}, B {tuple(B.shape)} and dt {tuple(dt.shape)} do not broadcast"
        ) from None
    if check_dt:
        bound = "positive" if method == "zoh" else "positive and finite"
        good = dt > 0 if method == "zoh" else (dt > 0) & dt.isfinite()
        if not bool(good.all()):
            wrong = dt.detach()[~good].flatten()[0].item()
            raise InputError(f"dt must be {bound} for method {method!r}, got {wrong}")
        for name, given in (("A", A), ("B", B)):
            if not bool(given.detach().isfinite().all()):
                raise InputError(f"{name} holds NaN or infinity")
    return dt


def is_number(x: object) -> TypeGuard[float]:
    """A real number of Python or NumPy; True and False are none."""
    return not isinstance(x, bool) and isinstance(x, (int, float, numbers.Real))


def check_dtypes(**tensors: Tensor) -> None:
    """One floating-point or complex dtype of at least 32 bits for all."""
    known = (torch.float32, torch.float64, torch.complex64, torch.complex128)
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            hint = "; coefficients that change with time are for TimeVaryingSystem" if callable(tensor) else ""
            raise InputError(f"{name} must be a tensor, got {type(tensor).__name__}{hint}")
        if tensor.dtype not in known:
            raise InputError(f"{name} must be float32, float64, complex64 or complex128, got {tensor.dtype}")
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        given = ", ".join(f"{name} {tensor.dtype}" for name, tensor in tensors.items())
        raise InputError(f"{', '.join(tensors)} must have one dtype; got {given}: convert them")
