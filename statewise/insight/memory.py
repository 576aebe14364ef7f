"""HiPPO's memory of a signal: its coefficients over time, and what they say at some times of all that was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise import hippo
from statewise.errors import InputError
from statewise.hippo.measures import window


class Reading(NamedTuple):
    """What the state after ``steps`` steps says of the past that its measure covers.

    Shapes:  places: (points,) int64, the steps that it speaks of, oldest first   values: (points,), the reconstruction
             basis: (points, n)   density: (points,), of a step; None for fourier_diag
    error:   of the reconstruction, root mean square relative to the signal's over these steps
    """

    steps: int
    places: Tensor
    values: Tensor
    basis: Tensor
    density: Tensor | None
    error: float


class Memory(NamedTuple):
    """signal: (length,)   coefficients: (length, n) after each step   readings: one for each of the times asked for"""

    signal: Tensor
    coefficients: Tensor
    readings: tuple[Reading, ...]
    measure: str
    theta: float | None

    @property
    def n(self) -> int:
        return self.coefficients.shape[-1]


def hippo_memory(
    signal: Tensor, measure: str, n: int, *, theta: float | None = None, at: Sequence[int] | None = None
) -> Memory:
    """Reads a signal into n numbers, and back, in float64. A step is 1 unit of time, read at its middle.

    theta:   the window or unit of time of the measure, in steps; None: a third of the signal (``legs`` has none)
    at:      after how many steps to look at the state; None: at the end
    Shapes:  signal: (length,)
    Errors:  InputError for a signal of another shape, a time that is not in it, and as
             :func:`statewise.hippo.project`.
    Source:  Gu et al. 2020 (HiPPO), arXiv:2008.07669, sec. 2 and figure 1.

    >>> found = hippo_memory(torch.linspace(0, 1, 100), "legs", 4)
    >>> found.coefficients.shape, found.readings[0].error < 0.02
    (torch.Size([100, 4]), True)
    """
    if not isinstance(signal, Tensor) or signal.ndim != 1 or not len(signal):
        given = f"of shape {tuple(signal.shape)}" if isinstance(signal, Tensor) else type(signal).__name__
        raise InputError(f"the signal must be a tensor (length,) of at least one step, got {given}")
    length = len(signal)
    theta = length / 3 if theta is None and measure != "legs" else theta
    signal = signal.double()
    coefficients, _ = hippo.project(signal[None], measure, n, theta=theta)
    times = [length] if at is None else list(at)
    for time in times:
        if isinstance(time, bool) or not isinstance(time, int) or not 0 < time <= length:
            raise InputError(f"at has {time!r}; the signal has {length} steps, so give 1 to {length}")
    readings = tuple(_reading(signal, coefficients[0, t - 1], measure, theta, t) for t in times)
    return Memory(signal, coefficients[0], readings, measure, theta)


def _reading(signal: Tensor, coefficients: Tensor, measure: str, theta: float | None, t: int) -> Reading:
    n = len(coefficients)
    shown = t
    if measure in ("legt", "lmu", "fourier"):
        shown = min(t, int(window(measure, theta=theta)))
    ages = torch.arange(shown, dtype=torch.float64).flip(0) + 0.5
    unit: dict[str, Any] = {"elapsed": float(t)} if theta is None else {"theta": theta}
    values = hippo.reconstruct(coefficients, measure, ages, **unit)
    basis = hippo.basis(measure, n, ages, **unit)
    weight = None if measure == "fourier_diag" else hippo.density(measure, ages, **unit)
    places = torch.arange(t - shown, t)
    seen = signal[places]
    return Reading(t, places, values, basis, weight, float((values - seen).norm() / seen.norm()))
