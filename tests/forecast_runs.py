"""Small forecasters of a table of two shops, trained for a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from training_runs import train_config

from statewise.data.series import SeriesDataConfig
from statewise.estimation.structural import Irregular, Level, Regression
from statewise.mixers.s4d import S4DConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.structural import StructuralForecasterConfig
from statewise.training import BudgetConfig, RunConfig, TrainConfig


def sales(
    folder: Path,
    name: str = "sales.csv",
    *,
    shift: float = 0.0,
    first: int = 0,
    n: int = 60,
    columns: str = "sold;back",
) -> Path:
    """Two shops by the month; what is sold follows the promotion. Semicolons and decimal commas."""
    rng = np.random.default_rng(0)
    lines = [f"month;shop;{columns};promo"]
    for shop in ("north", "south"):
        for i in range(first, first + 60):
            promo = rng.integers(0, 3) * 10 + shift
            sold = 100 + 0.3 * i + promo + 5 * np.sin(2 * np.pi * i / 12) + rng.normal()
            lines.append(f"{2018 + i // 12}-{i % 12 + 1:02}-01;{shop};{sold:.2f};{i % 7};{promo:.1f}".replace(".", ","))
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def sales_run(folder: Path, structural: bool = False, **options: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "series": "shop",
        "targets": ("sold", "back"),
        "covariates": ("promo",),
        "calendar": ("year", "season"),
        "horizon": 4,
        "history": 12,
        **options,
    }
    data = SeriesDataConfig(source=str(sales(folder)), **fields)
    k = 2 * len(data.calendar) + len(data.covariates)
    d_target = len(data.targets) or 2
    if structural:
        parts = (Level(), *([Regression(d_covariates=k)] if k else []), Irregular())
        model = StructuralForecasterConfig(horizon=data.horizon, components=parts, d_target=d_target)
        return RunConfig(model=model, data=data, train=TrainConfig(budget=BudgetConfig(steps=1)))
    network = ForecasterConfig(
        horizon=data.horizon,
        d_model=8,
        layers=(S4DConfig(d_state=4),),
        d_target=d_target,
        d_covariates=k,
        d_past_covariates=len(data.past_covariates),
        quantiles=(0.1, 0.5, 0.9),
    )
    train = train_config(steps=4, batch_size=8, save_every=2, save_minutes=None)
    return RunConfig(model=network, data=data, train=train)
