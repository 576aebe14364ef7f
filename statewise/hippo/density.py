"""The measures themselves: how much an error counts, by its age."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.hippo.measures import check, tilt, window


def density(
    measure: str,
    ages: Tensor,
    *,
    elapsed: float = 1.0,
    theta: float | None = None,
    alpha: float = 0.0,
    beta: float = 1.0,
    halved: bool = False,
) -> Tensor:
    """How much of a measure is at each age: the weight under which the functions of :func:`basis` are orthonormal.

    The state is the projection of the past that makes the square of the error, under this weight, least. ``legs``
    weighs all of the past alike, ``legt``, ``lmu`` and ``fourier`` the last theta; ``tlagt`` and ``glagt`` fade;
    ``lagt`` has no end and no finite mass. Under it the functions of ``lmu`` have squares of 1/(2i + 1).

    Options as :func:`basis`.

    Shapes:  ages: (...), in the unit of theta or ``elapsed``   ->   the same, float64, in 1 over that unit
    Errors:  InputError for ``fourier_diag``, whose functions are orthogonal under no weight, and as
             :func:`statewise.hippo.transition`.
    Source:  Gu et al. 2020 (HiPPO), arXiv:2008.07669, sec. 2.2 and appendix D.

    >>> density("legt", torch.tensor([0.0, 1.0, 3.0]), theta=2.0)
    tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    check(measure, 2, alpha=alpha, beta=beta)
    length = elapsed if measure == "legs" else window(measure, theta=theta, halved=halved)
    if measure == "fourier_diag":
        raise InputError("the functions of fourier_diag are orthogonal under no weight; draw the functions themselves")
    s = ages.double() / length
    inside = s >= 0
    if measure in ("legs", "legt", "lmu", "fourier"):
        weight = ((s <= 1) & inside).double()
    elif measure == "lagt":
        weight = beta**2 * inside.double()
    else:
        weight = torch.where(inside, s.clamp(min=0) ** -alpha * torch.exp(-beta * s), 0.0)
        weight = weight if measure == "tlagt" else weight / tilt(alpha, beta) ** 2
    return weight / length if math.isfinite(length) else weight
