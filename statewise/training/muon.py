"""Muon: the momentum of a matrix, with its singular values brought close to one, is what the matrix moves by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from statewise.precision import full_precision

# p(s) = a s + b s^3 + c s^5 is steep at zero, and five of it bring all of [0.01, 1] into [0.68, 1.14]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
N_ITERATIONS = 5
LEAST_NORM = 1e-7
AT_ONCE = 2**22  # numbers of matrices that are taken together, so that small ones share their products


def orthogonalize_reference(matrices: Tensor) -> Tensor:
    """X = M / |M|; five times X <- a X + b (X X^T) X + c (X X^T)^2 X: each singular value s becomes p(s).

    Shapes:  matrices: (..., rows, columns) -> the same
    Source:  Jordan et al. 2024, kellerjordan.github.io/posts/muon; the iteration: Björck & Bowie 1971.
    """
    a, b, c = COEFFICIENTS
    x = _normed(matrices)
    for _ in range(N_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def orthogonalize(matrices: Tensor, *, rounded: bool = False) -> Tensor:
    """The same for several matrices, by cheaper products.

    In float32 by products of the smaller Gram matrix alone: X_5 = T X_0, with T a polynomial in X_0 X_0^T. With
    ``rounded`` by X itself in bfloat16: rounding gives X X^T eigenvalues below zero, which its powers would blow up.

    Shapes:   matrices: (n, rows, columns), no more rows than columns -> the same, in float32 or wider, or in bfloat16
    Cost:     with m rows and n columns 2 m^2 n + 17 m^3 multiply-adds, half of the reference's 10 m^2 n + 5 m^3 at
              n = 4.7 m; rounded those of the reference.
    Numerics: in float32 a singular value below 3e-4 of the largest one is lost in the rounding of X X^T, and is then
              multiplied by a^5, as the smallest are in any case. In bfloat16 two digits, but of a matrix of low rank:
              there what rounding adds to the zeros grows as well.
    """
    a, b, c = COEFFICIENTS
    x = _normed(matrices.to(full_precision(matrices.dtype)))
    if rounded:
        x = x.to(torch.bfloat16)
        for _ in range(N_ITERATIONS):
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x
    gram, total = torch.bmm(x, x.mT), None
    for number in range(N_ITERATIONS):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        total = factor if total is None else torch.bmm(factor, total)
        if number < N_ITERATIONS - 1:
            gram = torch.bmm(torch.bmm(factor, gram), factor)
    assert total is not None
    return torch.bmm(total, x)


def _normed(matrices: Tensor) -> Tensor:
    return matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=LEAST_NORM)


def _step_of_adamw() -> Callable[..., float | None]:
    """AdamW's step without what PyTorch puts around the steps of a class, such as the calls of hooks: that is around
    ours already."""
    step: Any = torch.optim.AdamW.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


class Muon(torch.optim.AdamW):
    """AdamW, but Muon for the groups whose "momentum" is a number, with "parts", the rows of the maps in each matrix:

    B <- mu B + (1 - mu) G; U = (1 - mu) G + mu B (Nesterov); W <- (1 - lr decay) W - lr sqrt(max(1, rows/columns)) O,
    where O is U orthogonalised (:func:`orthogonalize`), each map that lies in a fused projection by itself.

    As ``torch.optim.Muon``, which came with PyTorch 2.9, rounds its products to bfloat16 on every processor, and knows
    of no matrix of which each rank has a part.

    whole:     all of a tensor of which this rank may have a part; every rank asks for it
    part_like: (tensor, parameter) -> the part of a whole tensor that this rank has of the parameter
    rounded:   products in bfloat16, for a run that trains in it
    State:     of a matrix ``momentum_buffer``, B: one number for each of its own; of the others AdamW's
    Source:    Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        part_like: Callable[[Tensor, Tensor], Tensor] = lambda tensor, parameter: tensor,
        rounded: bool = False,
        **adamw: Any,
    ) -> None:
        super().__init__(groups, **adamw)
        self.whole, self.part_like, self.rounded = whole, part_like, rounded

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's own expects its moments of every parameter

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        every = self.param_groups
        self.param_groups = [group for group in every if group["momentum"] is None]
        try:
            loss = _step_of_adamw()(self, closure)
        finally:
            self.param_groups = every
        for group in every:
            if group["momentum"] is not None:
                for batch in _batches(group):
                    self._move(batch, group)
        return loss

    def _move(self, batch: Sequence[tuple[Tensor, Sequence[int]]], group: dict[str, Any]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        maps: list[list[Tensor]] = []
        for parameter, parts in batch:
            gradient, state = parameter.grad, self.state[parameter]
            assert gradient is not None
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffer = state["momentum_buffer"].mul_(momentum).add_(gradient, alpha=1 - momentum)
            ahead = (gradient * (1 - momentum)).add_(buffer, alpha=momentum)
            maps.append(list(self.whole(ahead).split(list(parts))))
        self._orthogonalize_in_place(maps)
        for (parameter, _), directions in zip(batch, maps):
            direction = self.part_like(torch.cat(directions).to(parameter.dtype), parameter)
            parameter.mul_(1 - lr * group["weight_decay"])
            parameter.add_(direction, alpha=-lr)

    def _orthogonalize_in_place(self, maps: list[list[Tensor]]) -> None:
        """Those of one shape together, lying on their side or not."""
        alike: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for i, directions in enumerate(maps):
            for j, direction in enumerate(directions):
                alike.setdefault(tuple(sorted(direction.shape)), []).append((i, j))
        for places in alike.values():
            tall = [maps[i][j].shape[0] > maps[i][j].shape[1] for i, j in places]
            stacked = torch.stack([maps[i][j].mT if is_tall else maps[i][j] for (i, j), is_tall in zip(places, tall)])
            found = orthogonalize(stacked, rounded=self.rounded).to(stacked.dtype)
            for (i, j), is_tall, direction in zip(places, tall, found):
                rows, columns = maps[i][j].shape
                maps[i][j] = (direction.mT if is_tall else direction) * math.sqrt(max(1, rows / columns))


def _batches(group: dict[str, Any]) -> Iterator[list[tuple[Tensor, Sequence[int]]]]:
    """The matrices that have gradients, with their parts, so many at a time as hold ``AT_ONCE`` numbers, or one."""
    batch: list[tuple[Tensor, Sequence[int]]] = []
    n_numbers = 0
    for parameter, parts in zip(group["params"], group["parts"]):
        if parameter.grad is None:
            continue
        if batch and n_numbers + parameter.numel() > AT_ONCE:
            yield batch
            batch, n_numbers = [], 0
        batch.append((parameter, parts))
        n_numbers += parameter.numel()
    if batch:
        yield batch
