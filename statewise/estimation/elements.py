"""Steps as elements that can be joined in any grouping: what the parallel filter and every smoother are made of.

The element of steps i + 1 ... j says two things, given the observations y of these steps alone: what x_j is,
N(A x_i + b, U U^T), for any x_i; and what they tell about x_i, a likelihood proportional to
exp(-x^T Z Z^T x / 2 + eta^T x). Joining is associative. All covariances and all information are square roots.

Source: Särkkä & García-Fernández 2021, IEEE Trans. Automat. Contr. 66:299, lemmas 7 and 8; in square roots, Yaghoobi,
Corenflos, Hassan & Särkkä 2022, arXiv:2207.00426, sec. 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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


def elements(steps: Steps) -> Element:
    """The element of each step, whatever came before it; a step of padding changes nothing.

    Where a packed document begins, A, eta and Z are zero: x there does not depend on the document before. Its b and
    U are the caller's, as they depend on the prior.
    """
    p, n = steps.p, steps.n
    batch, length = steps.y.shape[:2]
    G, N = steps.G, steps.N
    X = lower(masked(N, steps.observed), p)
    residual = steps.y - steps.offset[..., :p]
    observe = G[..., :p, :]
    if steps.observed is not None:
        residual = residual.masked_fill(~steps.observed, 0)
        observe = observe.masked_fill(~steps.observed.unsqueeze(-1), 0)
    S, K, U = X[..., :p, :p], X[..., p:, :p], X[..., p:, p:]
    H = torch.linalg.solve_triangular(S, observe, upper=False)
    e = solve(S, residual)
    Z = H.mT
    if p <= n:
        Z = torch.cat([Z, Z.new_zeros(*Z.shape[:-1], n - p)], -1)
    else:
        Z = lower(Z)
    element = Element(G[..., p:, :] - K @ H, steps.offset[..., p:] + times(K, e), U, times(H.mT, e), Z)
    shared = torch.broadcast_shapes(*(m.shape[:2] for m in (element.A, element.U, element.Z)))[0]
    lead = [(shared, length), (batch, length), (shared, length), (batch, length), (shared, length)]
    element = Element(*[m.expand(*size, *m.shape[2:]) for m, size in zip(element, lead)])
    masks = steps.masks
    if masks.starts is not None:
        element = Element(
            *[m if k in (1, 2) else choose(~masks.starts, m, m.new_zeros(())) for k, m in enumerate(element)]
        )
    if masks.valid is not None:
        identity = torch.eye(n, dtype=G.dtype, device=G.device)
        zero = identity.new_zeros(())
        element = Element(*[choose(masks.valid, m, zero if k else identity) for k, m in enumerate(element)])
    return element


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


def given(state: GaussianState, later: Information) -> GaussianState:
    """N(mean, factor factor^T) given what later observations tell about it: smoothing, without its inverse."""
    V = _Known(state.factor, later.Z).V
    rest = later.eta - times(later.Z, times(later.Z.mT, state.mean))
    return GaussianState(state.mean + times(V, times(V.mT, rest)), lower(V))


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


def scan(element: Element, combine: Callable[[Element, Element], Element] = join) -> Element:
    """The element of steps 1 ... t, for every t: O(length) joinings, in 2 log2(length) batches of them.

    Source:  Blelloch 1990, Prefix sums and their applications (pairs first, then between them).
    """
    length = element.b.shape[1]
    if length < 2:
        return element
    pairs = combine(_every(element, 0, length - 1), _every(element, 1, length))
    odd = scan(pairs, combine)  # 1 ... 2, 1 ... 4, and so on
    n_even = (length - 1) // 2  # 1 ... 3, 1 ... 5
    if not n_even:
        return _weave(element, odd, odd, length)
    even = combine(Element(*[m[:, :n_even] for m in odd]), _every(element, 2, length))
    return _weave(element, odd, even, length)


def scan_back(element: Element) -> Element:
    """The element of steps t ... length, for every t."""
    flipped = Element(*[m.flip(1) for m in element])
    return Element(*[m.flip(1) for m in scan(flipped, lambda later, earlier: join(earlier, later))])


def _every(element: Element, begin: int, end: int) -> Element:
    return Element(*[m[:, begin:end:2] for m in element])


def _weave(element: Element, odd: Element, even: Element, length: int) -> Element:
    """First the first element, then odd and even in turn."""
    woven = []
    for first, o, e in zip(element, odd, even):
        n_even = (length - 1) // 2
        turns = torch.stack([o[:, :n_even], e[:, :n_even]], 2).flatten(1, 2)
        head = first[:, :1].expand(o.shape[0], *first[:, :1].shape[1:])
        woven.append(torch.cat([head, turns, o[:, n_even:]], 1))
    return Element(*woven)
