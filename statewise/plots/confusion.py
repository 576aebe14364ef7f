"""Confusion matrices: what was predicted, against what was true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from statewise.plots.style import colour_bar, heat_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SHOWN = 20  # classes whose cells carry their count


def draw_confusion(figure: Figure, confusion: np.ndarray, classes: Sequence[str], *, title: str = "") -> None:
    """Draws the confusion matrix into an empty figure of matplotlib, each row in shares of its class.

    Where there are few classes, each cell also has its count.
    """
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    axes = figure.add_subplot()
    image = heat_map(axes, shares, title, signed=False, limit=1.0, aspect="equal")
    colour_bar(figure, image, axes, "share of the true class")
    ticks = range(len(classes))
    axes.set_xticks(ticks, classes, rotation=90)
    axes.set_yticks(ticks, classes)
    axes.set(xlabel="predicted", ylabel="true")
    if len(classes) <= MAX_SHOWN:
        for i, j in np.argwhere(confusion):
            colour = "black" if shares[i, j] > 0.5 else "white"
            axes.text(j, i, f"{confusion[i, j]}", ha="center", va="center", color=colour, fontsize=8)
