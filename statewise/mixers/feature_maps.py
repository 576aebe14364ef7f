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

_FAR = 500.0  # logarithms, beyond which an exponential or the ratio of two leaves float64


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
    Numerics: in float64: ``similarity`` and ``bound`` to about 1e-8 of themselves, however small, and infinite where
              they are beyond float64; ``attention`` to about 1e-8 of the largest ``similarity``, and to 1e-12 or so
              where that is large. The error grows with |s|, not with d: what counts is how large queries and keys
              are. With an odd order a sum of weights may be near 0, and ``attention`` then has no bound.
    Errors:   InputError if q and k do not fit or are not real tensors, for an order below 0, and for causal queries
              that see no key.
    Source:   Taylor's theorem with Lagrange's remainder; the map: :func:`taylor`.

    >>> q = k = torch.ones(1, 4)
    >>> [round(float(taylor_error(q, k, order).similarity), 3) for order in (0, 1, 2, 4)]
    [0.865, 0.594, 0.323, 0.053]
    """
    if not isinstance(order, int) or isinstance(order, bool) or order < 0:
        raise InputError(f"taylor_error needs order as an integer of at least 0, got {order!r}")
    for name, given in (("q", q), ("k", k)):
        if not isinstance(given, Tensor) or given.is_complex():
            found = given.dtype if isinstance(given, Tensor) else type(given).__name__
            raise InputError(f"taylor_error needs {name} as a tensor of real numbers, got {found}; convert it first")
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
    off = _left_out(s, order)
    similarity = off.abs()
    bound = ((order + 1) * s.abs().log() - math.lgamma(order + 2) - s.clamp(max=0)).exp()
    hidden = s.masked_fill(~seen, -torch.inf)
    # With p = (1 - off) e^s the weights are a (1 - off) / (1 - mean of off by a): so small errors stay exact
    a, off = hidden.softmax(-1), off.masked_fill(~seen, 0.0)
    mean = (a * off).sum(-1, keepdim=True)
    moved = (a * (off - mean)).abs().sum(-1) / (1 - mean.squeeze(-1)).abs() / 2
    near = (a * off).abs().sum(-1) <= 0.5  # not so for infinity times 0
    if not bool(near.all()):  # 1 - mean may be rounding, and off beyond float64; but no error is small there
        series = _weights_by_logarithms(s, seen, order)
        moved = torch.where(near, moved, (a - series / series.sum(-1, keepdim=True)).abs().sum(-1) / 2)
    return TaylorError(similarity.amax((-1, -2)), bound.amax((-1, -2)), moved.amax(-1))


def _log_left_out(x: Tensor, order: int) -> Tensor:
    """The logarithm of the size of what the expansion of exp(-x) leaves out after x^order, as a share of exp(-x), for
    |x| up to order + 1, and beyond as there."""
    tail = term = torch.ones_like(x)
    inner, j = x.clamp(-(order + 1.0), order + 1.0), order + 1
    while bool((term.abs() > 1e-18).any()):
        j += 1
        term = term * -inner / j
        tail = tail + term
    return (order + 1) * inner.abs().log() - math.lgamma(order + 2) + inner + tail.log()


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


def _left_out(s: Tensor, order: int) -> Tensor:
    """1 - p(s) / exp(s), with p the expansion that ends at s^order; float64.

    Up to |s| = order + 1 what is left out is summed, whose terms fall. Above, it is an incomplete Gamma function;
    below, the expansion's own terms are summed, which fall in turn.
    """
    n = order + 1.0
    left_out = _log_left_out(-s, order).exp() * torch.where(s < 0, (-1.0) ** (order + 1), 1.0)
    x = (-s).clamp(min=0)
    term = series = torch.ones_like(s)
    for j in range(1, order + 1):
        term = term * -x / j
        series = series + term
    series = torch.where(series.isfinite(), series, (-1.0) ** order * math.inf)  # infinities of both signs were added
    above = torch.special.gammainc(s.new_tensor(n), s.clamp(min=0))
    beyond = torch.where(s > 0, above, 1 - series * x.exp())
    return torch.where(s.abs() <= n, left_out, beyond)
