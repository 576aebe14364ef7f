"""Whether an estimate is as sure as it may be: over many runs, beside the chi-square law."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.estimation import Gaussians, Posterior, Smoothed, acceptance, nees, nis
from statewise.reproduce.kalman.systems import Runs

LOST = 10.0


def measured(runs: Runs, posterior: Posterior, smoothed: Smoothed, level: float) -> dict[str, Any]:
    """What was measured of the filter and the smoother: errors, NEES, coverage; and the filter's NIS."""
    seen = ~runs.raw.isnan()
    raw = (runs.raw - runs.x[..., runs.states[0]])[seen].square().mean().sqrt()
    ratio = nis(posterior).mean(0)
    return {
        "raw_error": float(raw),
        "filter": told(posterior, runs, level),
        "smoother": told(smoothed, runs, level),
        "nis": against(ratio, posterior.n_observed[0], len(runs.y), level),
    }


def told(estimate: Gaussians, runs: Runs, level: float) -> dict[str, Any]:
    """error: the root mean square of the first state of ``states``; hidden_error: the same where nothing was seen
    lost: the runs of which the mean NEES, over n, is above 10: the filter follows what is not there
    coverage: how often an interval of this level holds the truth, each state by itself
    """
    away = (estimate.mean - runs.x)[..., runs.states[0]]
    hidden = runs.y.isnan().all(-1)
    low, high = estimate.interval(level)
    n = runs.x.shape[-1]
    each = nees(estimate, runs.x)
    squares = each.mean(0)
    return {
        "error": float(away.square().mean().sqrt()),
        "hidden_error": float(away[hidden].square().mean().sqrt()) if bool(hidden.any()) else None,
        "coverage": float(((runs.x > low) & (runs.x < high)).double().mean()),
        "lost": int((each.mean(1) > LOST * n).sum()),
        "nees": against(squares, torch.full((len(squares),), n), len(runs.x), level),
    }


def against(mean: Tensor, dof: Tensor, n_runs: int, level: float) -> dict[str, Any]:
    """The mean square of each step over its degrees of freedom, which should be 1, and where chi-square has it.

    inside: the share of the steps at which the mean over the runs lies within; steps that have none do not count
    """
    ends = {int(k): acceptance(n_runs, int(k), level) for k in dof.unique() if k}
    steps = [t for t in range(len(mean)) if int(dof[t])]
    inside = [bool(ends[int(dof[t])].low < mean[t] < ends[int(dof[t])].high) for t in steps]
    widest = ends[int(dof.max())]
    return {
        "step": steps,
        "ratio": [round(float(mean[t] / dof[t]), 5) for t in steps],
        "low": round(float(widest.low / dof.max()), 5),
        "high": round(float(widest.high / dof.max()), 5),
        "mean": float(mean[steps].sum() / dof[steps].sum()),
        "inside": sum(inside) / len(inside),
    }


def example(runs: Runs, posterior: Posterior, smoothed: Smoothed, row: int = 0) -> dict[str, Any]:
    """One run for a picture: the states of ``states``, (length,) each, with half the width of a 95 % interval."""

    def rounded(x: Tensor) -> list[float | None]:
        return [None if z != z else round(z, 4) for z in x.tolist()]

    drawn: dict[str, Any] = {"y": [rounded(y) for y in runs.y[row].unbind(-1)]}
    for i in runs.states:
        drawn[str(i)] = {"truth": rounded(runs.x[row, :, i])}
        for name, estimate in (("filter", posterior), ("smoother", smoothed)):
            mean, half = estimate.mean[row, :, i], estimate.interval(0.95).high[row, :, i] - estimate.mean[row, :, i]
            drawn[str(i)][name], drawn[str(i)][f"{name}_half"] = rounded(mean), rounded(half)
    return drawn
