"""Batch norm over the real positions of right-padded rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statewise.operators.masks import Masks, build_masks, mask_time


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) * weight + bias for each feature.

    In training, mean and variance are those of all real positions of the batch, (batch, length) together, and move
    the running ones by ``momentum``. In evaluation they are the running ones: a fixed affine map of each step, so that
    any cut of a sequence gives the same. In training a call with a state uses the statistics of the chunk it was given:
    cuts change them, as the choice of a batch does.

    Shapes:   x: (batch, length, d_model) -> the same; lengths: (batch,)
    Numerics: computed in float32 or wider, returned in the dtype of x. The running variance is the unbiased one. A call
              without a real position leaves the running statistics alone.
    Limits:   a block recomputed in the backward pass (gradient checkpointing) moves the running statistics twice, by
              the same batch.
    Source:   Ioffe & Szegedy 2015, arXiv:1502.03167, alg. 1 and 2.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, d_model: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model))
        self.register_buffer("running_mean", torch.empty(d_model))
        self.register_buffer("running_variance", torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.running_mean)
        nn.init.ones_(self.running_variance)

    def forward(self, x: Tensor, lengths: Tensor | None = None, *, masks: Masks | None = None) -> Tensor:
        valid = (build_masks(x, lengths, None) if masks is None else masks).valid
        dtype = torch.promote_types(x.dtype, torch.float32)
        y = mask_time(x, valid).to(dtype)
        if self.training:
            mean, variance = self._statistics(y, valid)
        else:
            mean, variance = self.running_mean.to(dtype), self.running_variance.to(dtype)
        y = (y - mean) * torch.rsqrt(variance + self.eps)
        return torch.addcmul(self.bias.to(dtype), y, self.weight.to(dtype)).to(x.dtype)

    def _statistics(self, y: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and biased variance over the real positions, and the running ones moved towards them."""
        count = y.new_tensor(y.shape[0] * y.shape[1]) if valid is None else valid.sum().to(y.dtype)
        mean = y.sum((0, 1)) / count.clamp(min=1)
        variance = mask_time((y - mean).square(), valid).sum((0, 1)) / count.clamp(min=1)
        self.move(mean, variance, count)
        return mean, variance

    @torch.no_grad()
    def move(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Moves the running statistics towards those of ``count`` positions."""
        weight = self.momentum * (count > 0)
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight.to(self.running_mean.dtype))
        self.running_variance.lerp_(unbiased.to(self.running_mean.dtype), weight.to(self.running_mean.dtype))
