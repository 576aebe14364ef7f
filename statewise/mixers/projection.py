"""The linear layer of every mixer and model."""

from __future__ import annotations

import math

from torch import Tensor, nn

from statewise.kernels.linear import linear

WEIGHT_STD = 0.02  # of GPT-2's projections and the published H3's, at widths from this
PUBLISHED_WIDTH = 768


def weight_std_at(d_model: int) -> float:
    """By which a projection's outputs vary as much at this width as with 0.02 at 768: sqrt(d_model) std is the same."""
    return WEIGHT_STD * math.sqrt(PUBLISHED_WIDTH / d_model)


class Linear(nn.Linear):
    """``nn.Linear`` with the same parameters, on the faster matrix library: :func:`statewise.kernels.linear.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def draw_normal(std: float, *layers: Linear) -> None:
    """Weights from the normal distribution of this standard deviation, biases zero."""
    for layer in layers:
        nn.init.normal_(layer.weight, std=std)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def draw_default(*layers: Linear) -> None:
    """Weights as PyTorch draws them, biases zero."""
    for layer in layers:
        nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
