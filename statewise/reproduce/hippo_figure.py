"""HiPPO's own picture: a signal, what a state of four numbers says of it at two times, its functions, its numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from statewise.insight import Memory, hippo_memory
from statewise.plots.memory import draw_memory
from statewise.reproduce.report import Plot, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER = 4  # states, and so functions


def memory(length: int) -> Memory:
    """LegS of order 4 on a slow signal, float64: three sinusoids of up to two cycles, read at the middles of the steps,
    looked at after two thirds of them and at the end.

    Source: Gu et al. 2020 (HiPPO), arXiv:2008.07669, figure 1
    """
    time = (torch.arange(length, dtype=torch.float64) + 0.5) / length
    signal = (2 * math.pi * 0.6 * time).sin() + 0.6 * (2 * math.pi * time + 1).sin() + 0.3 * (4 * math.pi * time).cos()
    return hippo_memory(signal, "legs", ORDER, at=(2 * length // 3, length))


def figures(found: Memory) -> dict[str, Any]:
    """The numbers of the picture that are JSON data: the two states and their errors."""
    return {
        "times": [reading.steps for reading in found.readings],
        "coefficients": [found.coefficients[reading.steps - 1].tolist() for reading in found.readings],
        "error": [reading.error for reading in found.readings],
    }


def plot(found: Memory) -> Plot:
    """The picture: panels over one axis of time."""

    def draw(drawing: Figure) -> None:
        draw_memory(drawing, found)

    return drawn("hippo-memory", f"HiPPO (LegS) with N = {ORDER}", draw, width=7.5, height=7.6)
