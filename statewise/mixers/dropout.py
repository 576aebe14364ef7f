"""Dropout, of each number or of whole features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TiedDropout(nn.Module):
    """Drops a feature of a row at every step or at none: one mask (batch, 1, width) for all steps of x.

    Shapes:  x: (batch, length, width) -> the same. In evaluation x itself.
    Source:  Tompson et al. 2015, arXiv:1411.4280, sec. 3.2; ``tie_dropout`` of S4's code.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.mask = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.mask.p == 0.0 or x.shape[1] == 0:
            return x
        return x * self.mask(torch.ones_like(x[:, :1]))


def build_dropout(p: float, *, tied: bool) -> nn.Dropout | TiedDropout:
    """Dropout of each number of (batch, length, width), or with ``tied`` of its features."""
    return TiedDropout(p) if tied else nn.Dropout(p)
