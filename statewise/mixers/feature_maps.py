"""Feature maps of linear attention: phi in exp(q . k) ~ phi(q) . phi(k)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import InputError

_FAR = 500.0  # products, beyond which an exponential or the ratio of two leaves float64


class FeatureMap(NamedTuple):
    """apply: (..., d) -> (..., width(d)); nonnegative: whether phi(q) . phi(k) >= 0 for all q and k."""

    apply: Callable[[Tensor], Tensor]
    width: Callable[[int], int]
    nonnegative: bool


def elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 above 0, e^x below: positive, but 0 in float32 below about -17, where e^x is lost beside the 1.

    Source: Katharopoulos et al. 2020, arXiv:2006.16236, eq. 7.
    """
    return F.elu(x) + 1


def taylor(x: Tensor, order: int = 2) -> Tensor:
    """[1, z, (z (x) z) / sqrt(2!), ...] with z = x / d^(1/4) and products of up to ``order`` factors: phi(q) . phi(k)
    is the sum of s^n / n!, s = q . k / sqrt(d), which is the expansion of exp(s) of this order. An even order is above
    0 everywhere (order 2 is at least 1/2); an odd one has a root.

    Shapes:  x: (..., d) -> (..., 1 + d + ... + d^order)
    Source:  Arora et al. 2024 (Based), arXiv:2402.18668, sec. 4.1; Zhang et al. 2024, arXiv:2402.04347.
    """
    scaled = x * x.shape[-1] ** -0.25
    products = [torch.ones_like(x[..., :1])]
    for n in range(1, order + 1):
        products.append(((scaled * n**-0.5).unsqueeze(-1) * products[-1].unsqueeze(-2)).flatten(-2))
    return torch.cat(products, -1)


def identity(x: Tensor) -> Tensor:
    """x: then linear attention is masked (Q K^T) V."""
    return x


def _same(d: int) -> int:
    return d


def _taylor_width(d: int, order: int) -> int:
    return sum(d**n for n in range(order + 1))


def taylor_map(order: int) -> FeatureMap:
    """The Taylor map of this order."""
    return FeatureMap(partial(taylor, order=order), partial(_taylor_width, order=order), order % 2 == 0)


FEATURE_MAPS: Mapping[str, FeatureMap] = MappingProxyType(
    {
        "elu": FeatureMap(elu_plus_one, _same, True),
        "relu": FeatureMap(F.relu, _same, True),
        "identity": FeatureMap(identity, _same, False),
        "taylor": taylor_map(2),
    }
)


class TaylorError(NamedTuple):
    """How far Taylor's features are from the softmax; each (...,), the largest over queries, or pairs, of one head.

    similarity: |phi(q) . phi(k) - exp(s)| / exp(s)
    bound:      what Taylor's remainder says of ``similarity``: |s|^(order + 1) / (order + 1)! max(1, exp(-s))
    attention:  half the sum of |a_s - b_s| over the keys of a query, a being the softmax and b the weights
                phi(q) . phi(k) divided by their sum: how much of the attention goes elsewhere, of 1
    """

    similarity: Tensor
    bound: Tensor
    attention: Tensor


def taylor_error(q: Tensor, k: Tensor, order: int, *, causal: bool = True) -> TaylorError:
    """The error of the softmax's feature map if the expansion of exp(s), s = q . k / sqrt(d), ends at s^order.

    Shapes:   q: (..., length, d)   k: (..., n_keys, d)   ->   each (...,)
              causal: query t sees the keys up to t + n_keys - length, so that the last query sees all of them
    Cost:     O(length n_keys (d + order)); no features are made, of which there are about d^order.
    Numerics: in float64, each to about 1e-8 of itself, however small, and infinite where it is beyond float64; if a
              product is beyond 500, ``attention`` to 1e-12 or so. The error grows with |s|, not with d: what counts is
              how large queries and keys are. With an odd order a sum of weights may be near 0, and ``attention`` then
              has no bound.
    Errors:   InputError if q and k do not fit, for an order below 0, and for causal queries that see no key.
    Source:   Taylor's theorem with Lagrange's remainder; the map: :func:`taylor`.

    >>> q = k = torch.ones(1, 4)
    >>> [round(float(taylor_error(q, k, order).similarity), 3) for order in (0, 1, 2, 4)]
    [0.865, 0.594, 0.323, 0.053]
    """
    if not isinstance(order, int) or isinstance(order, bool) or order < 0:
        raise InputError(f"taylor_error needs order as an integer of at least 0, got {order!r}")
    fits = q.ndim >= 2 and k.ndim >= 2 and q.shape[-1] == k.shape[-1] and 0 not in (*q.shape[-2:], *k.shape[-2:])
    fits = fits and all(a == b or 1 in (a, b) for a, b in zip(q.shape[-3::-1], k.shape[-3::-1]))
    if not fits or (causal and k.shape[-2] < q.shape[-2]):
        raise InputError(
            f"taylor_error needs q (..., length, d) and k (..., n_keys, d) of one d, with keys for every query; got "
            f"{tuple(q.shape)} and {tuple(k.shape)}; with causal=False there may be fewer keys than queries"
        )
    s = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    length, n_keys = s.shape[-2:]
    seen = torch.ones(length, n_keys, dtype=torch.bool, device=s.device)
    if causal:
        seen = seen.tril(n_keys - length)
    s = s.masked_fill(~seen, 0.0)
    ratio, similarity = _taylor_ratio(s, order)
    bound = ((order + 1) * s.abs().log() - math.lgamma(order + 2) - s.clamp(max=0)).exp()
    hidden = s.masked_fill(~seen, -torch.inf)
    series = (hidden - hidden.amax(-1, keepdim=True)).exp() * ratio.masked_fill(~seen, 0.0)
    far = (s.abs() > _FAR).any(-1, keepdim=True)
    if bool(far.any()):  # exponentials or their ratios are beyond float64
        series = torch.where(far, _weights_by_logarithms(s, seen, order), series)
    moved = (hidden.softmax(-1) - series / series.sum(-1, keepdim=True)).abs().sum(-1) / 2
    return TaylorError(similarity.amax((-1, -2)), bound.amax((-1, -2)), moved.amax(-1))


def _log_left_out(x: Tensor, order: int) -> Tensor:
    """The logarithm of what the expansion of exp(-x) leaves out after x^order, as a share of exp(-x); x at most
    order + 1, and larger ones as that."""
    tail = term = torch.ones_like(x)
    inner, j = x.clamp(max=order + 1.0), order + 1
    while bool((term.abs() > 1e-18).any()):
        j += 1
        term = term * -inner / j
        tail = tail + term
    return (order + 1) * inner.log() - math.lgamma(order + 2) + inner + tail.log()


def _weights_by_logarithms(s: Tensor, seen: Tensor, order: int) -> Tensor:
    """The expansion p(s) that ends at s^order, each row as a share of the largest |p| that is seen in it."""
    size = s.abs().clamp(min=torch.finfo(s.dtype).tiny)
    logarithm = torch.zeros_like(s)  # of p where s >= 0: no term is negative
    for j in range(1, order + 1):
        logarithm = torch.logaddexp(logarithm, j * size.log() - math.lgamma(j + 1))
    # Below 0, from the last term down: where |s| is large they fall, and elsewhere p is not far from e^s
    term = total = torch.ones_like(s)
    for j in range(order, 0, -1):
        term = term * -j / size
        total = total + term
    falling = order * size.log() - math.lgamma(order + 1) + total.abs().log()
    left_out, flip = _log_left_out(size, order), float((-1) ** order)
    ratio = 1 + flip * left_out.clamp(max=_FAR).exp()
    near = s + torch.where(left_out > _FAR, left_out, ratio.abs().log())
    below = torch.where(size > order + 1, falling, near)
    sign = torch.where(size > order + 1, flip * total.sign(), ratio.sign())
    logarithm = torch.where(s >= 0, logarithm, below).masked_fill(~seen, -torch.inf)
    weights = (logarithm - logarithm.amax(-1, keepdim=True)).exp()
    return torch.where(s >= 0, weights, sign * weights)


def _taylor_ratio(s: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """p(s) / exp(s), with p the expansion that ends at s^order, and |p(s) / exp(s) - 1|; float64.

    Above 0 they are incomplete Gamma functions. Below 0 the expansion cancels to nothing, so that what is left out of
    it is summed, whose terms fall; where |s| is so large that these grow at first, the expansion's own do, and are.
    """
    x, n = (-s).clamp(min=0), s.new_tensor(order + 1.0)
    above, left_out = s.clamp(min=0), _log_left_out(x, order).exp()
    term = series = torch.ones_like(s)
    for j in range(1, order + 1):
        term = term * -x / j
        series = series + term
    series = torch.where(series.isfinite(), series, (-1.0) ** order * math.inf)  # infinities of both signs were added
    below = torch.where(x <= order + 1, 1 - (-1) ** (order + 1) * left_out, series * x.exp())
    ratio = torch.where(s > 0, torch.special.gammaincc(n, above), below)
    off = torch.where(x <= order + 1, left_out, (below - 1).abs())
    return ratio, torch.where(s > 0, torch.special.gammainc(n, above), off)
