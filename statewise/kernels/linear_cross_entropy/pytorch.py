"""Losses of a block of logits, and in place of the logits their gradient, in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.precision import full_precision

NO_TARGET = -(2**62)  # the target of a token without one, inside the operators: nobody's mistaken id


def rows(logits: Tensor, targets: Tensor, coefficients: Tensor | None) -> Tensor:
    """The losses (n,) of logits (n, vocab); the target NO_TARGET has none. With ``coefficients`` (n,) the logits are
    replaced by the gradient of sum(coefficients * losses)."""
    full = logits.to(full_precision(logits.dtype))
    ignored = targets == NO_TARGET
    own = targets.masked_fill(ignored, 0).unsqueeze(1)
    total = full.logsumexp(1)
    losses = (total - full.gather(1, own).squeeze(1)).masked_fill_(ignored, 0)
    if coefficients is not None:
        gradient = torch.sub(full, total.unsqueeze(1), out=full).exp_()
        gradient.scatter_add_(1, own, torch.full_like(gradient[:, :1], -1))
        gradient.mul_(coefficients.unsqueeze(1)).masked_fill_(ignored.unsqueeze(1), 0)
        if gradient is not logits:
            logits.copy_(gradient)
    return losses
