"""Rotary positions: pairs of features are turned by an angle that grows with the token's position."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, position: Tensor, *, d_rotary: int, base: float = 10_000.0) -> Tensor:
    """Turn the first ``d_rotary`` features of every head by ``position``; the others pass unchanged.

    Half-split convention (GPT-NeoX): feature i and feature i + d_rotary/2 form one pair, i < d_rotary/2, and the
    pair is the complex number z_i = x_i + j x_{i + d_rotary/2} turned to z_i exp(j p base^(-2i/d_rotary)). The inner
    product of a query and a key then depends on their positions only through the difference.

    Shapes:   x: (batch, length, n_heads, d_head)   position: (batch or 1, length) integer   ->   as x
    Numerics: the angles are taken in float64, since p * frequency in float32 is off by 6e-3 at p = 100,000;
              the products are in float32 or wider, and the result has x's dtype.
    Source:   Su et al. 2021, arXiv:2104.09864, sec. 3.4.2.
    """
    half = d_rotary // 2
    frequency = base ** (torch.arange(half, dtype=torch.float64, device=x.device) * (-1.0 / half))
    angle = (position[..., None] * frequency)[:, :, None]  # (batch or 1, length, 1, half)
    at_least_float32 = torch.promote_types(x.dtype, torch.float32)
    cosine, sine = angle.cos().to(at_least_float32), angle.sin().to(at_least_float32)
    first, second, rest = x[..., :half], x[..., half:d_rotary], x[..., d_rotary:]
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat((*(part.to(x.dtype) for part in turned), rest), dim=-1)
