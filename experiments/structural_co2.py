"""A year of CO2 ahead: a structural time series beside statsmodels' of the same components, and a small network.

    python experiments/structural_co2.py --out results.json

Trains the presets ``co2-structural`` and ``co2``, fits the same components by statsmodels to the same
training span, and forecasts 52 weeks from every ``--stride``-th origin of the test span, from the same histories.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import statewise as sw
from statewise.evaluate.forecasting import BASELINES, evaluate_forecasts, forecast, score_forecasts
from statewise.models.structural import StructuralForecaster
from statewise.training import open_task, train_run
from statewise.training.presets import PRESETS


def statsmodels_of(values: np.ndarray) -> Any:
    """The components of the preset: a smooth trend, two waves of the year, an autoregression, noise."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    return UnobservedComponents(
        values,
        "smooth trend",
        freq_seasonal=[{"period": 365.25 / 7, "harmonics": 2}],
        autoregressive=1,
        use_exact_diffuse=True,
    )


def as_statsmodels(parameters: dict[str, torch.Tensor]) -> list[float]:
    names = ("irregular.variance", "trend.slope_variance", "seasonal.variance", "autoregression.variance")
    return [float(parameters[name]) for name in names] + [float(parameters["autoregression.coefficients"][0, 0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stride", type=int, default=26)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    told: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        seconds = {}
        for name in ("co2-structural", "co2"):
            begin = time.perf_counter()
            train_run(PRESETS[name](), Path(folder, name))
            seconds[name] = time.perf_counter() - begin
        ours, network = (
            sw.load(sw.checkpoints.resolve(Path(folder, name), "best")) for name in ("co2-structural", "co2")
        )
    assert isinstance(ours, StructuralForecaster)
    task = open_task(PRESETS["co2-structural"]())
    split, batch = task.data.split("test"), task.batches[0]
    origins = split.every(arguments.stride)
    parameters = {name: value.detach() for name, value in ours.parameters_by_name.items()}
    values = batch.values[0, :, 0].numpy()

    begin = time.perf_counter()
    result = statsmodels_of(values).fit(disp=0, maxiter=1000)
    fit_seconds = time.perf_counter() - begin
    with torch.no_grad():
        likelihood = float(ours.log_likelihood(ours.free[None], ours.series(batch.values, None)))
    same = float(statsmodels_of(values).loglike(as_statsmodels(parameters)))

    targets = np.stack([split.window(origin).targets for origin in origins])
    scale = task.data.naive_errors[[origin.series for origin in origins]][:, None]
    found = forecast(ours, split, origins)[..., ours.config.point]
    theirs, with_ours = [], []
    for origin in origins:
        history = split.window(origin).history[:, 0].astype(np.float32).astype(np.float64)
        model = statsmodels_of(history)
        theirs.append(model.smooth(result.params).forecast(52)[:, None])
        with_ours.append(model.smooth(as_statsmodels(parameters)).forecast(52)[:, None])
    told["structural"] = vars(score_forecasts(found, targets, scale))
    told["statsmodels"] = vars(score_forecasts(np.stack(theirs), targets, scale))
    for name, rule in BASELINES.items():
        told[name] = vars(score_forecasts(np.stack([rule(task.data, o) for o in origins]), targets, scale))
    of_network = open_task(PRESETS["co2"]()).data.split("test")
    told["network"] = vars(evaluate_forecasts(network, of_network, stride=arguments.stride).model)
    record = {
        "origins": len(origins),
        "scores": told,
        "log_likelihood": {"structural": likelihood, "statsmodels": float(result.llf), "statsmodels of ours": same},
        "largest difference of forecasts with one set of parameters": float(np.abs(found - np.stack(with_ours)).max()),
        "seconds": {
            "train co2-structural": seconds["co2-structural"],
            "train co2": seconds["co2"],
            "statsmodels": fit_seconds,
        },
        "parameters": {name: value.flatten().tolist() for name, value in parameters.items()},
    }
    print(json.dumps(record, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
