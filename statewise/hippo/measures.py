"""The matrices of HiPPO: for each measure the system x' = A x + B u whose state projects the past of u on a basis.

``legs`` is the one measure whose window grows: online it is x' = (A x + B u) / t, and this module gives its A and B
without the 1/t. S4 uses the same A and B as a time-invariant system.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.rules import is_number

MEASURES = ("legs", "legt", "lagt", "tlagt", "glagt", "fourier", "fourier_diag", "lmu")
# The length of the window, or the unit of time, of the matrices as they are published.
_PUBLISHED_THETA = {measure: 2.0 if measure == "fourier" else 1.0 for measure in MEASURES}


def transition(
    measure: str,
    n: int,
    *,
    theta: float | None = None,
    alpha: float = 0.0,
    beta: float = 1.0,
    halved: bool = False,
) -> tuple[Tensor, Tensor]:
    """A and B of a measure, as the system x' = A x + B u (A carries its minus sign).

    ==============  ====================================================  ==========================================
    measure         what the state projects on                            theta
    ==============  ====================================================  ==========================================
    legs            Legendre on [0, t], all of the past alike             unit of time (has no effect on the 1/t form)
    legt            Legendre on the last theta                            the window, 1 as published
    lagt            Laguerre functions e^(-s/2) L_n(s), fading            unit of time, 1 as published
    tlagt           Laguerre polynomials under the weight e^(-beta s)     unit of time, 1 as published
    glagt           generalised Laguerre, s^-alpha e^(-beta s)            unit of time, 1 as published
    fourier         Fourier on the last theta (FouT)                      the window, 2 as published in code
    fourier_diag    decaying Fourier e^(-s/2) cos, sin 2 pi k s (FouD)    period and unit of time, 1 as published
    lmu             shifted Legendre on the last theta, newest at 0       the window, 1 as published
    ==============  ====================================================  ==========================================

    ``theta=None`` gives the published matrices; another theta slows them down or speeds them up. ``halved``
    is S4's variant of LegT, both matrices times 1/2, which is a window of 2. ``beta`` scales the B of LagT.

    ``tlagt`` and ``glagt`` are HiPPO's translated and generalised Laguerre measures: an error at the age s theta counts
    s^-alpha e^(-beta s), and the functions are those of :func:`statewise.hippo.basis`. ``tlagt`` at beta = 0 is
    ``lagt``; its beta may be any number above -1. ``glagt`` takes beta above 0 and alpha between -1 and 1; its
    functions have length 1 in the measure, so at alpha = 0 it is ``tlagt`` with B times sqrt(beta). The defaults,
    alpha = 0 and beta = 1, are those of the published theorem.

    Shapes:  -> A (n, n), B (n,), float64
    Errors:  InputError for an unknown measure, n < 1, odd n with a Fourier measure, theta <= 0, or an option that
             the measure does not have.
    Source:  Gu et al. 2020 (HiPPO), arXiv:2008.07669, its theorems on LegT, LagT and LegS, and appendix D (D.2 for
             alpha and beta); Gu et al. 2022, arXiv:2206.12037, sec. 4 (FouT, FouD); Voelker et al. 2019 (LMU), eq. 2.

    >>> A, B = transition("legs", 3)
    >>> A
    tensor([[-1.0000,  0.0000,  0.0000],
            [-1.7321, -2.0000,  0.0000],
            [-2.2361, -3.8730, -3.0000]], dtype=torch.float64)
    >>> B
    tensor([1.0000, 1.7321, 2.2361], dtype=torch.float64)
    """
    check(measure, n, alpha=alpha, beta=beta)
    index = torch.arange(n, dtype=torch.float64)
    root = (2 * index + 1).sqrt()
    sign = 1 - 2 * (index % 2)  # (-1)^i
    below = torch.ones(n, n, dtype=torch.float64).tril(-1)
    if measure == "legs":
        A, B = -(torch.outer(root, root) * below + torch.diag(index + 1)), root
    elif measure == "legt":
        above = torch.outer(sign, sign).triu(1)
        A, B = -torch.outer(root, root) * (below + torch.eye(n, dtype=torch.float64) + above), root
    elif measure == "lagt":
        A, B = -below - 0.5 * torch.eye(n, dtype=torch.float64), beta * torch.ones(n, dtype=torch.float64)
    elif measure in ("tlagt", "glagt"):
        A = -below - 0.5 * (1 + beta) * torch.eye(n, dtype=torch.float64)
        B = torch.ones(n, dtype=torch.float64)
        if measure == "glagt":
            length = laguerre_lengths(n, alpha)
            A = A * length / length[:, None]
            # L_i(0) / length_i, where L_i(0) is the binomial coefficient of i + alpha over i.
            B = torch.cumprod(torch.cat([B[:1], 1 + alpha / index[1:]]), 0) / length / tilt(alpha, beta)
    elif measure == "lmu":
        within = -torch.outer(sign, sign).tril() - below.T  # (-1)^(i-j+1) on and below the diagonal, -1 above it
        A, B = (2 * index + 1)[:, None] * within, (2 * index + 1) * sign
    else:
        omega = 2 * math.pi * torch.arange(n // 2, dtype=torch.float64) / _PUBLISHED_THETA[measure]
        B = torch.zeros(n, dtype=torch.float64)
        B[0::2] = math.sqrt(2)
        B[0] = 1
        A = torch.zeros(n, n, dtype=torch.float64)
        A[1::2, 0::2], A[0::2, 1::2] = torch.diag(omega), torch.diag(-omega)
        A = A - torch.outer(B, B) if measure == "fourier" else A - 0.5 * torch.eye(n, dtype=torch.float64)
    speed = _PUBLISHED_THETA[measure] / window(measure, theta=theta, halved=halved)
    return A * speed + 0.0, B * speed  # no negative zeros


def lmu(n: int, theta: float) -> tuple[Tensor, Tensor]:
    """A and B of the Legendre Memory Unit: ``transition("lmu", n, theta=theta)``.

    A_ij = (2i+1)/theta times -1 above the diagonal and (-1)^(i-j+1) on and below it, B_i = (2i+1)(-1)^i/theta. With
    S = diag((-1)^i / sqrt(2i+1)), S A S^-1 and S B are the A and B of LegT: the same memory in another basis.

    Shapes:  -> A (n, n), B (n,), float64
    Errors:  InputError for n < 1 or theta <= 0.
    Source:  Voelker, Kajic & Eliasmith 2019, eq. 2.
    """
    return transition("lmu", n, theta=theta)


def laguerre_lengths(n: int, alpha: float) -> Tensor:
    """sqrt(Gamma(i + alpha + 1) / i!), the norms of the generalised Laguerre polynomials under s^alpha e^-s: (n,)."""
    index = torch.arange(n, dtype=torch.float64)
    return (0.5 * (torch.lgamma(index + alpha + 1) - torch.lgamma(index + 1))).exp()


def tilt(alpha: float, beta: float) -> float:
    """The square root of the mass of the tilted measure s^-alpha e^(-beta s), Gamma(1 - alpha) beta^(alpha - 1)."""
    return math.sqrt(math.gamma(1 - alpha) * beta ** (alpha - 1))


def window(measure: str, *, theta: float | None = None, halved: bool = False) -> float:
    """The window, or unit of time, that ``theta`` and ``halved`` stand for; see :func:`transition`."""
    if measure not in MEASURES:
        raise InputError(f"there is no measure {measure!r}; use one of {', '.join(MEASURES)}")
    if halved:
        if measure != "legt":
            raise InputError(f"halved is S4's variant of legt; {measure} has none: leave it out")
        if theta is not None:
            raise InputError(f"halved is legt with a window of 2; got theta={theta} as well: give only one")
        return 2.0
    if theta is None:
        return _PUBLISHED_THETA[measure]
    if not (is_number(theta) and theta > 0 and math.isfinite(theta)):
        raise InputError(f"theta is a length of time, above zero; got {theta!r}")
    return float(theta)


def check(measure: str, n: int, *, alpha: float = 0.0, beta: float = 1.0, pairs: bool = False) -> None:
    """InputError for a measure, an order or numbers that cannot be; ``pairs`` where conjugate pairs are formed."""
    window(measure)
    check_order(measure, n, pairs=pairs or measure in ("fourier", "fourier_diag"))
    if measure not in ("lagt", "tlagt", "glagt") and beta != 1.0:
        raise InputError(f"beta is of lagt, tlagt and glagt; {measure} has none: leave it out")
    if not (is_number(beta) and math.isfinite(beta)) or (measure == "lagt" and beta == 0):
        raise InputError(f"beta must be a finite number other than zero, got {beta!r}")
    least = {"tlagt": -1.0, "glagt": 0.0}.get(measure)
    if least is not None and beta <= least:
        raise InputError(f"beta of {measure}, how fast its weight fades, must be above {least:g}; got {beta!r}")
    if measure != "glagt" and alpha != 0.0:
        raise InputError(f"alpha is of glagt; {measure} has none: leave it out")
    if not (is_number(alpha) and -1 < alpha < 1):
        raise InputError(f"alpha of glagt must be between -1 and 1, where its integrals exist; got {alpha!r}")


def check_order(what: str, n: int, *, pairs: bool) -> None:
    """InputError for a number of states that cannot be; ``pairs`` where one of each conjugate pair is kept."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"{what} needs a whole number n >= 1 of states, got {n!r}")
    if pairs and n % 2:
        raise InputError(f"{what} with n={n} leaves one state without its conjugate; use an even n")
