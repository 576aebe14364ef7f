"""Steps as elements that can be joined in any grouping: what the parallel filter and every smoother are made of.

The element of steps i + 1 ... j says two things, given the observations y of these steps alone: what x_j is,
N(A x_i + b, U U^T), for any x_i; and what they tell about x_i, a likelihood proportional to
exp(-x^T Z Z^T x / 2 + eta^T x). Joining is associative. All covariances and all information are square roots.

Source: Särkkä & García-Fernández 2021, IEEE Trans. Automat. Contr. 66:299, lemmas 7 and 8; in square roots, Yaghoobi,
Corenflos, Hassan & Särkkä 2022, arXiv:2207.00426, sec. 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from statewise.estimation.factors import lower, solve, times
from statewise.estimation.gaussian import GaussianState
from statewise.estimation.steps import Steps, choose, masked


class Element(NamedTuple):
    """A, U, Z: (batch, length, n, n)   b, eta: (batch, length, n); A, U and Z may have a batch of 1."""

    A: Tensor
    b: Tensor
    U: Tensor
    eta: Tensor
    Z: Tensor


class Information(NamedTuple):
    """What later observations tell about a state: eta (..., n), Z (..., n, n) with Z Z^T the information matrix."""

    eta: Tensor
    Z: Tensor


def elements(steps: Steps, innovation: Tensor, before: Tensor, after: Tensor) -> Element:
    """The element of each step, for the deviations of x from what a filter found: z_t = x_t - after_t.

    Deviations are small where states are large, so that float32 is enough. A step of padding changes nothing. Where a
    packed document begins, A, eta and Z are zero: x there does not depend on the document before it.

    Shapes:  innovation: (batch, length, p); before and after: the filter's means, (batch, length, n), of x_{t-1}, x_t
    """
    p, (batch, length) = steps.p, steps.y.shape[:2]
    shared = covariance_elements(steps)
    e = solve(shared.S, innovation)
    A, offset = steps.G[..., p:, :], steps.offset[..., p:]
    b = times(A, before) - after + offset + times(shared.K, e)
    eta = times(shared.H.mT, e)
    b, eta = b.expand(batch, length, -1), eta.expand(batch, length, -1)
    masks = steps.masks
    if masks.starts is not None:
        b, eta = choose(~masks.starts, b, b.new_zeros(())), choose(~masks.starts, eta, b.new_zeros(()))
    if masks.valid is not None:
        b, eta = choose(masks.valid, b, b.new_zeros(())), choose(masks.valid, eta, b.new_zeros(()))
    return Element(shared.A, b, shared.U, eta, shared.Z)


class CovarianceElements(NamedTuple):
    """What does not depend on the data: A, U and Z of :class:`Element`; S, K and H, which b and eta are made with."""

    A: Tensor
    U: Tensor
    Z: Tensor
    S: Tensor
    K: Tensor
    H: Tensor


def covariance_elements(steps: Steps) -> CovarianceElements:
    """(batch, length, ...), with a batch of 1 where all rows have the same."""
    p, n, length = steps.p, steps.n, steps.y.shape[1]
    X = lower(masked(steps.N, steps.observed), p)
    observe = steps.G[..., :p, :]
    if steps.observed is not None:
        observe = observe.masked_fill(~steps.observed.unsqueeze(-1), 0)
    S, K, U = X[..., :p, :p], X[..., p:, :p], X[..., p:, p:]
    H = torch.linalg.solve_triangular(S, observe, upper=False)
    Z = torch.cat([H.mT, H.new_zeros(*H.shape[:-2], n, n - p)], -1) if p <= n else lower(H.mT)
    A = steps.G[..., p:, :] - K @ H
    lead = torch.broadcast_shapes(A.shape[:2], U.shape[:2])[0], length
    A, U, Z = (m.expand(*lead, n, n) for m in (A, U, Z))
    zero, masks = U.new_zeros(()), steps.masks
    if masks.starts is not None:
        A, Z = choose(~masks.starts, A, zero), choose(~masks.starts, Z, zero)
    if masks.valid is not None:
        identity = torch.eye(n, dtype=U.dtype, device=U.device)
        A, U, Z = choose(masks.valid, A, identity), choose(masks.valid, U, zero), choose(masks.valid, Z, zero)
    lead = torch.broadcast_shapes(A.shape[:2], U.shape[:2])
    A, U, Z = (m.expand(*lead, n, n) for m in (A, U, Z))
    return CovarianceElements(A, U, Z, S, K, H)


def join(i: Element, j: Element) -> Element:
    """The element of i's steps and then j's; leading axes broadcast.

    Cost:    O(n^3): QR decompositions of (2 n) x (2 n), and two of (2 n) x n.
    Source:  Särkkä & García-Fernández 2021, lemma 8; Yaghoobi et al. 2022, sec. 3.
    """
    known = _Known(i.U, j.Z)
    AV = j.A @ known.V
    part = i.b + times(i.U, times(i.U.mT, j.eta))  # (I + U U^T Z Z^T)^-1 of it is x between them
    b = times(j.A, part) - times(AV, times(known.Y.mT, part)) + j.b
    A = j.A @ i.A - AV @ (known.Y.mT @ i.A)
    U = _beside(AV, j.U)
    back = pull_back(i, Information(j.eta, j.Z), known)
    return Element(A, b, U, back.eta, back.Z)


def pull_back(i: Element, later: Information, known: _Known | None = None) -> Information:
    """What the steps of i and later observations together tell about the state before i."""
    known = _Known(i.U, later.Z) if known is None else known
    rest = later.eta - times(later.Z, times(later.Z.mT, i.b))
    rest = rest - times(known.Y, times(known.V.mT, rest))
    return Information(times(i.A.mT, rest) + i.eta, _beside(i.A.mT @ known.W, i.Z))


def given(factor: Tensor, later: Information) -> GaussianState:
    """N(0, factor factor^T) given what later observations tell about it: smoothing, without its inverse."""
    V = _Known(factor, later.Z).V
    return GaussianState(times(V, times(V.mT, later.eta)), lower(V))


def onward(i: Element, later: Information) -> tuple[Tensor, Tensor, Tensor]:
    """Given all observations, x_j = F x_i + g + V z with z of variance 1: F, g and V, for sampling and covariances."""
    V = _Known(i.U, later.Z).V
    pull = V @ (V.mT @ later.Z)
    g = i.b + times(V, times(V.mT, later.eta)) - times(pull, times(later.Z.mT, i.b))
    return i.A - pull @ (later.Z.mT @ i.A), g, V


class _Known:
    """The triangular form of [[U^T Z, I], [Z, 0]], X = [[X11, 0], [Y, W]].

    X11 X11^T = I + U^T Z Z^T U, which is never singular.

    V = U X11^-T: V V^T = (I + U U^T Z Z^T)^-1 U U^T   Y: (I + U U^T Z Z^T)^-1 = I - V Y^T
    W: W W^T = (I + Z Z^T U U^T)^-1 Z Z^T
    """

    def __init__(self, U: Tensor, Z: Tensor) -> None:
        n = U.shape[-1]
        UZ = U.mT @ Z
        lead = UZ.shape[:-2]
        identity = torch.eye(n, dtype=U.dtype, device=U.device).expand(*lead, n, n)
        top = torch.cat([UZ, identity], -1)
        below = torch.cat([Z.expand(*lead, n, n), torch.zeros_like(identity)], -1)
        X = lower(torch.cat([top, below], -2), n)
        self.V = torch.linalg.solve_triangular(X[..., :n, :n].mT, U, upper=True, left=False)
        self.Y, self.W = X[..., n:, :n], X[..., n:, n:]


def _beside(left: Tensor, right: Tensor) -> Tensor:
    lead = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return lower(torch.cat([left.expand(*lead, *left.shape[-2:]), right.expand(*lead, *right.shape[-2:])], -1))


class Affine(NamedTuple):
    """x -> A x + b: A (batch or 1, length, n, n), b (batch, length, n)."""

    A: Tensor
    b: Tensor


def follow(i: Affine, j: Affine) -> Affine:
    """i and then j."""
    return Affine(j.A @ i.A, times(j.A, i.b) + j.b)


Joined = TypeVar("Joined", Element, Affine)


def scan(element: Joined, combine: Callable[[Joined, Joined], Joined]) -> Joined:
    """The element of steps 1 ... t, for every t: O(length) joinings, in 2 log2(length) batches of them.

    Source:  Blelloch 1990, Prefix sums and their applications (pairs first, then between them).
    """
    length = element[0].shape[1]
    if length < 2:
        return element
    pairs = combine(_every(element, 0, length - 1), _every(element, 1, length))
    odd = scan(pairs, combine)  # 1 ... 2, 1 ... 4, and so on
    n_even = (length - 1) // 2
    if not n_even:
        return _weave(element, odd, odd, 0)
    even = combine(_as(element, [m[:, :n_even] for m in odd]), _every(element, 2, length))  # 1 ... 3, 1 ... 5
    return _weave(element, odd, even, n_even)


def scan_back(element: Element) -> Element:
    """The element of steps t ... length, for every t."""
    flipped = Element(*[m.flip(1) for m in element])
    return Element(*[m.flip(1) for m in scan(flipped, lambda later, earlier: join(earlier, later))])


def _as(element: Joined, tensors: list[Tensor]) -> Joined:
    return type(element)(*tensors)


def _every(element: Joined, begin: int, end: int) -> Joined:
    return _as(element, [m[:, begin:end:2] for m in element])


def _weave(element: Joined, odd: Joined, even: Joined, n_even: int) -> Joined:
    """First the first element, then odd and even in turn."""
    woven = []
    for first, o, e in zip(element, odd, even):
        turns = torch.stack([o[:, :n_even], e[:, :n_even]], 2).flatten(1, 2)
        head = first[:, :1].expand(o.shape[0], *first[:, :1].shape[1:])
        woven.append(torch.cat([head, turns, o[:, n_even:]], 1))
    return _as(element, woven)
