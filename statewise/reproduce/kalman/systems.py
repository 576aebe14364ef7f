"""Three systems to estimate, and many runs of each: what is true, and what is seen of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.estimation import LinearGaussian, NonlinearGaussian
from statewise.systems import mass_spring_damper

D = torch.float64
GRAVITY = 9.81


class Runs(NamedTuple):
    """x (runs, length, n), y (runs, length, p), NaN where nothing is seen; raw (runs, length), what one would take for
    ``states[0]`` from y alone; states: those whose errors are reported; dt: seconds in a step."""

    model: LinearGaussian | NonlinearGaussian
    x: Tensor
    y: Tensor
    raw: Tensor
    states: tuple[int, ...]
    dt: float


def spring(n_runs: int, length: int, generator: torch.Generator) -> Runs:
    """A mass on a spring that random forces push, of which the position is seen."""
    one, dt = torch.ones(1, 1, dtype=D), 0.1
    system = mass_spring_damper(mass=1.0, stiffness=4.0, damping=0.3)
    model = LinearGaussian.from_continuous(system, dt, Q=0.5 * one, R=0.04 * one, noise_of="inputs")
    x, y = model.simulate(n_runs, length, generator=generator)
    return Runs(model, x, y, y[..., 0], (0,), dt)


def pendulum(n_runs: int, length: int, generator: torch.Generator, method: str) -> Runs:
    """A pendulum of 1 m that starts at about 70 degrees; the sine of its angle is observed.

    Source:  the example of Särkkä 2013, Bayesian Filtering and Smoothing, ch. 5; the numbers are our own.
    """
    dt = 0.02
    Q = 0.1 * torch.tensor([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]], dtype=D)

    def swing(x: Tensor) -> Tensor:
        return torch.stack([x[0] + dt * x[1], x[1] - dt * GRAVITY * torch.sin(x[0])])

    model = NonlinearGaussian(
        swing,
        Q,
        lambda x: torch.sin(x[:1]),
        0.05 * torch.eye(1, dtype=D),
        mean=torch.tensor([1.2, 0.0], dtype=D),
        covariance=torch.diag(torch.tensor([0.1, 0.1], dtype=D)),
        method=method,
    )
    x, y = model.simulate(n_runs, length, generator=generator)
    return Runs(model, x, y, torch.asin(y[..., 0].clamp(-1, 1)), (0,), dt)


def target(n_runs: int, length: int, generator: torch.Generator) -> Runs:
    """A target in the plane whose velocity wanders; its position is seen, but for two gaps: a fifth and a tenth.

    Source:  the white-noise acceleration of Bar-Shalom, Li & Kirubarajan 2001, sec. 6.2.2; the numbers are our own.
    """
    dt, one = 1.0, torch.eye(2, dtype=D)
    move = torch.tensor([[1.0, dt], [0.0, 1.0]], dtype=D)
    noise = 0.02 * torch.tensor([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]], dtype=D)
    model = LinearGaussian(
        torch.kron(one, move),  # east, its rate, north, its rate
        torch.kron(one, noise),
        torch.kron(one, torch.tensor([[1.0, 0.0]], dtype=D)),
        4.0 * one,
        mean=torch.tensor([0.0, 1.0, 0.0, 0.5], dtype=D),
        covariance=torch.diag(torch.tensor([25.0, 0.25, 25.0, 0.25], dtype=D)),
    )
    x, y = model.simulate(n_runs, length, generator=generator)
    y[:, gap(length)] = torch.nan
    return Runs(model, x, y, y[..., 0], (0, 2), dt)


def gap(length: int) -> Tensor:
    """(length,) bool: where a target is not seen."""
    share = torch.arange(length, dtype=D) / length
    return ((share >= 0.3) & (share < 0.5)) | ((share >= 0.7) & (share < 0.8))
