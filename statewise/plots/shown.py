"""A figure that a notebook shows where it is the last line of a cell, without pyplot and without a magic command."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """One of matplotlib's, with a picture of itself for notebooks."""

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.savefig(written, format="png", dpi=100)
        return written.getvalue()
