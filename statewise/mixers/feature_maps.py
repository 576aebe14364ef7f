"""Feature maps of linear attention: phi in exp(q . k) ~ phi(q) . phi(k)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


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


def taylor(x: Tensor) -> Tensor:
    """[1, x / d^(1/4), (x (x) x) / sqrt(2 d)]: phi(q) . phi(k) = 1 + s + s^2 / 2, s = q . k / sqrt(d), which is the
    second-order expansion of exp(s) and at least 1/2.

    Shapes:  x: (..., d) -> (..., 1 + d + d^2)
    Source:  Arora et al. 2024 (Based), arXiv:2402.18668, sec. 4.1; Zhang et al. 2024, arXiv:2402.04347.
    """
    d = x.shape[-1]
    scaled = x * d**-0.25
    squares = (scaled * math.sqrt(0.5)).unsqueeze(-1) * scaled.unsqueeze(-2)
    return torch.cat((torch.ones_like(x[..., :1]), scaled, squares.flatten(-2)), -1)


def identity(x: Tensor) -> Tensor:
    """x: then linear attention is masked (Q K^T) V."""
    return x


def _same(d: int) -> int:
    return d


def _taylor_width(d: int) -> int:
    return 1 + d + d * d


FEATURE_MAPS: Mapping[str, FeatureMap] = MappingProxyType(
    {
        "elu": FeatureMap(elu_plus_one, _same, True),
        "relu": FeatureMap(F.relu, _same, True),
        "identity": FeatureMap(identity, _same, False),
        "taylor": FeatureMap(taylor, _taylor_width, True),
    }
)
