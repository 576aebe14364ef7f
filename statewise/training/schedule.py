"""The learning rate over a run: a warm-up, then a cosine, a straight line, or a plateau with a decay at its end."""

from __future__ import annotations

import math


def learning_rate_factor(
    progress: float,
    *,
    kind: str = "cosine",
    warmup: float = 0.0,
    warmup_prefix: bool = True,
    decay: float = 0.2,
    start_ratio: float = 0.0,
    min_ratio: float = 0.0,
) -> float:
    """What the highest learning rate is multiplied by when a fraction ``progress`` of the run is done.

    The arguments are the fields of ``ScheduleConfig``. The factor rises in a straight line from ``start_ratio`` over
    the first ``warmup`` of the run. Then "cosine" falls to ``min_ratio`` along half a cosine (Loshchilov and Hutter
    2017, arXiv:1608.03983, eq. 5); "linear" falls to it in a straight line; "wsd" stays at 1 and falls as 1 - sqrt over
    the last ``decay`` of the run (Hägele et al. 2024, arXiv:2405.18392, sec. 4.1), so that a run can be made longer
    without having known it. Beyond the end it stays at ``min_ratio``. With ``warmup_prefix=False`` the cosine and the
    line begin where the run does, under the warm-up: at its end the factor drops from 1 to where they are by then (the
    line to 1 - ``warmup``). That is timm's ``warmup_prefix=False``.

    >>> [round(learning_rate_factor(p, warmup=0.25, min_ratio=0.1), 3) for p in (0.0, 0.125, 0.25, 0.625, 1.0)]
    [0.0, 0.5, 1.0, 0.55, 0.1]
    >>> [learning_rate_factor(p, kind="wsd", decay=0.5) for p in (0.0, 0.5, 0.625, 1.0)]
    [1.0, 1.0, 0.5, 0.0]
    >>> [round(learning_rate_factor(p, kind="linear", warmup=0.5, start_ratio=0.2), 3) for p in (0.0, 0.25, 0.75, 1.0)]
    [0.2, 0.6, 0.5, 0.0]
    >>> [round(learning_rate_factor(p, warmup=0.25, warmup_prefix=False), 3) for p in (0.125, 0.25, 0.5, 1.0)]
    [0.5, 0.854, 0.5, 0.0]
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return start_ratio + (1.0 - start_ratio) * progress / warmup
    if kind in ("cosine", "linear"):
        before = warmup if warmup_prefix else 0.0
        done = (progress - before) / (1.0 - before) if before < 1.0 else 1.0
        shape = 0.5 * (1.0 + math.cos(math.pi * done)) if kind == "cosine" else 1.0 - done
    else:
        done = (progress - (1.0 - decay)) / decay if decay > 0.0 else 0.0
        shape = 1.0 - math.sqrt(max(done, 0.0))
    return min_ratio + (1.0 - min_ratio) * shape


class Cadence:
    """Whether it is time: after ``every`` steps, ``minutes`` after the last time, or either.

    >>> due = Cadence(every=2, minutes=None)
    >>> [due(step, seconds=0.0) for step in (1, 2, 3, 4)]
    [False, True, False, True]
    """

    def __init__(self, every: int | None, minutes: float | None, seconds: float = 0.0) -> None:
        self.every, self.minutes, self.last = every, minutes, seconds

    def __call__(self, step: int, seconds: float) -> bool:
        due = (self.every is not None and step % self.every == 0) or (
            self.minutes is not None and seconds - self.last >= 60 * self.minutes
        )
        if due:
            self.last = seconds
        return due
