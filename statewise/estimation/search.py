"""The search for the highest score: uphill by exact gradients, from one start or from several."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError

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
    """BFGS with a line search that halves. Source: Nocedal & Wright 2006, Numerical Optimization, alg. 6.1."""
    theta = flat(start)
    value, gradient = gradient_of(score, start)
    if not math.isfinite(value):
        raise InputError("the log-likelihood is not finite where the search begins; begin with another model")
    one = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    history, inverse, quiet = [value], one / max(n_numbers, 1), 0
    for _ in range(n_iterations):
        direction = inverse @ gradient  # uphill
        longest = float(direction.abs().max())
        direction = direction * min(1.0, 2.0 / max(longest, 1e-300))
        slope, size = float(direction @ gradient), 1.0
        while True:
            there = shaped(theta + size * direction, start)
            new_value, new_gradient = gradient_of(score, there)
            if math.isfinite(new_value) and new_value >= value + 1e-4 * size * slope:
                break
            size /= 2
            if size < 1e-10:
                return Found(shaped(theta, start), history, True)  # no way up that rounding does not hide
        s, g = size * direction, gradient - new_gradient
        curvature = float(s @ g)
        if curvature > 1e-12 * float(s.norm() * g.norm()):
            if len(history) == 1:
                inverse = one * curvature / float(g @ g)
            left = one - torch.outer(s, g) / curvature
            inverse = left @ inverse @ left.T + torch.outer(s, s) / curvature
        quiet = quiet + 1 if new_value - value < tolerance * n_numbers else 0
        theta, value, gradient = theta + s, new_value, new_gradient
        history.append(value)
        if quiet == 3 or float(gradient.abs().max()) < tolerance:
            return Found(shaped(theta, start), history, True)
    return Found(shaped(theta, start), history, False)


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
