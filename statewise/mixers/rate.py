"""A model at a sampling rate that differs from the one it was trained at."""

from __future__ import annotations

import math

from torch import nn

from statewise.errors import InputError
from statewise.mixers.base import Mixer


def set_rate(module: nn.Module, rate: float) -> None:
    """Run a model at a sampling rate that differs from the one it was trained at.

    rate: how many steps of the training data one step now spans: 2 for every second sample, 0.5 for twice as many.
          It is absolute: each call replaces the one before, and 1 undoes it.

    S4, S4D, S5, LSSL and Kalman then make steps of rate * dt; GSS, whose step is 1 and has no dt, makes steps of
    ``rate``; the LMU's window theta spans theta / rate steps. All other mixers only count steps and do not change: H3
    is one of them, since its shift SSM counts steps, and so is the LMU cell's hidden recurrence. The rate is not saved:
    a model that you load has rate 1.

    Errors:  InputError if no mixer in ``module`` has a rate, if it is frozen, or if ``rate`` is not above 0.
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, sec. 4 (speech at half its sampling rate).
    """
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
        raise InputError(f"rate={rate!r}; expected a number above 0, such as 2 for every second sample")
    mixers = [m for m in module.modules() if isinstance(m, Mixer) and m.rate is not None]
    if not mixers:
        raise InputError(
            f"no mixer in this {type(module).__name__} has a rate; give it a layer that has: S4, S4D, S5, LSSL, LMU, "
            "GSS or Kalman"
        )
    for mixer in mixers:
        mixer._refuse_if_frozen("cannot change its rate")
    for mixer in mixers:
        mixer.rate = float(rate)
