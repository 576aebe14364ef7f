"""RMSNorm with a SiLU gate, as Mamba-2 has it after its system."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statewise.kernels.gated_rms_norm import gated_rms_norm


class GatedRMSNorm(nn.Module):
    """RMSNorm(x * SiLU(z)), or with ``norm_before_gate`` RMSNorm(x) * SiLU(z); each group normed by itself.

    Shapes:   x, z: (..., width)  ->  (..., width); the mean square is over width / n_groups features
    Numerics: computed in float32 or wider, returned in the dtype of x.
    Source:   Dao & Gu 2024, arXiv:2405.21060, sec. 7.2 (the norm) and sec. 8.1 (groups, for tensor parallelism).
    """

    def __init__(self, width: int, *, n_groups: int = 1, norm_before_gate: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.n_groups, self.norm_before_gate, self.eps = n_groups, norm_before_gate, eps
        self.weight = nn.Parameter(torch.ones(width))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return gated_rms_norm(
            x, z, self.weight, self.eps, n_groups=self.n_groups, norm_before_gate=self.norm_before_gate
        )
