"""The norm of the residual stream."""

from __future__ import annotations

from torch import Tensor, nn

from statewise.kernels.rms_norm import rms_norm


class RMSNorm(nn.RMSNorm):
    """``nn.RMSNorm`` over the last axis, with the same parameter, as one operator: :func:`statewise.kernels.rms_norm`.

    Computed in float32 or wider, returned in the dtype of x. x needs an axis before the last.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        assert self.eps is not None  # as the constructor has it
        return rms_norm(x, self.weight, self.eps)
