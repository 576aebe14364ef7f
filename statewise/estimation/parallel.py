"""The filter as an associative scan: all steps at once, in batched operations whose number is O(log length)."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.estimation.elements import Element, elements, scan
from statewise.estimation.gaussian import GaussianState
from statewise.estimation.steps import Filtered, Steps, advance, choose


def parallel(steps: Steps, begin: GaussianState) -> Filtered:
    """Means, covariances and the likelihood by :func:`~statewise.estimation.elements.scan`.

    The scan gives x_{t-1} for every t; one more exact step from there, for all t at once, gives x_t with the innovation
    and its covariance, which the likelihood is made of.

    Cost:    about ten times the work of ``square_root``, O(length n^3), without a loop over steps.
    Numerics: square roots throughout, and no inverse but of I + (what is positive): it needs no more of the model than
             ``square_root`` does. Rounding grows with log(length).
    Source:  Särkkä & García-Fernández 2021, IEEE Trans. Automat. Contr. 66:299, sec. III; Yaghoobi et al. 2022,
             arXiv:2207.00426.
    """
    batch, length = steps.y.shape[:2]
    masks, prior = steps.masks, steps.prior
    mean, factor = begin.mean.expand(batch, -1).unsqueeze(1), begin.factor.unsqueeze(1)
    if length > 1:
        prefix = scan(_from_known_states(steps, elements(steps), mean, factor))
        mean = torch.cat([mean, prefix.b[:, :-1]], 1)
        factor = torch.cat([_rows(factor, len(prefix.U)), prefix.U[:, :-1]], 1)
    mean, factor = mean[:, :length], factor[:, :length]  # before each step
    if masks.starts is not None:
        mean = choose(masks.starts, prior.mean.unsqueeze(1), mean)
        factor = choose(masks.starts, prior.factor.unsqueeze(1), factor)
    now = advance(mean, factor, steps.G, steps.N, steps.offset, steps.y, steps.observed)
    now = now._replace(mean=now.mean.expand(batch, length, -1), factor=now.factor.expand(-1, length, -1, -1))
    if masks.valid is not None:
        now = now._replace(mean=choose(masks.valid, now.mean, mean), factor=choose(masks.valid, now.factor, factor))
    final = GaussianState(now.mean[:, -1], now.factor[:, -1]) if length else begin._replace(mean=mean[:, 0])
    return Filtered(*now, final)


def _from_known_states(steps: Steps, element: Element, mean: Tensor, factor: Tensor) -> Element:
    """The elements whose first one, and that of each document, begins from a distribution and not from any x."""
    masks, prior = steps.masks, steps.prior
    first = advance(mean, factor, *_first(steps))
    b, U = first.mean, first.factor
    if masks.valid is not None:
        b, U = choose(masks.valid[:, :1], b, mean), choose(masks.valid[:, :1], U, factor)
    rest_b, rest_U = element.b[:, 1:], element.U[:, 1:]
    if masks.starts is not None:
        known = advance(
            prior.mean.unsqueeze(1), prior.factor.unsqueeze(1), steps.G, steps.N, steps.offset, steps.y, steps.observed
        )
        rest_b = choose(masks.starts[:, 1:], known.mean[:, 1:], rest_b)
        rest_U = choose(masks.starts[:, 1:], known.factor.expand(-1, steps.y.shape[1], -1, -1)[:, 1:], rest_U)
    shared = torch.broadcast_shapes(U.shape[:1], rest_U.shape[:1], element.A.shape[:1])[0]
    U = torch.cat([_rows(U, shared), _rows(rest_U, shared)], 1)
    A, eta, Z = (torch.cat([torch.zeros_like(m[:, :1]), m[:, 1:]], 1) for m in (element.A, element.eta, element.Z))
    return Element(_rows(A, shared), torch.cat([b, rest_b], 1), U, eta, _rows(Z, shared))


def _first(steps: Steps) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """What the first step needs."""
    observed = None if steps.observed is None else steps.observed[:, :1]
    return steps.G[:, :1], steps.N[:, :1], steps.offset[:, :1], steps.y[:, :1], observed


def _rows(value: Tensor, batch: int) -> Tensor:
    return value.expand(batch, *value.shape[1:])
