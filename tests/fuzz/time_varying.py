"""Operators and mixers whose coefficients vary with time, in every form, against independent loops in float64.

A case has any decays, 0 to -inf, masks with NaN in the padding, other strides, a state carried over several calls, in C
or in PyTorch, and at times gradients of all inputs.
"""

from __future__ import annotations

from fuzz.draw import Draw
from fuzz.operator_families import selective, ssd
from fuzz.time_varying_mixers import linear_attention, mamba3

FAMILIES = {"ssd": ssd, "selective": selective, "Mamba-3": mamba3, "linear attention": linear_attention}


def check(draw: Draw) -> None:
    FAMILIES[draw.choice(sorted(FAMILIES), "family")](draw)
