"""How much of a signal's past each HiPPO measure remembers: reconstruction error against the order N."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

import torch
from torch import Tensor

from statewise import hippo
from statewise.configuration.types import Count, Distinct, EvenCount, LongSeed, OneOf, Positive, at_least
from statewise.reproduce import hippo_figure
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.page import told
from statewise.reproduce.report import MARKED, Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.work import Job, Work
from statewise.training.report import Reporter

NAMES = {"legs": "LegS", "legt": "LegT", "lmu": "LMU", "lagt": "LagT", "fourier": "FouT", "fourier_diag": "FouD"}
REAL = ("sunspots", "co2")


@dataclass(frozen=True, kw_only=True)
class HippoSettings(Settings):
    """orders:   N, the numbers that a state holds of the past
    measures: of :func:`statewise.hippo.transition`, but for "tlagt" and "glagt": they are polynomials, which outgrow
              every bound with age, where their weight forgets
    window:   steps of the past that are reconstructed; the signal is so long, and then as long again before it for the
              measures that forget, which LegS does not
    cycles:   of the noise in a window at most; n_signals: how many of it
    time_units: how many units of time the window is for LagT, whose memory fades as e^(-s/2) from now, s in units
    """

    orders: Distinct[EvenCount] = (4, 8, 16, 32, 64, 128, 256)
    measures: Distinct[Annotated[str, OneOf(NAMES)]] = tuple(NAMES)
    window: Annotated[int, at_least(16)] = 4096
    cycles: Positive = 24.0
    n_signals: Count = 16
    time_units: Positive = 128.0
    seed: LongSeed = 0

    def check(self) -> None:
        self.require(
            4 * self.cycles < self.window,
            f"window={self.window}, cycles={self.cycles}; use more than 4 steps to a cycle",
        )


def trials(config: HippoSettings, work: Work) -> dict[str, Job]:
    return {
        f"{measure}-{n}": Job(measure_errors, (config, measure, n))
        for measure in config.measures
        for n in config.orders
    }


def measure_errors(config: HippoSettings, measure: str, n: int, reporter: Reporter) -> dict[str, Any]:
    """The errors on each signal."""
    signals = {"noise": noise(config)}
    if find_spec("statsmodels") is not None:
        signals |= {name: real_series(name, config.window) for name in REAL}
    return {"error": {name: reconstruction_error(config, measure, n, u)[0] for name, u in signals.items()}}


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

    file = read_series(find_series(name), time=None, series=None, targets=(), covariates=(), frequency=None)
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


def report(config: HippoSettings, found: Found) -> Report:
    titles = {
        "noise": f"white noise up to {config.cycles:g} cycles in the window",
        "sunspots": "yearly sunspots, 1700 to 2008",
        "co2": "weekly CO2 at Mauna Loa, 1958 to 2001",
    }
    errors: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in titles}
    for measure in config.measures:
        for n in config.orders:
            for name, error in found[f"{measure}-{n}"]["error"].items():
                errors[name].setdefault(measure, {})[str(n)] = error
    errors = {name: by_measure for name, by_measure in errors.items() if by_measure}

    tables, plots = [], []
    for name, by_measure in errors.items():
        each = {m: [by_measure[m][str(n)] for n in config.orders] for m in by_measure}
        rate = _rate(config, by_measure["legs"]) if name == "noise" and "legs" in by_measure else ""
        rows = [{"name": NAMES[m], "shown": [*map(_percent, found)]} for m, found in each.items()]
        tables.append(({"title": titles[name], "rate": rate}, rows))
        lines = [Curve(config.orders, found, NAMES[m], MARKED) for m, found in each.items()]
        axes: dict[str, Any] = {"x": "N, states", "y": "relative error of the reconstruction"}
        plots.append(curves(f"hippo-{name}", titles[name], Panel(lines, ticks=config.orders, log="y", **axes)))
    memory = hippo_figure.memory(config.window)
    missing = "" if set(REAL) <= errors.keys() else " (sunspots and CO2 need the extra tasks)"
    return told(
        "hippo",
        {**vars(config), "missing": missing, "headings": [f"N = {n}" for n in config.orders]},
        tables,
        figures={"relative_error": errors, "memory": hippo_figure.figures(memory)},
        plots=[hippo_figure.plot(memory), *plots],
    )


def _rate(config: HippoSettings, found: Mapping[str, float]) -> str:
    first, last = config.orders[0], config.orders[-1]
    if first == last or not found[str(first)] or not found[str(last)]:
        return "LegS at one order: no rate to compare"
    rate = math.log(found[str(last)] / found[str(first)]) / math.log(last / first)
    return f"LegS from N = {first} to {last}: the error falls as N^{rate:.2f}; the published bound falls as N^-0.50"


def _percent(error: float | None) -> str | None:
    """None where an error was not finite."""
    if error is None:
        return None
    return f"{100 * error:.1f}" if error >= 0.01 else f"{100 * error:.2g}"


CLAIM = Claim(
    summary="reconstruction error against N for each HiPPO measure and the LMU",
    duration="2 minutes",
    source="Gu et al. 2020 (HiPPO), arXiv:2008.07669, proposition 6",
    settings=HippoSettings,
    quick="orders=[4,16,64] window=512 cycles=8 n_signals=4",
    trials=trials,
    report=report,
)
