"""The definition: the cross-entropy of a linear layer's outputs, with all logits in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_cross_entropy_reference(x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """log(sum_v e^{x W_v}) - x W_target for each token, zero where the target is ``ignore_index``.

    Shapes: x (n, d), weight (vocab, d), targets (n,)  ->  (n,)
    """
    logits = x @ weight.t()
    ignored = targets == ignore_index
    own = logits.gather(1, targets.masked_fill(ignored, 0).unsqueeze(1)).squeeze(1)
    return torch.where(ignored, 0, logits.logsumexp(1) - own)
