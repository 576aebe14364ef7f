"""The map of a language model from features to logits."""

from __future__ import annotations

from torch import Tensor

from statewise.kernels.exact.owner import MayBeExact, exactly
from statewise.mixers.projection import Linear


class Head(Linear, MayBeExact):
    """logits = W x, or with a ``cap`` cap tanh(W x / cap), which keeps each within +-cap.

    Source:  the cap: Gemma Team 2024 (Gemma 2), arXiv:2408.00118, sec. 2.
    """

    def __init__(self, d_model: int, vocab_size: int, *, cap: float | None = None) -> None:
        super().__init__(d_model, vocab_size, bias=False)
        self.cap = cap

    @exactly
    def forward(self, input: Tensor) -> Tensor:
        logits = super().forward(input)
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()
