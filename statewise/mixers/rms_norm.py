"""RMSNorm as a module: of the residual stream, and of queries and keys."""

from __future__ import annotations

from torch import Tensor, nn

from statewise.kernels.rms_norm import rms_norm
from statewise.precision import full_precision


class RMSNorm(nn.RMSNorm):
    """``nn.RMSNorm`` over the last axis, with the same parameter, as one operator: :func:`statewise.kernels.rms_norm`.

    Computed in float32 or wider, returned in the dtype of x. x needs an axis before the last.

    offset: what is stored is the weight less 1, as Gemma and Qwen3-Next store it: bfloat16 keeps more digits of it
    """

    def __init__(self, width: int, *, eps: float = 1e-5, offset: bool = False) -> None:
        self.offset = offset
        super().__init__(width, eps=eps)

    def reset_parameters(self) -> None:
        """A weight of 1."""
        nn.init.constant_(self.weight, 0.0 if self.offset else 1.0)

    @property
    def factor(self) -> Tensor:
        """What the normed x is multiplied by, in float32 or wider if it has an offset."""
        return 1 + self.weight.to(full_precision(self.weight.dtype)) if self.offset else self.weight

    def forward(self, x: Tensor) -> Tensor:
        assert self.eps is not None  # as the constructor has it
        return rms_norm(x, self.factor, self.eps)
