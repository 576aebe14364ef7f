"""What S4, S4D and LSSL do after their system: activation, dropout, and a linear map with or without a gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.dropout import build_dropout
from statewise.mixers.projection import Linear


class OutputHalf(nn.Module):
    """W dropout(f(y)) + b; with ``gated`` W and b have twice the rows and GLU halves them again: v * sigmoid(g).

    Shapes:  y: (..., d_inner)  ->  (..., d_model); ``linear.weight``: (2 d_model or d_model, d_inner), the rows of
             the values before those of the gate
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, sec. 3.4, and the block of its code: GELU, dropout, GLU (Dauphin et
             al. 2017, arXiv:1612.08083).
    """

    def __init__(
        self,
        d_inner: int,
        d_model: int,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        tied_dropout: bool = False,
        gated: bool = True,
    ) -> None:
        super().__init__()
        self.d_model, self.gated = d_model, gated
        self.activation = ACTIVATIONS[activation]
        self.dropout = build_dropout(dropout, tied=tied_dropout)
        self.linear = Linear(d_inner, 2 * d_model if gated else d_model, parts=(d_model,) * (2 if gated else 1))
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """PyTorch's default, as published; the rows that write into the residual stream are scaled, the gate's not."""
        self.linear.reset_parameters()
        with torch.no_grad():
            self.linear.weight[: self.d_model].mul_(residual_scale)
            self.linear.bias[: self.d_model].mul_(residual_scale)

    def forward(self, y: Tensor) -> Tensor:
        y = self.linear(self.dropout(self.activation(y)))
        return F.glu(y, -1) if self.gated else y
