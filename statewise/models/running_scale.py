"""The level and the scale of a series, as running averages: what a forecaster divides by, known at every step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.kernels.linear_scan import linear_scan

RELATIVE_FLOOR = 1e-6  # of the level: below it a float32 series is rounding noise


class RunningScaleState(NamedTuple):
    """All (batch, d_target). first: the first value seen, from which the sums are taken, for the sake of rounding;
    last: the last value seen; weight, total: of the level; deviation_weight, deviation_total: of the scale.
    """

    first: Tensor
    last: Tensor
    weight: Tensor
    total: Tensor
    deviation_weight: Tensor
    deviation_total: Tensor


class ScaledSeries(NamedTuple):
    """All (batch, length, d_target): the series with its gaps filled, its changes, and what scales it, step by step."""

    value: Tensor  # the last value seen
    change: Tensor  # from the value seen before; 0 where nothing is seen
    level: Tensor
    scale: Tensor  # above 0


def initial_running_scale(batch: int, d_target: int, device: torch.device, dtype: torch.dtype) -> RunningScaleState:
    """The state before anything is seen."""
    zeros = torch.zeros(batch, d_target, device=device, dtype=dtype)
    return RunningScaleState(*[zeros.clone() for _ in RunningScaleState._fields])


def running_scale(
    x: Tensor, observed: Tensor, state: RunningScaleState, steps: int | None
) -> tuple[ScaledSeries, RunningScaleState]:
    """The mean of the values seen so far, and the mean distance of each value from the mean before it.

    For each value x_t that is seen, level_t is the average of all values up to x_t, and scale_t the average of
    abs(x_i - level_{i-1}) up to i = t, the first value left out. In both, a value seen k values ago has the weight
    (1 - 1/steps)^k, and with ``steps=None`` they all have the same. Where nothing is seen, everything stays. The scale
    is at least 1e-6 of the level, so that nothing is divided by zero.

    All is a function of the past and of the state, so a series may be read in chunks; and value, level and scale follow
    x -> a + b x exactly.

    Shapes:   x, observed: (batch, length, d_target), observed bool; x may be anything where it is not observed
    Cost:     two linear recurrences: O(length).
    Numerics: in the dtype of the state, float32 or wider.
    """
    x = x.to(state.total.dtype).masked_fill(~observed, 0)
    if x.shape[1] == 0:
        return ScaledSeries(x, x, x, x), state
    time = torch.arange(x.shape[1], device=x.device)[:, None]
    latest = torch.where(observed, time, -1).cummax(1).values  # the last step at which something was seen
    value = torch.where(latest < 0, state.last[:, None], x.gather(1, latest.clamp(min=0)))
    before = torch.cat([state.last[:, None], value[:, :-1]], 1)

    earliest = observed.int().argmax(1, keepdim=True)
    first_here = torch.where(observed.any(1), x.gather(1, earliest)[:, 0], 0)
    first = torch.where(state.weight > 0, state.first, first_here)

    decay = 1.0 if steps is None else 1 - 1 / steps
    keep = torch.where(observed, decay, 1.0).to(x)
    moved = (x - first[:, None]) * observed
    total, weight = _sums(keep, moved, observed.to(x), state.total, state.weight)
    mean = _ratio(total, weight)  # less the first value
    mean_before = torch.cat([_ratio(state.total, state.weight)[:, None], mean[:, :-1]], 1)
    weight_before = torch.cat([state.weight[:, None], weight[:, :-1]], 1)

    counts = observed & (weight_before > 0)
    distance = (moved - mean_before).abs() * counts
    keep = torch.where(counts, decay, 1.0).to(x)
    deviation, deviation_weight = _sums(keep, distance, counts.to(x), state.deviation_total, state.deviation_weight)
    after = RunningScaleState(first, *(s[:, -1] for s in (value, weight, total, deviation_weight, deviation)))
    every = RunningScaleState(first[:, None], value, weight, total, deviation_weight, deviation)
    level, scale = level_and_scale(every)
    return ScaledSeries(value, torch.where(counts, value - before, 0), level, scale), after


def level_and_scale(state: RunningScaleState) -> tuple[Tensor, Tensor]:
    """What a state stands for, (batch, d_target) each: 0 and next to 0 before anything is seen."""
    level = torch.where(state.weight > 0, state.first + _ratio(state.total, state.weight), 0)
    floor = (RELATIVE_FLOOR * level.abs()).clamp(min=1e-30)
    return level, torch.maximum(_ratio(state.deviation_total, state.deviation_weight), floor)


def _ratio(total: Tensor, weight: Tensor) -> Tensor:
    """0 where the weight is: nothing has been seen."""
    return total / weight.clamp(min=torch.finfo(weight.dtype).tiny)


def _sums(keep: Tensor, a: Tensor, b: Tensor, a0: Tensor, b0: Tensor) -> tuple[Tensor, Tensor]:
    """Decaying sums of a and of b."""
    sums = linear_scan(torch.stack([keep, keep], -1), torch.stack([a, b], -1), torch.stack([a0, b0], -1))
    return sums[..., 0], sums[..., 1]
