"""Thousands of structural time series fitted in one search, and a few of them by statsmodels, one after the other.

    python experiments/structural_many.py --case level --series 10000 --length 100
    python experiments/structural_many.py --case season --series 2000 --length 120

Made series: a level that walks, for ``season`` a pattern of 12 months of its own as well, and noise.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings

import torch

from statewise.estimation.structural import Irregular, Level, Seasonal, Structural, fit

MODELS: dict[str, tuple[Structural, dict[str, int]]] = {
    "level": (Level() + Irregular(), {}),
    "season": (Level() + Seasonal(period=12) + Irregular(), {"seasonal": 12}),
}


def made(case: str, n_series: int, length: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    walk = 0.3 * torch.randn(n_series, length, dtype=torch.float64, generator=g).cumsum(1)
    y = 50 + walk + torch.randn(n_series, length, dtype=torch.float64, generator=g)
    if case == "season":
        pattern = 2 * torch.randn(n_series, 12, dtype=torch.float64, generator=g)
        y = y + pattern.repeat(1, length // 12 + 1)[:, :length]
    return y.unsqueeze(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(MODELS), default="level")
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--statsmodels", type=int, default=0, help="fit so many of them by statsmodels too")
    arguments = parser.parse_args()
    (model, options), y = MODELS[arguments.case], made(arguments.case, arguments.series, arguments.length)
    fit(model, y[:2])  # what is loaded once
    begin = time.perf_counter()
    found = fit(model, y)
    seconds = time.perf_counter() - begin
    told = {
        "seconds": round(seconds, 2),
        "ms a series": round(1e3 * seconds / len(y), 3),
        "converged": float(found.converged.double().mean()),
    }
    if arguments.statsmodels:
        from statsmodels.tsa.statespace.structural import UnobservedComponents

        warnings.simplefilter("ignore")
        begin, ahead = time.perf_counter(), []
        for row, values in enumerate(y[: arguments.statsmodels, :, 0].numpy()):
            other = UnobservedComponents(values, "llevel", use_exact_diffuse=True, **options).fit(disp=0, maxiter=500)
            ahead.append(float(found.log_likelihood[row]) - other.llf)
        each = (time.perf_counter() - begin) / len(ahead)
        told |= {"statsmodels, ms a series": round(1e3 * each, 1), "least likely beside it": min(ahead)}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
