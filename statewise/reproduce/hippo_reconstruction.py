"""How much of a signal's past each HiPPO measure remembers: reconstruction error against the order N."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from statewise import hippo
from statewise.configuration import Config
from statewise.configuration.types import (
    Count,
    EvenCount,
    Natural,
    NonEmpty,
    OneOf,
    Positive,
    at_least,
)
from statewise.errors import ConfigError
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report, doubling_axis, drawn
from statewise.reproduce.work import Work
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "legs": "LegS",
    "legt": "LegT",
    "lmu": "LMU",
    "lagt": "LagT",
    "fourier": "FouT",
    "fourier_diag": "FouD",
}
REAL = ("sunspots", "co2")


@dataclass(frozen=True, kw_only=True)
class HippoSettings(Config):
    """orders:   N, the numbers that a state holds of the past
    measures: of :func:`statewise.hippo.transition`
    window:   steps of the past that are reconstructed; the signal is so long, and then as long again before it for the
              measures that forget, which LegS does not
    cycles:   of the noise in a window at most; n_signals: how many of it
    time_units: how many units of time the window is for LagT, whose memory fades as e^(-s/2) from now, s in units
    """

    orders: NonEmpty[EvenCount] = (4, 8, 16, 32, 64, 128, 256)
    measures: NonEmpty[Annotated[str, OneOf(NAMES)]] = (
        "legs",
        "legt",
        "lmu",
        "lagt",
        "fourier",
        "fourier_diag",
    )
    window: Annotated[int, at_least(16)] = 4096
    cycles: Positive = 24.0
    n_signals: Count = 16
    time_units: Positive = 128.0
    seed: Natural = 0

    def __post_init__(self) -> None:
        if self.cycles >= self.window / 4:
            raise ConfigError(
                f"HippoSettings: window={self.window}, cycles={self.cycles}; use at least 4 steps to a cycle"
            )


def quick() -> HippoSettings:
    return HippoSettings(orders=(4, 16, 64), window=512, cycles=8.0, n_signals=4)


def run(config: HippoSettings, work: Work) -> Report:
    signals = {"noise": noise(config)}
    for name in REAL:
        if find_spec("statsmodels") is not None:
            signals[name] = real_series(name, config.window)
    work.begin(len(config.orders) * len(config.measures))
    errors: dict[str, dict[str, dict[str, float]]] = {name: {} for name in signals}
    for measure in config.measures:
        for n in config.orders:
            found = work.part(f"{measure}-{n}", partial(_measure, config, measure, n, signals))
            for name in signals:
                if name in found["error"]:
                    errors[name].setdefault(measure, {})[str(n)] = found["error"][name]
    for name in REAL:
        if not errors.get(name):
            errors.pop(name, None)
    return _report(config, errors)


def noise(config: HippoSettings) -> Tensor:
    """Sums of 64 sinusoids of random phase, their frequencies uniform up to ``cycles`` in a window: (n, 2 window).

    Each sample is the value in the middle of its step.
    """
    generator = torch.Generator().manual_seed(config.seed)
    time = (torch.arange(2 * config.window, dtype=torch.float64) + 0.5) / config.window
    shape = (config.n_signals, 64, 1)
    frequency = config.cycles * torch.rand(shape, generator=generator, dtype=torch.float64)
    phase = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (2 * math.pi * (frequency * time + phase)).sin().sum(1) / math.sqrt(32)


def real_series(name: str, window: int) -> Tensor:
    """A series that comes with statsmodels, its first half before the window and its second half in it, standardised.

    It is read off on straight lines between its values: (1, 2 window).
    """
    from statewise.data.series_files import find_series, read_series

    path = find_series(name)
    file = read_series(path, time=None, series=None, targets=(), covariates=(), frequency=None)
    values = torch.as_tensor(file.series[0].values, dtype=torch.float64)[:, 0]
    values = values[values.isfinite()]
    place = (torch.arange(2 * window, dtype=torch.float64) + 0.5) / (2 * window) * (len(values) - 1)
    low = place.long().clamp(max=len(values) - 2)
    line = values[low] + (place - low) * (values[low + 1] - values[low])
    return ((line - line.mean()) / line.std()).unsqueeze(0)


def reconstruction_error(config: HippoSettings, measure: str, n: int, signals: Tensor) -> tuple[float, Tensor]:
    """The error's root mean square over the window, relative to the signal's, and the reconstruction itself.

    LegS begins with the window, since it remembers everything; the others have read as much before it.
    Shapes:  signals: (k, 2 window)   ->   ..., (k, window), oldest first
    """
    window = config.window
    last = signals[:, window:]
    ages = (window - 0.5 - torch.arange(window, dtype=torch.float64)).clamp(min=0)  # of the middles of the steps
    if measure == "legs":
        coefficients, _ = hippo.project(last, "legs", n, at=[-1])
        values = hippo.reconstruct(coefficients[:, 0], "legs", ages, elapsed=float(window))
    else:
        theta = window / config.time_units if measure == "lagt" else float(window)
        coefficients, _ = hippo.project(signals, measure, n, at=[-1], theta=theta)
        values = hippo.reconstruct(coefficients[:, 0], measure, ages, theta=theta)
    error = (values - last).square().mean().sqrt() / last.square().mean().sqrt()
    return float(error), values


def _measure(config: HippoSettings, measure: str, n: int, signals: Mapping[str, Tensor]) -> dict[str, Any]:
    return {"error": {name: reconstruction_error(config, measure, n, u)[0] for name, u in signals.items()}}


def _report(config: HippoSettings, errors: dict[str, dict[str, dict[str, float]]]) -> Report:
    titles = {
        "noise": f"white noise up to {config.cycles:g} cycles in the window",
        "sunspots": "yearly sunspots, 1700 to 2008",
        "co2": "weekly CO2 at Mauna Loa, 1958 to 2001",
    }
    tables = []
    for name, found in errors.items():
        rows = [(NAMES[measure], *(_percent(found[measure].get(str(n))) for n in config.orders)) for measure in found]
        notes = (_rate(config, found["legs"]),) if name == "noise" and "legs" in found else ()
        columns = ("measure", *(f"N = {n}" for n in config.orders))
        tables.append(Table(f"Reconstruction error, {titles[name]}", columns, rows, notes))
    missing = "" if set(REAL) <= errors.keys() else " (sunspots and CO2 need the extra tasks)"
    return Report(
        title="HiPPO: what a state of N numbers remembers",
        setting=(
            f"A signal is read step by step; then its last {config.window:,} steps are reconstructed from the state "
            f"alone. The error's root mean square, relative to the signal's, in percent{missing}."
        ),
        tables=tables,
        differences=(
            "HiPPO's theorem for LegS (arXiv:2008.07669, proposition 6) is a bound, not a table: the error falls at "
            "least as N^(-1/2) for a signal with bounded slope, faster for smoother ones. No published table has this "
            "setting; the published permuted MNIST (98.3 % with LegS, N = 512) is a trained network.",
            "Legendre measures begin to converge at about pi states a cycle, Fourier ones at 2; FouT and FouD treat "
            "the window as one period, and pay for the jump between its ends.",
            f"LagT and FouD fade: what they reconstruct badly is mostly the far end. LagT has {config.time_units:g} "
            "units of time in the window; 128 was the best of 4 to 128 on such noise, a choice that the other measures "
            "were not given.",
        ),
        figures={"relative_error": errors},
        plots=[
            drawn(f"hippo-{name}", titles[name], partial(_draw, config=config, found=found))
            for name, found in errors.items()
        ],
    )


def _rate(config: HippoSettings, found: Mapping[str, float]) -> str:
    first, last = config.orders[0], config.orders[-1]
    if first == last or not found[str(first)] or not found[str(last)]:
        return "LegS at one order: no rate to compare"
    rate = math.log(found[str(last)] / found[str(first)]) / math.log(last / first)
    return f"LegS from N = {first} to {last}: the error falls as N^{rate:.2f}; the published bound falls as N^-0.50"


def _percent(error: float | None) -> str:
    if error is None:
        return "-"
    return f"{100 * error:.1f}" if error >= 0.01 else f"{100 * error:.2g}"


def _draw(drawing: Figure, config: HippoSettings, found: Mapping[str, Mapping[str, float]]) -> None:
    axes = drawing.subplots()
    for measure, by_order in found.items():
        axes.loglog(list(config.orders), [by_order[str(n)] for n in config.orders], marker="o", label=NAMES[measure])
    doubling_axis(axes, config.orders, "N, states")
    axes.set_ylabel("relative error of the reconstruction")
    axes.legend()


REPRODUCTION = Reproduction(
    summary="reconstruction error against N for each HiPPO measure and the LMU",
    duration="2 minutes",
    full=HippoSettings,
    quick=quick,
    run=run,
)
