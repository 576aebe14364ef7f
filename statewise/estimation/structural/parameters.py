"""The numbers of a structural model, and the free numbers that stand for them: any of these make a model."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = 1 - 1e-4  # of a partial autocorrelation: at 1 there is no stationary distribution
MOST = 40.0  # a logarithm further out than this says the same as one here, and its exponential is still a number


class Parameter(NamedTuple):
    """kind: "variance", "damping" (in (0, 1)), "period" (of a cycle, between two ends, in steps), or "coefficients" of
    a stationary autoregression, of which there are ``size``. Each has one set of free numbers for each series.
    """

    kind: str
    size: int = 1
    ends: tuple[float, float] = (2.0, math.inf)

    def natural(self, free: Tensor, scale: Tensor) -> Tensor:
        """The parameter (batch,), or coefficients (batch, size), that free numbers (batch, size) stand for.

        scale:  (batch,), the unit of a series: a free number of 0 is a variance of scale^2
        """
        if self.kind == "coefficients":
            return stationary(LARGEST * torch.tanh(free))
        free = free[:, 0]
        if self.kind == "variance":
            return scale.square() * free.clamp(-MOST, MOST).exp()
        if self.kind == "damping":
            return torch.sigmoid(free.clamp(-MOST / 2, MOST / 2))
        low, high = (2 * math.pi / end for end in reversed(self.ends))
        return 2 * math.pi / (low + (high - low) * torch.sigmoid(free.clamp(-MOST / 2, MOST / 2)))

    def example(self, number: int, like: Tensor) -> Tensor:
        """One that is like nearly all there are, (1,) or (1, size): no two with different numbers are equal."""
        if self.kind == "coefficients":
            return like.new_zeros(1, self.size)
        low, high = (2 * math.pi / end for end in reversed(self.ends))
        share = (number + 1) * (math.sqrt(5) - 1) / 2 % 1
        values = {
            "variance": 1.0,
            "damping": 0.999 - 0.001 * number,
            "period": 2 * math.pi / (low + (high - low) * share),
        }
        return like.new_full((1,), values[self.kind])

    def free(self, natural: Tensor, scale: Tensor) -> Tensor:
        """(batch, size): what :meth:`natural` undoes. A variance of 0 is a very small one."""
        if self.kind == "coefficients":
            return torch.atanh(partial_correlations(natural) / LARGEST)
        if self.kind == "variance":
            return (natural / scale.square()).clamp(min=math.exp(-MOST)).log()[:, None]
        if self.kind == "damping":
            return torch.logit(natural)[:, None]
        low, high = (2 * math.pi / end for end in reversed(self.ends))
        return torch.logit((2 * math.pi / natural - low) / (high - low))[:, None]

    def wrong(self, value: Tensor) -> str | None:
        """What is expected where a value (batch,), or (batch, size), is out of range."""
        low, high = self.ends
        if self.kind == "variance":
            return None if bool((value >= 0).all()) else "a variance of at least 0"
        if self.kind == "damping":
            return None if bool(((value > 0) & (value < 1)).all()) else "a number between 0 and 1"
        if self.kind == "period":
            return None if bool(((value > low) & (value < high)).all()) else f"a period between {low:g} and {high:g}"
        inside = (partial_correlations(value).abs() < 1).all()
        return None if bool(inside) else "coefficients of a stationary autoregression"


def stationary(partial: Tensor) -> Tensor:
    """The coefficients (batch, p) of the autoregression with these partial autocorrelations, each inside (-1, 1).

    Every stationary autoregression has exactly one set of them.

    Source:  Monahan 1984, Biometrika 71:403 (the Durbin-Levinson recursion).

    >>> stationary(torch.tensor([[0.5, -0.2]]))
    tensor([[ 0.6000, -0.2000]])
    """
    a = partial[:, :1]
    for k in range(1, partial.shape[1]):
        last = partial[:, k : k + 1]
        a = torch.cat([a - last * a.flip(1), last], 1)
    return a


def partial_correlations(coefficients: Tensor) -> Tensor:
    """What :func:`stationary` undoes; a number outside (-1, 1) among them if the autoregression is not stationary."""
    a, found = coefficients, []
    for _ in range(coefficients.shape[1]):
        last = a[:, -1:]
        found.append(last)
        a = (a[:, :-1] + last * a[:, :-1].flip(1)) / (1 - last.square())
    return torch.cat(found[::-1], 1).nan_to_num(nan=2.0)
