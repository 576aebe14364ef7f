"""The level and the scale of a series, as running averages: what a forecaster divides by, known at every step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.kernels.linear_scan import linear_scan

LEAST = 1e-6  # of the largest distance so far, as a scale: after one jump and a calm, no later value is infinitely far
ROUNDING = 4 * torch.finfo(torch.float64).eps  # values that differ by less than this beside their size do not differ


class RunningScaleState(NamedTuple):
    """All (batch, d_target), float64. first: the first value seen, from which the sums are taken, for the sake of
    rounding; last: the last value seen; weight, total: of the level; deviation_weight, deviation_total: of the scale;
    farthest: the largest distance of a value from the first one.
    """

    first: Tensor
    last: Tensor
    weight: Tensor
    total: Tensor
    deviation_weight: Tensor
    deviation_total: Tensor
    farthest: Tensor


class ScaledSeries(NamedTuple):
    """All (batch, length, d_target), float64: the series with its gaps filled, its changes, and what scales it, step by
    step.
    """

    value: Tensor  # the last value seen
    change: Tensor  # from the value seen before; 0 where nothing is seen
    level: Tensor
    scale: Tensor  # 0 while all values seen are alike


def initial_running_scale(batch: int, d_target: int, device: torch.device) -> RunningScaleState:
    """The state before anything is seen."""
    zeros = torch.zeros(batch, d_target, device=device, dtype=torch.float64)
    return RunningScaleState(*[zeros.clone() for _ in RunningScaleState._fields])


def running_scale(
    x: Tensor, observed: Tensor, state: RunningScaleState, steps: int | None
) -> tuple[ScaledSeries, RunningScaleState]:
    """The mean of the values seen so far, and the mean distance of each value from the mean before it.

    For each value x_t that is seen, level_t is the average of all values up to x_t, and scale_t the average of
    abs(x_i - level_{i-1}) up to i = t, the first value left out. In both, a value seen k values ago has the weight
    (1 - 1/steps)^k, and with ``steps=None`` they all have the same. Where nothing is seen, everything stays. The scale
    is at least 1e-6 of the largest abs(x_i - x_0) so far; it is 0 while there is no such distance, or none that is
    more than rounding beside x_0: such values tell no scale.

    All is a function of the past and of the state, so a series may be read in chunks; and value, level and scale follow
    x -> a + b x, b > 0, exactly, but for what float64 rounds of x itself.

    Shapes:   x, observed: (batch, length, d_target), observed bool; x may be anything where it is not observed
    Cost:     two linear recurrences: O(length).
    Numerics: in float64, whatever x and the state are: what is small beside the level is lost in float32.
    """
    state = RunningScaleState(*(part.double() for part in state))
    x = x.double().masked_fill(~observed, 0)
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
    keep = torch.full_like(x, decay).where(observed, 1)
    moved = (x - first[:, None]) * observed
    total, weight = _sums(keep, moved, observed.to(x), state.total, state.weight)
    mean = in_units(total, weight)  # less the first value
    mean_before = torch.cat([in_units(state.total, state.weight)[:, None], mean[:, :-1]], 1)
    weight_before = torch.cat([state.weight[:, None], weight[:, :-1]], 1)

    counts = observed & (weight_before > 0)
    distance = (moved - mean_before).abs() * counts
    keep = torch.full_like(x, decay).where(counts, 1)
    deviation, deviation_weight = _sums(keep, distance, counts.to(x), state.deviation_total, state.deviation_weight)
    farthest = torch.maximum(moved.abs().cummax(1).values, state.farthest[:, None])
    parts = (value, weight, total, deviation_weight, deviation, farthest)
    after = RunningScaleState(first, *(part[:, -1] for part in parts))
    every = RunningScaleState(first[:, None], *parts)
    level, scale = level_and_scale(every)
    return ScaledSeries(value, torch.where(counts, value - before, 0), level, scale), after


def level_and_scale(state: RunningScaleState) -> tuple[Tensor, Tensor]:
    """What a state stands for, (batch, d_target) each: 0 and 0 before anything is seen."""
    level = torch.where(state.weight > 0, state.first + in_units(state.total, state.weight), 0)
    scale = torch.maximum(in_units(state.deviation_total, state.deviation_weight), LEAST * state.farthest)
    return level, torch.where(state.farthest > ROUNDING * state.first.abs(), scale, 0)


def in_units(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale; 0 where the scale is, which is never below it."""
    told = scale > 0
    return torch.where(told, x / torch.where(told, scale, 1), 0)


def _sums(keep: Tensor, a: Tensor, b: Tensor, a0: Tensor, b0: Tensor) -> tuple[Tensor, Tensor]:
    """Decaying sums of a and of b."""
    sums = linear_scan(torch.stack([keep, keep], -1), torch.stack([a, b], -1), torch.stack([a0, b0], -1))
    return sums[..., 0], sums[..., 1]
