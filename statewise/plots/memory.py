"""HiPPO's memory: a signal, what a few numbers say of it, and by which measure they remember."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statewise import hippo
from statewise.errors import InputError
from statewise.insight import Memory
from statewise.insight import hippo_memory as read
from statewise.plots.style import COLOURS, DASHES, line, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 4  # functions of the basis, and coefficients


@styled
def hippo_memory(
    signal: Tensor,
    measure: str = "legs",
    n: int = 16,
    *,
    theta: float | None = None,
    at: Sequence[int] | None = None,
) -> Figure:
    """A signal and what n numbers say of its past, the measure, the functions, and the numbers over time.

    theta:   the window or unit of time of the measure, in steps; None: a third of the signal (``legs`` has none)
    at:      after how many steps to look at the state; None: two thirds through, and at the end
    Shapes:  signal: (length,)
    Errors:  as :func:`statewise.insight.hippo_memory`

    >>> import torch
    >>> figure = hippo_memory(torch.sin(torch.arange(300) / 20), n=8)
    >>> [axes.get_title(loc="left") for axes in figure.axes][0]
    'legs with 8 numbers: a signal, and what the state says of it'
    """
    if at is None and isinstance(signal, Tensor) and signal.ndim == 1 and len(signal) > 2:
        at = (2 * len(signal) // 3, len(signal))
    page = new_figure(7.2, 7.6)
    draw_memory(page, read(signal, measure, n, theta=theta, at=at))
    return page


def draw_memory(page: Figure, found: Memory) -> None:
    """Into an empty figure, in the style that holds there."""
    panels = page.subplots(4, 1, sharex=True, height_ratios=[3, 1.4, 2, 2])
    steps = range(len(found.signal))
    panels[0].plot(steps, found.signal, color="#BBBBBB", linewidth=3.5, label="the signal")
    for number, reading in enumerate(found.readings):
        label = f"what the state after {reading.steps:,} steps says of it (error {_percent(reading.error)})"
        look = {"color": COLOURS[1 if number else 0], "linestyle": DASHES[0 if number else 1], "linewidth": 1.3}
        panels[0].plot(reading.places, reading.values, label=label, **look)
    panels[0].set_ylabel("signal")
    _ends(panels[0], found.signal)
    numbers = f"{found.n} number{'' if found.n == 1 else 's'}"
    panels[0].set_title(f"{found.measure} with {numbers}: a signal, and what the state says of it")
    last = found.readings[-1]
    if last.density is None:
        words = "its functions are orthogonal under no measure"
        panels[1].text(0.5, 0.5, words, transform=panels[1].transAxes, ha="center")
    else:
        panels[1].fill_between(last.places, last.density, step="mid", color=COLOURS[5], alpha=0.7, linewidth=0)
        panels[1].set_ylim(bottom=0)
    panels[1].set_ylabel("weight\nof a step")
    panels[1].set_title(f"the measure after {last.steps:,} steps: how much an error counts", fontsize=9.5)
    for i in range(min(SHOWN, found.n)):
        panels[2].plot(last.places, last.basis[:, i], label=f"$g_{{{i}}}$", **line(i))
        panels[3].plot(steps, found.coefficients[:, i], label=f"$c_{{{i}}}$", **line(i))
    panels[2].set_ylabel("basis")
    part = f", the first {SHOWN}" if found.n > SHOWN else ""
    panels[2].set_title(f"functions of the basis after {last.steps:,} steps{part}", fontsize=9.5)
    panels[3].set_ylabel("state")
    panels[3].set_title("their coefficients: the state after each step", fontsize=9.5)
    panels[3].set_xlabel("steps read")
    panels[0].legend(fontsize=8, loc="upper left")
    for axes in panels[2:]:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.25 * (high - low))
        axes.legend(fontsize=8, loc="upper left", ncols=SHOWN)
    page.align_ylabels()


def _percent(share: float) -> str:
    """
    >>> _percent(0.0123), _percent(1.004)
    ('1.2 %', '100 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _ends(axes: Axes, signal: Tensor) -> None:
    """A reconstruction may be far off at its ends: the signal sets the scale, with room for the legend."""
    low, high = float(signal.min()), float(signal.max())
    room = max(high - low, 1e-9)
    axes.set_ylim(low - 0.25 * room, high + 0.7 * room)


@styled
def hippo_measures(measures: Sequence[str] = hippo.MEASURES, n: int = 4, *, points: int = 400) -> Figure:
    """For each measure how much it weighs the past, by age, and the first functions that it remembers by.

    Ages are in the unit of theta; of ``legs`` in the time since it began.

    Errors:  InputError for a measure that there is not.
    """
    for measure in measures:
        if measure not in hippo.MEASURES:
            raise InputError(f"there is no measure {measure!r}; use some of {', '.join(hippo.MEASURES)}")
    columns = min(4, len(measures))
    rows = -(-len(measures) // columns)
    page = new_figure(2.6 * columns, 0.6 + 2.6 * rows)
    grid = list(page.subplots(rows, columns, squeeze=False, sharex=True).flat)
    for axes, measure in zip(grid, measures):
        end = 1.0 if measure in ("legs", "legt", "lmu", "fourier") else 4.0
        ages = torch.linspace(1e-3, end, points, dtype=torch.float64)
        theta = {} if measure == "legs" else {"theta": 1.0}
        values = hippo.basis(measure, max(n, 2 * (n // 2)), ages, **theta)  # type: ignore[arg-type]
        size = float(values[ages < 3].abs().max())
        if measure != "fourier_diag":
            weight = hippo.density(measure, ages, **theta)  # type: ignore[arg-type]
            shown = weight / weight.max() * size
            axes.fill_between(ages, -shown, shown, color=COLOURS[5], alpha=0.3, linewidth=0, label="the measure")
        for i in range(min(n, SHOWN)):
            axes.plot(ages, values[:, i], label=f"$g_{{{i}}}$", **{**line(i), "linewidth": 1.2})
        axes.set_title(measure)
        axes.set_ylim(-1.15 * size, 1.15 * size)
        axes.set_xlim(4.0, 0.0)
        axes.set_yticks([0], [""])
    for axes in grid[-columns:]:
        axes.set_xlabel("age, theta")
    for axes in grid[len(measures) :]:
        axes.axis("off")
    handles, labels = grid[0].get_legend_handles_labels()
    page.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    page.suptitle(
        "what each measure weighs, and the functions that it remembers by; the present is at the right", fontsize=10
    )
    return page
