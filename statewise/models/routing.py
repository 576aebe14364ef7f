"""What keeps the experts of a mixture in use: two losses of its router, and how a router is watched for them.

Both losses are sums over the steps once it is known how many steps chose each expert. So the parts of a batch that
ranks or pieces read each add their own, and the sum is that of the whole batch, not a mean of means.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Routed(NamedTuple):
    """What a router did, summed over the real steps that it read.

    counts:        (n_experts,) int64: the steps that chose each expert
    probabilities: (n_experts,) in float32 or wider: see :func:`probabilities`; None if only counts were asked for
    squares:       (), of log(sum(exp(scores))); None as well
    """

    counts: Tensor
    probabilities: Tensor | None
    squares: Tensor | None

    def plus(self, other: Routed) -> Routed:
        """Both together."""
        if self.probabilities is None or self.squares is None:
            return Routed(self.counts + other.counts, None, None)
        assert other.probabilities is not None
        assert other.squares is not None
        probabilities, squares = self.probabilities + other.probabilities, self.squares + other.squares
        return Routed(self.counts + other.counts, probabilities, squares)


def probabilities(scores: Tensor, router: str) -> Tensor:
    """How likely each step chooses each expert: the softmax of its scores, or of a sigmoid router the shares of their
    sigmoids (DeepSeek-V3, eq. 19).

    Shapes:  scores, (..., n_experts), in float32 or wider -> the same
    """
    if router != "sigmoid":
        return scores.softmax(-1)
    every = scores.sigmoid()
    return every / every.sum(-1, keepdim=True)


def routed(scores: Tensor, chosen: Tensor, router: str, valid: Tensor | None = None, *, losses: bool = True) -> Routed:
    """What is summed up of some steps.

    Shapes:  scores: (steps, n_experts)   chosen: (steps, n_active)   valid: (steps,) bool, the real ones; None: all
    losses:  False: only the counts
    """
    ones = torch.ones_like(chosen) if valid is None else valid[:, None].expand_as(chosen).to(chosen.dtype)
    counts = torch.zeros(scores.shape[-1], dtype=chosen.dtype, device=chosen.device)
    counts = counts.scatter_add(0, chosen.flatten(), ones.flatten())
    if not losses:
        return Routed(counts, None, None)
    each, squares = probabilities(scores, router), scores.logsumexp(-1).square()
    if valid is not None:
        each, squares = each.masked_fill(~valid[:, None], 0.0), squares.masked_fill(~valid, 0.0)
    return Routed(counts, each.sum(0), squares.sum())


def router_loss(part: Routed, counts: Tensor, n_active: int, *, balance: float = 0.0, z: float = 0.0) -> Tensor:
    """What a part of a batch adds to the losses of one router; of one part, all of both.

    balance: weight of  n_experts sum_i f_i P_i,  f_i = counts_i / steps,  P_i = probabilities_i / steps: n_active for
             experts in balance, up to n_experts for a router that always chooses the same. f_i has no gradient
    z:       weight of  sum over steps of log(sum(exp(scores)))**2 / steps, which keeps scores small
    counts:  (n_experts,) of the whole batch   steps: its real ones, which are counts.sum() / n_active

    Source:  Fedus et al. 2021, arXiv:2101.03961, eq. 4-6, for several active experts as transformers'
             ``load_balancing_loss_func``; Zoph et al. 2022, arXiv:2202.08906 (ST-MoE), eq. 5.
    """
    assert part.probabilities is not None
    assert part.squares is not None
    steps = (counts.sum() // n_active).clamp(min=1).to(part.probabilities.dtype)
    shares = counts.to(part.probabilities.dtype) / steps
    return (balance * len(counts) * (shares @ part.probabilities) + z * part.squares) / steps


def router_losses_reference(scores: Tensor, chosen: Tensor, router: str) -> tuple[Tensor, Tensor]:
    """The definition of both losses, expert by expert in float64: balance, and z. Shapes and meaning as above."""
    wide, n_experts = scores.double(), scores.shape[-1]
    balance, z = wide.new_zeros(()), wide.new_zeros(())
    for i in range(n_experts):
        f = sum(float(i in step) for step in chosen.tolist()) / len(scores)
        P = wide.new_zeros(())
        for x in wide:
            p = x.sigmoid() / x.sigmoid().sum() if router == "sigmoid" else x.exp() / x.exp().sum()
            P = P + p[i] / len(scores)
        balance = balance + n_experts * f * P
    for x in wide:
        z = z + x.exp().sum().log() ** 2 / len(scores)
    return balance, z


class Watch:
    """Sums up what a router does, from call to call, until somebody takes it.

    losses:  whether more than counts are asked for
    is_open: whether what is seen is kept. Where a block is computed again in the backward pass, the router is called
             again: it then has to do the same, and to count nothing twice
    """

    def __init__(self, *, losses: bool) -> None:
        self.losses, self.is_open = losses, False
        self.found: Routed | None = None

    def add(self, scores: Tensor, chosen: Tensor, router: str, valid: Tensor | None) -> None:
        new = routed(scores, chosen, router, valid, losses=self.losses)
        if self.is_open:
            self.found = new if self.found is None else self.found.plus(new)

    def take(self) -> Routed | None:
        """What was seen since the last time; None: no call."""
        found, self.found = self.found, None
        return found
