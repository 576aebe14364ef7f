"""Kalman's filters on three systems: what they see, whether they are right about themselves, and their digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch

from statewise.configuration.types import AtLeastTwo, Natural, at_least
from statewise.estimation import LinearGaussian
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.kalman import digits, pictures, systems
from statewise.reproduce.kalman.consistency import example, measured
from statewise.reproduce.page import told
from statewise.reproduce.report import Bar, Report, drawn
from statewise.reproduce.settings import Settings
from statewise.reproduce.work import Job, Work
from statewise.training.report import Reporter

LEVEL = 0.95
METHODS = {"extended": "EKF", "iterated": "IEKF", "unscented": "UKF", "cubature": "CKF"}
LINEAR = {"spring": "mass, spring and damper", "target": "target with gaps"}
HARD = {"ill-conditioned": digits.ill_conditioned, "long": digits.long}
FORMS = tuple(form for form in LinearGaussian.forms if form != "recurrent")
WORDS = {"textbook": "textbook, P - K S K'", "joseph": "textbook, Joseph's form"}


@dataclass(frozen=True, kw_only=True)
class KalmanSettings(Settings):
    """n_runs: newly drawn runs of each system; length: steps of a run
    n_steps: of the long series in float32; short: of the ill-conditioned one; beside 50 digits
    bars:    whether what the project asks of itself is in the report
    """

    n_runs: AtLeastTwo = 1000
    length: Annotated[int, at_least(20)] = 200
    n_steps: Annotated[int, at_least(20)] = 1_000_000
    short: Annotated[int, at_least(20)] = 200
    seed: Natural = 0
    bars: bool = True


def trials(config: KalmanSettings, work: Work) -> dict[str, Job]:
    jobs = {name: Job(measure_system, (config, name)) for name in LINEAR}
    jobs |= {f"pendulum-{method}": Job(measure_system, (config, f"pendulum-{method}")) for method in METHODS}
    return jobs | {name: Job(measure_digits, (config, name)) for name in HARD}


def measure_system(config: KalmanSettings, name: str, reporter: Reporter) -> dict[str, Any]:
    kind, _, method = name.partition("-")
    draw = {"spring": systems.spring, "target": systems.target}.get(kind)
    draw = partial(systems.pendulum, method=method) if draw is None else draw
    with torch.no_grad():
        runs = draw(config.n_runs, config.length, torch.Generator().manual_seed(config.seed))
        posterior, _ = runs.model.filter(runs.y)
        smoothed = runs.model.smooth(runs.y)
        found = measured(runs, posterior, smoothed, LEVEL)
        return {**found, "example": example(runs, posterior, smoothed), "dt": runs.dt}


def measure_digits(config: KalmanSettings, name: str, reporter: Reporter) -> dict[str, Any]:
    """The long series in float32 alone; of the other one, of which every step is held against 50 digits, both."""
    far = name == "long"
    hard = HARD[name](config.n_steps if far else config.short, config.seed)
    exact = digits.exactly(hard, every=max(1, config.n_steps // 1000) if far else 1)
    found = {}
    for dtype in ("float32",) if far else tuple(digits.DTYPES):
        for form in (*digits.TEXTBOOK, *FORMS):
            with torch.no_grad():
                run = (
                    digits.by_textbook(hard, digits.DTYPES[dtype], joseph=form == "joseph")
                    if form in digits.TEXTBOOK
                    else digits.by_form(hard, digits.DTYPES[dtype], form)
                )
            found[f"{dtype} {form}"] = digits.compared(run, exact)
            reporter.progress(len(found) / ((1 if far else 2) * (2 + len(FORMS))), {})
    return found


def report(config: KalmanSettings, found: Found) -> Report:
    names = {**LINEAR, **{f"pendulum-{method}": f"pendulum, {short}" for method, short in METHODS.items()}}
    errors, consistency = [], []
    for key, name in names.items():
        part = found[key]
        errors.append({"name": name, "raw": part["raw_error"], "filter": part["filter"], "smoother": part["smoother"]})
        for estimate in ("filter", "smoother"):
            row = {"name": f"{name}: {estimate}", **part[estimate]}
            consistency.append({**row, "nis": part["nis"] if estimate == "filter" else None})
    tables = [
        ({"series": name, "n_steps": config.n_steps if name == "long" else config.short}, _digit_rows(found[name]))
        for name in HARD
    ]
    figures = {
        key: {
            **{what: found[key][what] for what in ("raw_error", "filter", "smoother")},
            "nis": {what: found[key]["nis"][what] for what in ("mean", "inside")},
        }
        for key in names
    }
    return told(
        "kalman",
        {**vars(config), "level": LEVEL},
        errors,
        consistency,
        tables,
        figures={**figures, "digits": {name: found[name] for name in HARD}},
        bars=bars(found) if config.bars else [],
        plots=_plots(found),
    )


def _digit_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": WORDS.get(form, f"`{form}`"), "dtype": dtype, **told}
        for (dtype, form), told in ((key.split(), told) for key, told in found.items())
    ]


def bars(found: Found) -> list[Bar]:
    """What was asked before anything was run."""
    asked = []
    for key, name in LINEAR.items():
        part = found[key]
        shares = [part["filter"]["nees"]["inside"], part["smoother"]["nees"]["inside"], part["nis"]["inside"]]
        what = f"{name}: steps whose mean NEES and NIS lie within chi-square's 95 %, the least share of the three"
        asked.append(Bar(what=what, ours=100 * min(shares), bar=90.0, unit=" %"))
        gain = part["filter"]["error"] / part["smoother"]["error"]
        asked.append(Bar(what=f"{name}: the filter's error over the smoother's", ours=gain, bar=1.1, unit="x"))
    gaps = found["target"]
    hidden = gaps["filter"]["hidden_error"] / gaps["smoother"]["hidden_error"]
    asked.append(Bar(what="target: the same where nothing is seen", ours=hidden, bar=2.0, unit="x"))
    for key in ("spring", "target", *(f"pendulum-{method}" for method in METHODS)):
        coverage = min(found[key][estimate]["coverage"] for estimate in ("filter", "smoother"))
        least = 94.0 if key in LINEAR else 92.0
        what = f"{key}: 95 % intervals that hold the truth, filter or smoother"
        asked.append(Bar(what=what, ours=100 * coverage, bar=least, unit=" %"))
    for series in HARD:
        ours = [part for key, part in found[series].items() if key.split()[1] in FORMS]
        share = 1 - max(part["indefinite"] / part["steps"] for part in ours)
        what = f"{series}: steps of each of our forms whose covariance is one"
        asked.append(Bar(what=what, ours=100 * share, bar=100.0, unit=" %"))
    return asked


def _plots(found: Found) -> list[Any]:
    spring, target = found["spring"], found["target"]
    examples = {METHODS[method]: found[f"pendulum-{method}"]["example"] for method in METHODS}
    panels = {
        LINEAR[key]: {estimate: found[key][estimate]["nees"] for estimate in ("filter", "smoother")} for key in LINEAR
    }
    panels["pendulum, filters"] = {METHODS[method]: found[f"pendulum-{method}"]["filter"]["nees"] for method in METHODS}
    panels["pendulum, smoothers"] = {
        METHODS[method]: found[f"pendulum-{method}"]["smoother"]["nees"] for method in METHODS
    }
    words = ("position, m", "observations")
    return [
        drawn(
            "spring",
            "A mass on a spring, pushed by random forces",
            lambda drawing: pictures.draw_series(drawing, spring["example"], "0", spring["dt"], words),
            width=8.5,
        ),
        drawn(
            "pendulum",
            "A pendulum of which the sine is seen",
            lambda drawing: pictures.draw_methods(drawing, examples, found["pendulum-extended"]["dt"]),
            width=9.0,
            height=6.0,
        ),
        drawn(
            "target",
            "A target that is lost twice",
            lambda drawing: pictures.draw_track(drawing, target["example"]),
            width=10.0,
        ),
        drawn(
            "consistency",
            "Mean NEES of all runs, step by step",
            lambda drawing: pictures.draw_consistency(drawing, panels, LEVEL),
            width=12.0,
            height=4.0,
        ),
    ]


CLAIM = Claim(
    summary="Kalman's filters and smoothers on three systems: consistency over 1,000 runs, and digits beside 50",
    duration="5 minutes",
    source="the chi-square laws of NEES and NIS: Bar-Shalom, Li & Kirubarajan 2001, sec. 5.4",
    settings=KalmanSettings,
    quick="n_runs=50 length=40 n_steps=2000 short=40 bars=false",
    trials=trials,
    report=report,
)
