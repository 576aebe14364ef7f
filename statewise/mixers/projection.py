"""The linear layer of every mixer and model."""

from __future__ import annotations

from torch import Tensor, nn

from statewise.kernels.linear import linear


class Linear(nn.Linear):
    """``nn.Linear`` with the same parameters, on the faster matrix library: :func:`statewise.kernels.linear.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
