"""The functions behind every exact discretisation: phi_1 of a number, and e^X with phi_1(X) B of a matrix."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeVar

import torch
from torch import Tensor

from statewise.systems.double_word import DoubleWord

_N_TERMS = 24  # at |z| < 1 the first term left out is below 1e-24, in the second derivative too
_RADIUS = 0.25  # the 1-norm to which a matrix is scaled; 16 terms of phi_1 then leave 1e-24
Matrix = TypeVar("Matrix", Tensor, DoubleWord)


def expm1(z: Tensor) -> Tensor:
    """e^z - 1 without cancellation, for real and complex z."""
    if not z.is_complex():
        return torch.expm1(z)
    x, y = z.real, z.imag
    decay, cos = torch.exp(x), torch.cos(y)
    # the second form is for e^z near 1; far from there its derivative would be a small difference, e^z
    real = torch.where(x < -0.5, decay * cos - 1, torch.expm1(x) * cos - 2 * torch.sin(y / 2) ** 2)
    return torch.complex(real, decay * torch.sin(y))


def phi_1(z: Tensor, low: Tensor | None = None) -> Tensor:
    """phi_1(z) = (e^z - 1)/z, with phi_1(0) = 1: the mean of e^(sz) over s in [0, 1].

    Real and complex; autograd gives every derivative, at 0 too (phi_1'(0) = 1/2, phi_1''(0) = 1/3). ``low`` is what
    the rounding of z lost, of which long phases need to know.
    """
    near, small, large = _near_and_far(z)
    return torch.where(near, _series(small, 1), _expm1_of_sum(large, low) / large)


def phi_2(z: Tensor, low: Tensor | None = None) -> Tensor:
    """phi_2(z) = (phi_1(z) - 1)/z, with phi_2(0) = 1/2; ``low`` as for :func:`phi_1`."""
    near, small, large = _near_and_far(z)
    return torch.where(near, _series(small, 2), (_expm1_of_sum(large, low) / large - 1) / large)


def _expm1_of_sum(high: Tensor, low: Tensor | None) -> Tensor:
    """e^(high + low) - 1, for a sum that cannot be formed."""
    return expm1(high) if low is None else expm1(high) * torch.exp(low) + expm1(low)


def exponential_and_integral(X: DoubleWord, B: Tensor) -> tuple[Tensor, Tensor]:
    """e^X and phi_1(X) B for square matrices X, by scaling and doubling; X is never inverted.

    Doubling is e^(2X) = (e^X)^2 and phi_1(2X) = (I + e^X) phi_1(X) / 2: sums of decaying numbers for a stable X,
    however stiff. In float64 the arithmetic is that of :class:`DoubleWord`, which is what stiff and far from
    normal matrices need; float32 comes in as float64. Gradients are those of the same algorithm in plain
    arithmetic, of any order.

    Shapes:  X: (..., n, n)   B: (..., n, m)   ->   (..., n, n), (..., n, m); leading axes broadcast
    Cost:    7 matrix products and one more for each doubling of the norm from 1/4 on, each three times when double
             words are used; the batch takes as many doublings as its largest member.
    Source:  Higham 2005, SIAM J. Matrix Anal. 26:1179 (scaling and squaring); Hochbruck & Ostermann 2010,
             Acta Numerica 19:209, sec. 2 (phi functions).
    """
    plain = None
    if torch.is_grad_enabled() and (X.high.requires_grad or B.requires_grad):
        plain = _scale_and_double(X.high, B)
    with torch.no_grad():
        exact = [z.rounded() for z in _scale_and_double(X, DoubleWord(B, torch.zeros_like(B)))]
    return tuple(exact) if plain is None else tuple(with_gradient_of(p, z) for p, z in zip(plain, exact))  # type: ignore[return-value]


def exponential_and_lines(X: DoubleWord, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """e^X, phi_1(X)^2 B and phi_2(X) B: what first-order hold needs. Numerics as :func:`exponential_and_integral`.

    All come from one exponential: phi_1 of [[X, B], [0, 0]] is [[phi_1(X), phi_2(X) B], [0, I]].

    Shapes:  X: (..., n, n)   B: (..., n, m)   ->   (..., n, n), (..., n, m), (..., n, m); equal leading axes
    """
    n, m = B.shape[-2:]
    # B comes in at the size of 1, so that it does not add to the number of doublings
    size = torch.exp2(torch.ceil(torch.log2(B.detach().abs().amax((-2, -1), keepdim=True).clamp(min=1e-300))))
    below = B.new_zeros(*B.shape[:-2], m, n + m)
    joint = DoubleWord(
        torch.cat([torch.cat([X.high, B / size], -1), below], -2),
        torch.cat([torch.cat([X.low, torch.zeros_like(B)], -1), below], -2),
    )
    identity = torch.eye(n + m, dtype=B.dtype, device=B.device).expand_as(joint.high)

    def lines(exponential: Matrix, integral: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        phi = integral[..., :n, :n]
        return exponential[..., :n, :n], phi @ exponential[..., :n, n:], integral[..., :n, n:]

    plain = None
    if torch.is_grad_enabled() and joint.high.requires_grad:
        plain = lines(*_scale_and_double(joint.high, identity))
    with torch.no_grad():
        words = _scale_and_double(joint, DoubleWord(identity, torch.zeros_like(identity)))
        exact = [z.rounded() for z in lines(*words)]
    A_bar, whole, direct = exact if plain is None else [with_gradient_of(p, z) for p, z in zip(plain, exact)]
    return A_bar, whole * size, direct * size


def with_gradient_of(plain: Tensor, exact: Tensor) -> Tensor:
    """The values of ``exact`` with the derivatives of ``plain``."""
    return plain + (exact - plain).detach()


def _near_and_far(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|z| < 1, and z with harmless numbers in place of those on the other side (``where`` alone lets NaN through)."""
    near = z.detach().abs() < 1
    return near, torch.where(near, z, torch.zeros_like(z)), torch.where(near, torch.ones_like(z), z)


def _series(z: Tensor, order: int) -> Tensor:
    """phi_order(z) = sum_j z^j / (j + order)!"""
    value = torch.zeros_like(z)
    for j in reversed(range(_N_TERMS)):
        value = value * z + 1 / math.factorial(j + order)
    return value


def _scale_and_double(X: Matrix, B: Matrix) -> tuple[Matrix, Matrix]:
    high = X.high if isinstance(X, DoubleWord) else X
    norm = high.detach().abs().sum(-2).amax(-1)
    # nan_to_num: a matrix that is not finite shall come out as NaN, not as a loop without end
    n_doublings = torch.nan_to_num(torch.ceil(torch.log2(norm / _RADIUS)), nan=0, posinf=0, neginf=0).clamp(min=0)
    X = _shrink(X, n_doublings)
    identity = torch.eye(high.shape[-1], dtype=high.dtype, device=high.device)
    phi = _phi_1_series(X, identity)
    E, F = _add(X @ phi, identity), phi @ B
    for j in range(int(n_doublings.max()) if n_doublings.numel() else 0):
        active = (j < n_doublings)[..., None, None]
        now = _keep(active, E)  # a matrix that is done must not overflow: where() would give NaN gradients
        E, F = _where(active, now @ now, E), _where(active, _scale(F + now @ F, Fraction(1, 2)), F)
    return E, F


def _phi_1_series(X: Matrix, identity: Tensor) -> Matrix:
    """sum_j X^j / (j + 1)! over j < 16, in blocks of four (Paterson & Stockmeyer 1973): six matrix products."""
    X2 = X @ X
    X3, X4 = X2 @ X, X2 @ X2
    total = None
    for block in (12, 8, 4, 0):
        c = [Fraction(1, math.factorial(block + i + 1)) for i in range(4)]
        terms = _add(_scale(X, c[1]) + _scale(X2, c[2]) + _scale(X3, c[3]), identity * float(c[0]))
        if float(c[0]) != c[0]:
            terms = _add(terms, identity * float(c[0] - Fraction(float(c[0]))))
        total = terms if total is None else total @ X4 + terms
    assert total is not None
    return total


def _shrink(X: Matrix, n_halvings: Tensor) -> Matrix:
    factor = torch.exp2(-n_halvings)[..., None, None]
    return DoubleWord(X.high * factor, X.low * factor) if isinstance(X, DoubleWord) else X * factor


def _scale(X: Matrix, factor: Fraction) -> Matrix:
    return X.scale(factor) if isinstance(X, DoubleWord) else X * float(factor)


def _add(X: Matrix, Y: Tensor) -> Matrix:
    return X + Y


def _keep(condition: Tensor, X: Matrix) -> Matrix:
    """X where the condition holds, else zero."""
    if isinstance(X, DoubleWord):
        return DoubleWord(X.high.masked_fill(~condition, 0), X.low.masked_fill(~condition, 0))
    return X.masked_fill(~condition, 0)


def _where(condition: Tensor, yes: Matrix, no: Matrix) -> Matrix:
    if isinstance(yes, DoubleWord) and isinstance(no, DoubleWord):
        return DoubleWord(torch.where(condition, yes.high, no.high), torch.where(condition, yes.low, no.low))
    return torch.where(condition, yes, no)
