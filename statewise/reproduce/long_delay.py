"""Random A beside HiPPO's: how far back a gradient reaches, and what accuracy that costs on a long delay.

The model is the same for all, one dense system for each of a few channels and a linear readout; only the matrix that it
begins with differs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from statewise import hippo
from statewise.operators.dense import DenseLTI
from statewise.reproduce.delay_model import (
    SPEEDS,
    DelayModel,
    DelaySettings,
    delay_error,
    initial_system,
    train_model,
)
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report, doubling_axis, drawn
from statewise.reproduce.work import Work
from statewise.systems import discretize_dense
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "legs": "HiPPO-LegS",
    "legt": "HiPPO-LegT",
    "lin": "S4D-Lin",
    "random": "random, LegS's abscissa",
    "random-as-drawn": "random, as drawn",
    "legs-scaled": "HiPPO-LegS with 1/t",
}
MODES = ("frozen", "learned", "best")
LAGS = (0.5, 1, 2, 4, 8)  # in windows, where the gradient is read off


def quick() -> DelaySettings:
    return DelaySettings(delays=(16, 64), d_state=16, period=16, seeds=1, steps=20, window=64)


def gradient_norms(name: str, config: DelaySettings, seed: int = 0) -> Tensor:
    """The norm of d state_t / d input_{t-k}, that is of A^k B (discrete), for k = 0 ... 8 windows, over its largest."""
    length = 8 * config.window + 1
    if name == "legs-scaled":  # d c_t / d u_{t-k} at the time t = 8 windows
        u = torch.zeros(1, length, dtype=torch.float64, requires_grad=True)
        coefficients = hippo.project(u, "legs", config.d_state, at=[-1])[0][0, 0]
        rows = [torch.autograd.grad(c, u, retain_graph=True)[0][0] for c in coefficients]
        found = torch.stack(rows).norm(dim=0).flip(0)
    else:
        A, B = initial_system(name, config, torch.Generator().manual_seed(seed))
        step = torch.tensor(1 / config.window, dtype=torch.float64)
        A, B = discretize_dense(A, B, step, "bilinear")
        identity = torch.eye(config.d_state, dtype=torch.float64)
        found = DenseLTI(A[None], B[None], identity[None]).impulse_response(length)[0].norm(dim=0)
    return found / found.max() if name != "random-as-drawn" else found / found[0]


def run(config: DelaySettings, work: Work) -> Report:
    measured = [*config.initial, *(["random-as-drawn"] if "random" in config.initial else [])]
    measured += ["legs-scaled"] if "legs" in config.initial else []
    work.begin(len(measured) + len(config.initial) * len(config.delays) * len(MODES))
    gradients = {name: work.part(f"gradient-{name}", partial(_gradients, name, config)) for name in measured}
    errors: dict[str, dict[str, dict[str, list[Any]]]] = {mode: {} for mode in MODES}
    for delay in config.delays:
        for name in config.initial:
            for mode in MODES:
                part = f"delay-{delay}-{name}-{mode}"
                found = work.part(part, partial(_errors, name, mode, config, delay, work))
                errors[mode].setdefault(name, {})[str(delay)] = found["error"]
    return _report(config, gradients, errors)


def _gradients(name: str, config: DelaySettings) -> dict[str, Any]:
    norms = torch.stack([gradient_norms(name, config, seed) for seed in range(config.seeds)]).median(0).values
    lags = torch.linspace(0, 8 * config.window, 8 * 32 + 1).round().long().unique()
    above = (norms >= 0.01 * norms.max()).nonzero()[-1] / config.window
    at = {str(lag): float(norms[round(lag * config.window)]) for lag in LAGS}
    return {"lag": (lags / config.window).tolist(), "norm": norms[lags].tolist(), "at": at, "reach": float(above)}


def _errors(name: str, mode: str, config: DelaySettings, delay: int, work: Work) -> dict[str, Any]:
    found: list[float] = []
    for seed in range(config.seeds):
        model = DelayModel(name, config, delay, learned=mode == "learned", seed=seed)
        if mode != "best":
            total, before = config.seeds * config.steps, seed * config.steps
            train_model(model, config, delay, seed, partial(_told, work, before, total))
        found.append(delay_error(model, config, delay, best_readout=mode == "best"))
    return {"error": found}


def _told(work: Work, before: int, total: int, step: int) -> None:
    work.progress(before + step, total)


def _report(
    config: DelaySettings, gradients: Mapping[str, Any], errors: Mapping[str, Mapping[str, Mapping[str, list[Any]]]]
) -> Report:
    titles = {
        "frozen": "A frozen, the readout trained",
        "learned": "A, B, dt and the readout trained",
        "best": "A frozen, the best readout there is (least squares)",
    }
    columns = ("A begins as", *(f"{lag:g} windows" if lag != 1 else "1 window" for lag in LAGS), "1 % reaches")
    rows = [
        (NAMES[name], *(f"{found['at'][str(lag)]:.2g}" for lag in LAGS), _reach(found["reach"]))
        for name, found in gradients.items()
    ]
    tables = [Table("Gradient of the state by an input so long ago, relative to the largest", columns, rows)]
    for mode in MODES:
        rows = [
            (NAMES[name], *(_cell(found[str(delay)]) for delay in config.delays))
            for name, found in errors[mode].items()
        ]
        tables.append(Table(f"Error, {titles[mode]}", ("A begins as", *(f"{d:,}" for d in config.delays)), rows))
    draw_delay = partial(_draw_errors, config=config, errors=errors, titles=titles)
    return Report(
        title="Random A beside HiPPO A: a long delay",
        setting=(
            f"Gradients: N = {config.d_state}, dt = 1/{config.window}, a window being one unit of time (random as "
            "drawn: relative to the newest input). Delay: noise of period "
            f"{config.period} steps and longer is read, and y(t) = u(t - delay) is asked; {len(SPEEDS)} channels with "
            f"dt from {SPEEDS[0]:g} to {SPEEDS[-1]:g} over the delay, {config.steps} steps of Adam; the error is the "
            f"root mean square over the signal's, 1 is to know nothing; median of {config.seeds} seeds (least, most)."
        ),
        tables=tables,
        differences=(
            "Published is the effect on another task: the S4 paper (arXiv:2111.00396, sec. 2.2) says of LSSL that "
            "changing a random A to HiPPO's took sequential MNIST from 60 % to 98 %.",
            "The random A has LegS's spectral abscissa, so its slowest mode fades as slowly; as drawn, with "
            "eigenvalues in the unit disc and none of that, gradients grow without bound.",
            "The slowest decay sets how far a gradient reaches, so the random A's reaches about as far as LegS's. What "
            "it lacks is that its states tell the past apart.",
            f"The radius of its eigenvalues is {config.radius:g}; of 1, 8, 64 and 512 in units of time^-1, 64 did best "
            "at N = 64.",
        ),
        figures={"gradients": dict(gradients), "error": dict(errors)},
        plots=[
            drawn("gradients", "How far a gradient reaches", partial(_draw_gradients, gradients=gradients)),
            drawn("delay", "What it costs on a delay", draw_delay, width=11.0, height=4.2),
        ],
    )


def _reach(windows: float) -> str:
    return "8 or more" if windows >= 7.99 else f"{windows:.2f}"


def _cell(errors: Sequence[float | None]) -> str:
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return "diverged"
    spread = f" ({min(known):.2g}, {max(known):.2g})" if max(known) > min(known) else ""
    return f"{statistics.median(known):.2g}{spread}"


def _draw_gradients(drawing: Figure, gradients: Mapping[str, Any]) -> None:
    axes = drawing.subplots()
    for name, found in gradients.items():
        axes.semilogy(found["lag"], [max(x or 0, 1e-12) for x in found["norm"]], label=NAMES[name])
    axes.set_ylim(1e-5, 1e4)
    axes.set_xlabel("lag, in windows")
    axes.set_ylabel("norm of d state(t) / d input(t - lag)")
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_errors(drawing: Figure, config: DelaySettings, errors: Any, titles: Mapping[str, str]) -> None:
    panels = drawing.subplots(1, len(MODES), sharey=True)
    for axes, mode in zip(panels, MODES):
        for name, found in errors[mode].items():
            points = [[x for x in found[str(delay)] if x is not None] for delay in config.delays]
            middle = [statistics.median(p) if p else float("nan") for p in points]
            axes.loglog(config.delays, middle, marker="o", label=NAMES[name])
        axes.axhline(1.0, color="gray", linewidth=0.8)
        axes.set_title(titles[mode], fontsize=9)
        doubling_axis(axes, config.delays, "delay, steps")
    panels[0].set_ylabel("error over the signal")
    panels[0].legend(fontsize=7)


REPRODUCTION = Reproduction(
    summary="random A beside HiPPO A: how far a gradient reaches, and what it costs on a long delay",
    duration="15 minutes",
    full=DelaySettings,
    quick=quick,
    run=run,
)
