"""Muon: the momentum of a matrix, with its singular values brought close to one, is what the matrix moves by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from statewise.kernels.linear import linear
from statewise.precision import full_precision

# p(s) = a s + b s^3 + c s^5, steepest at zero among those that five of bring all of [0.01, 1] into [0.68, 1.14]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
N_ITERATIONS = 5
LEAST_NORM = 1e-7


def orthogonalize_reference(matrix: Tensor) -> Tensor:
    """X = M / |M|; five times X <- a X + b (X X^T) X + c (X X^T)^2 X: each singular value s becomes p(s).

    Shapes:  matrix: (rows, columns) -> the same
    Source:  Jordan et al. 2024, kellerjordan.github.io/posts/muon; the iteration: Björck & Bowie 1971.
    """
    a, b, c = COEFFICIENTS
    x = matrix / matrix.norm().clamp(min=LEAST_NORM)
    for _ in range(N_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def orthogonalize(matrix: Tensor) -> Tensor:
    """The same, by products of the smaller Gram matrix alone: X_5 = T X_0, with T a polynomial in X_0 X_0^T.

    Shapes:   matrix: (rows, columns) -> the same, in float32 or wider
    Cost:     with m the smaller side and n the larger one 2 m^2 n + 17 m^3 multiply-adds, where the reference has
              10 m^2 n + 5 m^3: half at n = 4.7 m. A fifth more for square matrices.
    Numerics: the float32 products of projections, on the faster library; a singular value below 3e-4 of the largest
              one is lost in the rounding of X X^T, and is then multiplied by a^5, as the smallest are in any case.
    """
    a, b, c = COEFFICIENTS
    x = matrix.to(full_precision(matrix.dtype))
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    x = x / x.norm().clamp(min=LEAST_NORM)
    gram, total = linear(x, x), None
    for number in range(N_ITERATIONS):
        factor = linear(gram, gram).mul_(c).add_(gram, alpha=b)  # symmetric, as all of these: linear is a plain product
        factor.diagonal().add_(a)
        total = factor if total is None else linear(factor, total)
        if number < N_ITERATIONS - 1:
            gram = linear(linear(factor, gram), factor)
    assert total is not None
    return linear(total, x.T) if wide else linear(x.T, total)


class Muon(torch.optim.AdamW):
    """AdamW, but Muon for the groups whose "momentum" is a number:

    B <- mu B + (1 - mu) G; U = (1 - mu) G + mu B (Nesterov); W <- (1 - lr decay) W - lr sqrt(max(1, rows/columns)) O,
    where O is U orthogonalised: :func:`orthogonalize`.

    As ``torch.optim.Muon``, which came with PyTorch 2.9, rounds its products to bfloat16 on every processor, and knows
    of no matrix of which each rank has a part.

    whole:     all of a tensor of which this rank may have a part; every rank asks for it
    part_like: (tensor, parameter) -> the part of a whole tensor that this rank has of the parameter
    State:     of a matrix ``momentum_buffer``, B: one number for each of its own; of the others AdamW's
    Source:    Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        part_like: Callable[[Tensor, Tensor], Tensor] = lambda tensor, parameter: tensor,
        **adamw: Any,
    ) -> None:
        super().__init__(groups, **adamw)
        self.whole, self.part_like = whole, part_like

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's own expects its moments of every parameter

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        every = self.param_groups
        self.param_groups = [group for group in every if group["momentum"] is None]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = every
        for group in every:
            for parameter in group["params"]:
                if group["momentum"] is not None and parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        lr, momentum, state = group["lr"], group["momentum"], self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].mul_(momentum).add_(gradient, alpha=1 - momentum)
        ahead = (gradient * (1 - momentum)).add_(buffer, alpha=momentum)
        direction = self.part_like(orthogonalize(self.whole(ahead)).to(parameter.dtype), parameter)
        rows, columns = parameter.shape
        parameter.mul_(1 - lr * group["weight_decay"])
        parameter.add_(direction, alpha=-lr * math.sqrt(max(1, rows / columns)))
