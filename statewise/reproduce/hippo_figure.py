"""HiPPO's own picture: a signal, what a state of four numbers says of it at two times, its functions, its numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from statewise import hippo
from statewise.reproduce.report import Curve, Panel, Plot, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER = 4  # states, and so functions
COLORS = ("tab:blue", "tab:green", "tab:red", "tab:purple")


class Memory(NamedTuple):
    """signal: (length,)   coefficients: (length, 4) after each step   times: two of them, in steps read
    read: the reconstruction of all that was read at each of these times, oldest first   basis: (length, 4) at the end,
    oldest first   error: of each reconstruction, root mean square relative to what was read
    """

    signal: Tensor
    coefficients: Tensor
    times: tuple[int, int]
    read: tuple[Tensor, Tensor]
    basis: Tensor
    error: tuple[float, float]


def memory(length: int) -> Memory:
    """LegS of order 4 on a slow signal, float64: three sinusoids of up to two cycles, read at the middles of the steps.

    Source: Gu et al. 2020 (HiPPO), arXiv:2008.07669, figure 1
    """
    time = (torch.arange(length, dtype=torch.float64) + 0.5) / length
    signal = (2 * math.pi * 0.6 * time).sin() + 0.6 * (2 * math.pi * time + 1).sin() + 0.3 * (4 * math.pi * time).cos()
    coefficients, _ = hippo.project(signal[None], "legs", ORDER)
    read, errors = [], []
    times = (2 * length // 3, length)
    for t in times:
        ages = t - 0.5 - torch.arange(t, dtype=torch.float64)
        values = hippo.reconstruct(coefficients[0, t - 1], "legs", ages, elapsed=float(t))
        read.append(values)
        errors.append(float((values - signal[:t]).norm() / signal[:t].norm()))
    basis = hippo.basis("legs", ORDER, length - 0.5 - torch.arange(length, dtype=torch.float64), elapsed=float(length))
    return Memory(signal, coefficients[0], times, (read[0], read[1]), basis, (errors[0], errors[1]))


def figures(found: Memory) -> dict[str, Any]:
    """The numbers of the picture that are JSON data: the two states and their errors."""
    return {
        "times": list(found.times),
        "coefficients": [found.coefficients[t - 1].tolist() for t in found.times],
        "error": list(found.error),
    }


def plot(found: Memory) -> Plot:
    """The picture: three panels over one axis of time."""
    steps = range(len(found.signal))
    signals = [Curve(steps, found.signal.tolist(), "the signal f", {"color": "0.7", "linewidth": 3})]
    for t, values, style in zip(found.times, found.read, ("--", "-")):
        color = {"color": "tab:orange", "linestyle": style}
        signals.append(Curve(range(t), values.tolist(), f"what the state after {t:,} steps says of it", color))
    functions = [_numbered("g", i, steps, found.basis[:, i]) for i in range(ORDER)]
    coefficients = [_numbered("c", i, steps, found.coefficients[:, i]) for i in range(ORDER)]
    panels = (
        Panel(signals, title=f"a signal and its projections on {ORDER} functions"),
        Panel(functions, title="the functions at the end: Legendre polynomials over all that was read"),
        Panel(coefficients, title="the state: a coefficient of each function, after each step", x="steps read"),
    )

    def draw(drawing: Figure) -> None:
        for panel, axes in zip(panels, drawing.subplots(3, 1, sharex=True)):
            panel.draw(axes)

    return drawn("hippo-memory", f"HiPPO (LegS) with N = {ORDER}", draw, width=7.5, height=7.5)


def _numbered(letter: str, i: int, steps: range, values: Tensor) -> Curve:
    return Curve(steps, values.tolist(), f"{letter}{i}", {"color": COLORS[i]})
