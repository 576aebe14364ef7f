"""Losses of a block of logits, and in place of the logits their gradient, in C: cross_entropy.inc.h."""

from __future__ import annotations

from torch import Tensor

from statewise import native
from statewise.kernels.stored import stored_function
from statewise.precision import full_precision


def rows(logits: Tensor, targets: Tensor, coefficients: Tensor | None) -> Tensor:
    """Shapes and meaning as in pytorch.py."""
    n, vocab = logits.shape
    losses = logits.new_empty(n, dtype=full_precision(logits.dtype))
    call = stored_function("cross_entropy", logits.dtype, "pppplll")
    call(logits, targets, coefficients, losses, n, vocab, native.n_threads())
    return losses
