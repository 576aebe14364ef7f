"""Reconstruction: what the signal was, from the coefficients alone."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.hippo.bases import fourier, laguerre_functions, normalised_legendre
from statewise.hippo.measures import check, laguerre_lengths, tilt, window


def basis(
    measure: str,
    n: int,
    ages: Tensor,
    *,
    elapsed: float | Tensor = 1.0,
    theta: float | None = None,
    alpha: float = 0.0,
    beta: float = 1.0,
    halved: bool = False,
) -> Tensor:
    """The functions g_i with u(t - age) = sum_i c_i g_i(age), for the coefficients c of a measure.

    ==============  =====================================================================
    legs            sqrt(2i+1) P_i(1 - 2 age/elapsed), Legendre on all of the past
    legt, lmu       sqrt(2i+1) P_i(1 - 2 age/theta);  P_i(2 age/theta - 1)
    lagt            e^(-s/2) L_i(s) / beta at s = age/theta
    tlagt           e^(-(1-beta)s/2) L_i(s); at beta = 1 polynomials, which grow where no measure holds them
    glagt           g s^alpha e^(-(1-beta)s/2) L_i^(alpha)(s), g such that they are orthonormal under
                    s^-alpha e^(-beta s), scaled to mass 1
    fourier         1, 0, sqrt(2) cos and sin of 2 pi k age/theta
    fourier_diag    the functions dual to e^(-s/2) times those, s = age/theta: the smallest past (in the mean square)
                    that leaves these coefficients. They repeat, damped, with period theta, so a past that does not
                    repeat is folded onto one period.
    ==============  =====================================================================

    Options as :func:`statewise.hippo.transition`.

    Shapes:  ages: (..., points), in the unit of theta or ``elapsed``   elapsed: a number, or a tensor that broadcasts
             against the leading axes of ages   ->   (..., points, n), float64
    Errors:  InputError for an age below zero or beyond the window, an age of zero with an alpha below it (the functions
             of glagt are infinite there), and as :func:`statewise.hippo.transition`.
    Source:  Gu et al. 2020 (HiPPO), arXiv:2008.07669, appendices C and D; Voelker et al. 2019, eq. 3 (lmu).
    """
    check(measure, n, alpha=alpha, beta=beta)
    length = torch.as_tensor(window(measure, theta=theta, halved=halved), dtype=torch.float64, device=ages.device)
    if measure == "legs":
        if theta is not None:
            raise InputError(f"legs remembers all of the past: give elapsed, the time since its start, not {theta=}")
        length = torch.as_tensor(elapsed, dtype=torch.float64, device=ages.device)[..., None]
        if not bool((length > 0).all()):
            raise InputError("elapsed is the time since the start, above zero: before the first step there is no past")
    elif not isinstance(elapsed, float) or elapsed != 1.0:
        raise InputError(f"elapsed is for legs; the window of {measure} is theta: leave it out")
    x = ages.double() / length
    endless = measure in ("lagt", "tlagt", "glagt", "fourier_diag")
    outside = ~((x >= 0) & (endless | (x <= 1 + 1e-9)))  # also where it is not a number
    if bool(outside.any()):
        age = float(ages.expand_as(x)[outside][0])
        limit = "" if endless else f" and at most {float(length.max()):g}, as far as {measure} remembers"
        raise InputError(f"an age is a time before the present, 0 or more{limit}; got {age:g}")
    if alpha < 0 and bool((x == 0).any()):
        raise InputError(f"the functions of glagt with alpha={alpha} are infinite at age 0; give ages above zero")
    x = x if endless else x.clamp(max=1)
    if measure in ("legs", "legt"):
        values = normalised_legendre(n, 1 - x)
    elif measure == "lmu":
        values = normalised_legendre(n, x)
        values /= (2 * torch.arange(n, dtype=x.dtype, device=x.device) + 1).sqrt().reshape(-1, *[1] * x.ndim)
    elif measure == "lagt":
        values = laguerre_functions(n, x) / beta
    elif measure in ("tlagt", "glagt"):
        values = laguerre_functions(n, x, alpha=alpha, decay=0.5 * (1 - beta))
        if measure == "glagt":
            length = laguerre_lengths(n, alpha).to(x.device).reshape(-1, *[1] * x.ndim)
            values = values / length * x**alpha * tilt(alpha, beta)
    elif measure == "fourier":
        values = fourier(n, x)
    else:
        damped = fourier(n, x) * torch.exp(-x / 2)
        values = torch.tensordot(_dual(n).to(x.device), damped, dims=1)
    return values.movedim(0, -1)


def reconstruct(
    coefficients: Tensor,
    measure: str,
    ages: Tensor,
    *,
    elapsed: float | Tensor = 1.0,
    theta: float | None = None,
    alpha: float = 0.0,
    beta: float = 1.0,
    halved: bool = False,
) -> Tensor:
    """The past that the coefficients stand for: u(t - age).

    With ``elapsed`` left at 1, the ages of ``legs`` are fractions of all of the past. Options as :func:`basis` and
    :func:`statewise.hippo.transition`; they must be those that the coefficients were made with.

    Shapes:  coefficients: (..., n)   ages: (points,), or with leading axes that broadcast against those of the
             coefficients, as do those of elapsed   ->   (..., points), in the dtype of the coefficients
    Cost:    O(points n) for the basis and for each set of coefficients
    Errors:  InputError for an age below zero or beyond the window, and as :func:`statewise.hippo.transition`.
    Source:  Gu et al. 2020 (HiPPO), arXiv:2008.07669, sec. 2.2 and appendix C.

    >>> reconstruct(torch.tensor([1.0, 0.5]), "legt", torch.tensor([0.0, 0.5, 1.0]))
    tensor([1.8660, 1.0000, 0.1340])
    """
    if coefficients.ndim == 0 or not coefficients.is_floating_point():
        raise InputError(f"coefficients are real and (..., n); got {coefficients.dtype} {tuple(coefficients.shape)}")
    if ages.ndim == 0:
        raise InputError("ages are (..., points); got a single number: wrap it as a tensor of one point")
    n = coefficients.shape[-1]
    values = basis(measure, n, ages, elapsed=elapsed, theta=theta, alpha=alpha, beta=beta, halved=halved).to(
        coefficients
    )
    return torch.einsum("...pn,...n->...p", values, coefficients)


@lru_cache(maxsize=4)
def _dual(n: int) -> Tensor:
    """The inverse of the inner products on [0, infinity) of the damped Fourier functions, (n, n).

    Their condition number is at most e, whatever n. The sine of frequency zero is zero, and so is its row.
    """
    omega = 2 * math.pi * torch.arange(n // 2, dtype=torch.float64)
    plus, minus = omega[:, None] + omega, omega[:, None] - omega
    even, odd = 1 / (1 + plus**2), 1 / (1 + minus**2)
    products = torch.zeros(n, n, dtype=torch.float64)
    products[0::2, 0::2], products[1::2, 1::2] = odd + even, odd - even
    products[1::2, 0::2] = plus * even + minus * odd  # sine of the row, cosine of the column
    products[0::2, 1::2] = products[1::2, 0::2].T
    scale = torch.ones(n, dtype=torch.float64)
    scale[0] = math.sqrt(0.5)
    products = products * torch.outer(scale, scale)
    products[1, 1] = 1
    dual = torch.linalg.inv(products)
    dual[1, 1] = 0
    return dual
