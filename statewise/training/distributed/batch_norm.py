"""Batch norm over the rows of all ranks: the statistics of one process that reads the whole batch."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from statewise.models.batch_norm import BatchNorm
from statewise.operators.masks import mask_time


def share_statistics(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """From here on every BatchNorm of the model takes mean and variance over what all ranks of the group read.

    Two sums a layer and pass are added up over the ranks, and their gradients in the backward pass. The running
    statistics are then the same on every rank.
    """

    def statistics(self: BatchNorm, y: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        count = y.new_tensor(y.shape[0] * y.shape[1]) if valid is None else valid.sum().to(y.dtype)
        dist.all_reduce(count, group=group)
        mean = _Sum.apply(y.sum((0, 1)), group) / count.clamp(min=1)
        deviations = mask_time((y - mean).square(), valid)
        variance = _Sum.apply(deviations.sum((0, 1)), group) / count.clamp(min=1)
        self.move(mean, variance, count)
        return mean, variance

    for module in model.modules():
        if isinstance(module, BatchNorm):
            module._statistics = MethodType(statistics, module)  # type: ignore[method-assign]


class _Sum(torch.autograd.Function):
    """The sum over the ranks, and of its gradients: what one rank adds is in the loss of all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
