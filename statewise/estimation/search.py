"""The search for the highest score: uphill by exact gradients, from one start or from several."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation import search_rows

Numbers = dict[str, Tensor]
Score = Callable[[Numbers], Tensor]


class Found(NamedTuple):
    """The best numbers, the score at each iteration, and whether the search stopped by itself."""

    numbers: Numbers
    history: list[float]
    converged: bool


def from_starts(
    run: Callable[[Numbers], Found], start: Numbers, n_starts: int, generator: torch.Generator | None
) -> tuple[Found, tuple[float, ...]]:
    """The best of a run from ``start`` and of others from numbers around it; and what each came to, -inf where one has
    no finite score.

    Each tensor of numbers gets noise of half its own root mean square, of 1/2 where it is zero.
    """
    best = run(start)
    ends = [best.history[-1]]
    for _ in range(n_starts - 1):
        near = {name: m + _noise(m, generator) for name, m in start.items()}
        try:
            found = run(near)
        except (InputError, torch.linalg.LinAlgError):  # no model, or none that is likely
            ends.append(-math.inf)
            continue
        ends.append(found.history[-1])
        best = found if found.history[-1] > best.history[-1] else best
    return best, tuple(ends)


def _noise(like: Tensor, generator: torch.Generator | None) -> Tensor:
    size = like.square().mean().sqrt()
    drawn = torch.randn(like.shape, dtype=like.dtype, generator=generator).to(like.device)
    return drawn * torch.where(size > 0, size, 1) / 2


def climb(score: Score, start: Numbers, n_iterations: int, tolerance: float, n_numbers: int) -> Found:
    """The search of :func:`statewise.estimation.search_rows.climb` for one row, whose numbers have names.

    tolerance: the search stops where the score rises by less than this for each of ``n_numbers`` observed
    """

    def of_row(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = gradient_of(score, shaped(points[0], start))
        return points.new_full((1,), value), gradient.unsqueeze(0)

    limit = torch.full((1,), tolerance * max(n_numbers, 1), dtype=torch.float64)
    found = search_rows.climb(of_row, flat(start).unsqueeze(0), limit.to(flat(start)), n_iterations)
    if not bool(found.value.isfinite()):
        raise InputError(
            "the log-likelihood is not finite at the model where the search begins; begin with another model"
        )
    history = [float(value) for value in found.history]
    return Found(shaped(found.point[0], start), history, bool(found.converged))


def gradient_of(score: Score, numbers: Numbers) -> tuple[float, Tensor]:
    """The score and its gradient; -inf where there is no such model."""
    leaves = {name: m.detach().requires_grad_() for name, m in numbers.items()}
    try:
        value = score(leaves)
        parts = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    except (InputError, torch.linalg.LinAlgError):
        return -math.inf, flat(numbers)
    gradient = torch.cat([m.flatten() for m in parts])
    return (float(value.detach()), gradient) if bool(gradient.isfinite().all()) else (-math.inf, gradient)


def flat(numbers: Numbers) -> Tensor:
    return torch.cat([m.detach().flatten() for m in numbers.values()])


def shaped(theta: Tensor, like: Numbers) -> Numbers:
    parts = theta.split([m.numel() for m in like.values()])
    return {name: part.reshape(m.shape) for (name, m), part in zip(like.items(), parts)}


def check_search(n_iterations: Any, tolerance: Any, n_starts: Any) -> None:
    for name, value in (("n_iterations", n_iterations), ("n_starts", n_starts)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} must be a number above 0, got {value!r}")
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
