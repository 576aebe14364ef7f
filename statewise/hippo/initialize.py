"""The initial values of S4, S4D and dense systems: Lambda, P and B by name."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.hippo.diagonalize import LEAST_RANK, nplr
from statewise.hippo.measures import check_order

DIAGONAL = ("legs", "legt", "fourier", "lin", "inv", "inv2", "quad", "real", "random")
DPLR = (*LEAST_RANK, "random")


def diagonal(name: str, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Lambda and B of S4D's initialisations. The real part is -1/2, except for ``real``; B is always 1.

    With k = 0 ... n/2 - 1 for one of each conjugate pair, the imaginary parts are: ``legs``, ``legt``, ``fourier``
    those of the normal part of that measure (S4D-LegS; LegT and FouT with S4's window of 2, so that ``fourier`` is
    ``lin``); ``lin`` pi k; ``inv`` n/pi (n/(2k+1) - 1); ``inv2`` n/pi (n/(k+1) - 1); ``quad`` (2k+1)^2/pi; ``random``
    e^g, g drawn from the normal distribution by ``generator``. ``real`` is -1, -2, ..., -n, the eigenvalues of LegS.

    Shapes:  -> Lambda and B (n/2,) complex128; for ``real`` both (n,) float64
    Errors:  InputError for an unknown name, n < 1, or odd n where conjugate pairs are kept.
    Source:  Gu et al. 2022 (S4D), arXiv:2206.11893, sec. 4; ``random`` as in the code of that paper.

    >>> diagonal("lin", 4)[0]
    tensor([-0.5000+0.0000j, -0.5000+3.1416j], dtype=torch.complex128)
    """
    _known(name, DIAGONAL, "S4D")
    check_order(f"the initialisation {name}", n, pairs=name != "real")
    if name == "real":
        return -torch.arange(1, n + 1, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    k = torch.arange(n // 2, dtype=torch.float64)
    if name in ("legs", "legt", "fourier"):
        omega = nplr(name, n, halved=name == "legt").Lambda.imag
    elif name == "lin":
        omega = math.pi * k
    elif name == "inv":
        omega = n / math.pi * (n / (2 * k + 1) - 1)
    elif name == "inv2":
        omega = n / math.pi * (n / (k + 1) - 1)
    elif name == "quad":
        omega = (2 * k + 1) ** 2 / math.pi
    else:
        omega = torch.randn(n // 2, dtype=torch.float64, generator=generator).exp()
    Lambda = torch.complex(torch.full_like(omega, -0.5), omega)
    return Lambda, torch.ones_like(Lambda)


def dplr(
    name: str,
    n: int,
    rank: int | None = None,
    *,
    halved: bool = True,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Lambda, P and B of S4's initialisations, one of each conjugate pair: x' = (Lambda - P P*) x + B u.

    For a measure they are those of :func:`statewise.hippo.nplr` with the published time scale; LegT is S4's, halved,
    unless ``halved=False``. ``random`` has Lambda = -1/2 + i e^g with g from the normal distribution, and P and B from
    the complex normal distribution of variance 1: stable, as -P P* only takes energy away. LegT, LagT and FouT have
    Lambda on the imaginary axis, so that P does all the damping.

    Shapes:  -> Lambda, B (n/2,), P (rank, n/2), complex128. ``rank=None`` is the least rank, 1 for ``random``.
    Errors:  InputError for an unknown name, n < 1, odd n, or a rank below the least one.
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, sec. 3.4 and appendix C; ``random`` as in its code.
    """
    _known(name, DPLR, "S4")
    if name != "random":
        form = nplr(name, n, rank, halved=halved and name == "legt")
        return form.Lambda, form.P, form.B
    check_order("the random initialisation", n, pairs=True)
    rank = 1 if rank is None else rank
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise InputError(f"the random initialisation needs a rank of 0 or more, got {rank!r}")
    Lambda, _ = diagonal("random", n, generator=generator)
    P = torch.randn(rank, n // 2, dtype=torch.complex128, generator=generator)
    return Lambda, P, torch.randn(n // 2, dtype=torch.complex128, generator=generator)


def random_transition(
    n: int, generator: torch.Generator | None = None, *, abscissa: float = -1.0, radius: float = 1.0
) -> tuple[Tensor, Tensor]:
    """A dense random stable system, to compare with HiPPO: the same slowest decay, and no structure.

    A = radius G / sqrt(n) + s I with G from the normal distribution, so that the eigenvalues fill a disc of that
    radius, and s such that the largest real part is ``abscissa``: -1 as LegS has it. B is from the normal distribution.

    Shapes:  -> A (n, n), B (n,), float64
    Errors:  InputError for n < 1, abscissa >= 0 or radius <= 0.
    """
    check_order("a random transition", n, pairs=False)
    if not (abscissa < 0 < radius and math.isfinite(abscissa) and math.isfinite(radius)):
        raise InputError(f"a stable system has abscissa < 0 and radius > 0; got abscissa={abscissa}, radius={radius}")
    A = torch.randn(n, n, dtype=torch.float64, generator=generator) * (radius / math.sqrt(n))
    shift = abscissa - torch.linalg.eigvals(A).real.max()
    return A + shift * torch.eye(n, dtype=torch.float64), torch.randn(n, dtype=torch.float64, generator=generator)


def _known(name: str, names: tuple[str, ...], model: str) -> None:
    if name not in names:
        raise InputError(f"{model} has no initialisation {name!r}; use one of {', '.join(names)}")
