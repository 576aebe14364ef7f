"""Operators and mixers whose coefficients vary with time, in every form, against independent loops in float64.

A case has any decays, 0 to -inf, masks with NaN in the padding, other strides, a state carried over several calls, in C
or in PyTorch, and at times gradients of all inputs.
"""

from __future__ import annotations

from fuzz.draw import Draw
from fuzz.operator_families import selective, ssd

FAMILIES = {"ssd": ssd, "selective": selective}


def check(draw: Draw) -> None:
    FAMILIES[draw.choice(sorted(FAMILIES), "family")](draw)
