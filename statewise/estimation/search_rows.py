"""The highest point of many functions at once: one quasi-Newton search for each row, all rows in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# (points (rows, k), which rows of the whole (rows,)) -> values (rows,), gradients (rows, k); not finite: no such point
Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
_LONGEST = 2.0  # of a step in any number, which are logarithms and the like
_ROUNDING = 1e-11  # of a log-likelihood, beside its size


class Found(NamedTuple):
    """point: (rows, k)   value: (rows,)   converged: (rows,) bool, whether the search of a row stopped by itself
    history: the values at the beginning and after each iteration, (rows,) each
    """

    point: Tensor
    value: Tensor
    converged: Tensor
    history: list[Tensor]


def climb(score: Score, begin: Tensor, tolerance: Tensor, n_iterations: int) -> Found:
    """BFGS with a line search that halves, each row by itself; a row that has arrived is computed no more.

    tolerance:  (rows,); a row stops where its value has risen by less three times running, or at a slope below it
    Cost:       a gradient of all rows that are still on their way for each iteration, and for each halving.
    Source:     Nocedal & Wright 2006, Numerical Optimization, alg. 6.1.
    """
    n_rows, k = begin.shape
    point, rows = begin.clone(), torch.arange(n_rows, device=begin.device)
    value, gradient = score(point, rows)
    one = torch.eye(k, dtype=point.dtype, device=point.device)
    inverse = one / gradient.abs().amax(1).clamp(min=1.0)[:, None, None]
    quiet = torch.zeros(n_rows, dtype=torch.int64, device=point.device)
    first = torch.ones(n_rows, dtype=torch.bool, device=point.device)
    converged = ~value.isfinite()  # nothing to be done
    history = [value.clone()]
    for _ in range(n_iterations):
        converged |= gradient.abs().amax(1) < tolerance
        rows = (~converged).nonzero()[:, 0]
        if not len(rows):
            break
        direction = _times(inverse[rows], gradient[rows])
        uphill = (direction * gradient[rows]).sum(1) > 0
        direction = torch.where(uphill[:, None], direction, gradient[rows])
        direction = direction * (_LONGEST / direction.abs().amax(1).clamp(min=1e-300)).clamp(max=1.0)[:, None]
        before, slope = value[rows], (direction * gradient[rows]).sum(1)
        step, after = torch.zeros_like(direction), gradient[rows].clone()
        size, left = 1.0, torch.arange(len(rows), device=rows.device)
        while len(left):
            there = size * direction[left]
            new_value, new_gradient = score(point[rows[left]] + there, rows[left])
            good = new_value.isfinite() & new_gradient.isfinite().all(1)
            good &= new_value >= before[left] + 1e-4 * size * slope[left]
            taken = left[good]
            step[taken], after[taken], value[rows[taken]] = there[good], new_gradient[good], new_value[good]
            size /= 2
            promised = size * slope[left] > _ROUNDING * (1 + before[left].abs())
            left, lost = left[~good & promised], left[~good & ~promised]
            converged[rows[lost]] = True  # no way up that rounding does not hide
        bend = gradient[rows] - after
        inverse[rows] = _curved(inverse[rows], step, bend, first[rows])
        point[rows], gradient[rows], first[rows] = point[rows] + step, after, False
        history.append(value.clone())
        still = value[rows] - before < tolerance[rows]
        quiet[rows] = torch.where(still, quiet[rows] + 1, 0)
        converged |= quiet >= 3
    return Found(point, value, converged & value.isfinite(), history)


def _curved(inverse: Tensor, s: Tensor, g: Tensor, first: Tensor) -> Tensor:
    """The inverse Hessians after steps s over which the gradient fell by g; as they were where it did not."""
    curvature = (s * g).sum(1)
    learns = curvature > 1e-12 * s.norm(dim=1) * g.norm(dim=1)
    safe = torch.where(learns, curvature, 1.0)[:, None, None]
    one = torch.eye(s.shape[1], dtype=s.dtype, device=s.device)
    begun = one * (curvature / g.square().sum(1).clamp(min=1e-300))[:, None, None]
    inverse = torch.where((first & learns)[:, None, None], begun, inverse)
    left = one - s[:, :, None] * g[:, None, :] / safe
    updated = left @ inverse @ left.mT + s[:, :, None] * s[:, None, :] / safe
    return torch.where(learns[:, None, None], updated, inverse)


def _times(M: Tensor, x: Tensor) -> Tensor:
    return (M @ x.unsqueeze(-1)).squeeze(-1)
